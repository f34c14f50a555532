"""Templates that do harm, each in a real process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mesh.engine import gguf_frames as frames
from mesh.engine import template_process
from mesh.engine.chat_template import ChatTemplate
from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.template_child import MAX_INPUT_BYTES, MAX_OUTPUT_BYTES
from mesh.engine.template_process import BOOT, TemplateProcess, render_chat
from mesh.errors import BadRequest, EngineUnavailable, EngineUnsupported, Overloaded
from mesh.schema.ids import ContentId
from tests.support.serves import serve
from tests.support.tiny_gguf import CHATML, write_tiny_gguf

T = TypeVar("T")
ASK = [{"role": "user", "content": "hi"}]
SPIN = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
SPIN_IF_TOLD = "{% if messages[0].content == 'spin' %}" + SPIN + "{% endif %}{{ messages[0].content }}"
SPUN = [{"role": "user", "content": "spin"}]


def with_template(source: str, use: Callable[[TemplateProcess], Awaitable[T]], **limits: float) -> T:
    async def scenario() -> T:
        template = await TemplateProcess.start(source, bos="<s>", eos="</s>", **limits)
        try:
            return await use(template)
        finally:
            await template.close()

    return asyncio.run(scenario())


async def refusal(template: TemplateProcess, messages: list[dict[str, str]] = ASK) -> str:
    with pytest.raises(BadRequest) as caught:
        await template.render(messages)
    assert (caught.value.code, caught.value.param) == ("template_error", "messages")
    return str(caught.value)


def most_memory(pid: int | None) -> int:
    """The most bytes that a process ever had in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


async def gone(pid: int) -> None:
    """Wait until a process is no more."""
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.01)


def test_a_conversation_is_rendered_as_the_template_does() -> None:
    messages = [{"role": "user", "content": "ü 東京 \0\U0001f642 \"'\\"}, {"role": "assistant", "content": ""}]

    async def use(template: TemplateProcess) -> tuple[str, ContentId]:
        return await template.render(messages), template.digest

    expected = ChatTemplate(CHATML, bos="<s>", eos="</s>").render(messages)
    assert with_template(CHATML, use) == (expected, ContentId.of_bytes(CHATML.encode()))


def test_tools_are_shown_and_their_form_is_known() -> None:
    source = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
    tools = [{"type": "function", "function": {"name": "ü"}}]

    async def use(template: TemplateProcess) -> tuple[str | None, str, str]:
        return template.tool_form, await template.render(ASK), await template.render(ASK, tools)

    assert with_template(source, use) == ("hermes", "hi", "<tool_call>" + json.dumps(tools, ensure_ascii=False) + "hi")


def test_form_of_tools_that_a_child_made_up_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = frames.pack_frame({"op": "compiled", "fault": "", "tool_form": "its-own"})
    monkeypatch.setattr(template_process, "BOOT", f"import os; os.read(0, 1); os.write(1, {compiled!r}); os.read(0, 9)")

    async def use(template: TemplateProcess) -> str | None:
        return template.tool_form

    assert with_template("", use) is None


def test_many_at_once_each_get_their_own() -> None:
    async def use(template: TemplateProcess) -> list[str]:
        chats = [[{"role": "user", "content": str(n)}] for n in range(50)]
        return await asyncio.gather(*(template.render(chat) for chat in chats))

    assert with_template("{{ messages[0].content }}", use) == [str(n) for n in range(50)]


@pytest.mark.parametrize(
    "source",
    ["{{ 'a' * 10**10 }}", "{% set x = messages[0].content * 10**10 %}{{ x }}", "{{ range(99999) | list * 10000 }}"],
    ids=["folded-when-compiled", "when-rendered", "list"],
)
def test_a_template_cannot_take_the_memory_of_the_machine(source: str) -> None:
    async def use(template: TemplateProcess) -> tuple[str, str, int]:
        return await refusal(template), await refusal(template), most_memory(template.pid)

    first, second, most = with_template(source, use)
    assert first == second == "chat template: needs more than 512 MiB of memory"
    assert most < 600 * 1024 * 1024


def test_a_template_without_end_is_stopped_and_others_are_rendered_after_it() -> None:
    async def use(template: TemplateProcess) -> tuple[str, list[str], list[int | None]]:
        pids = [template.pid]
        stopped = asyncio.create_task(refusal(template, SPUN))
        after = await asyncio.gather(template.render(ASK), template.render(ASK))
        pids.append(template.pid)
        assert pids[0] is not None
        await gone(pids[0])
        return await stopped, after, pids

    reason, after, pids = with_template(SPIN_IF_TOLD, use, render_s=0.3)
    assert reason == "chat template: took more than 0.3 s to render this conversation and was stopped"
    assert after == ["hi", "hi"]
    assert len(set(pids)) == 2


def test_one_that_does_not_compile_in_time_is_not_tried_at_each_request() -> None:
    async def use(template: TemplateProcess) -> None:
        for _ in range(3):
            assert await refusal(template) == "chat template: took more than 1 s to compile and was stopped"
            assert template.pid is None

    # jinja computes constants when it compiles; this one takes years
    with_template("{{ 9 ** (9 ** 9) }}", use, compile_s=1.0)


def test_closing_ends_a_template_without_end() -> None:
    async def use(template: TemplateProcess) -> int:
        spinning = asyncio.create_task(template.render(SPUN))
        waiting = asyncio.create_task(template.render(ASK))
        await asyncio.sleep(0)
        assert template.pid is not None
        pid = template.pid
        await template.close()
        for task in (spinning, waiting):
            with pytest.raises(EngineUnavailable, match="closed"):
                await task
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(with_template(SPIN_IF_TOLD, use), 0)


def test_a_client_that_leaves_takes_nobodys_turn() -> None:
    async def use(template: TemplateProcess) -> tuple[str, int | None, int | None]:
        before = template.pid
        leaving = asyncio.create_task(template.render(ASK))
        while template._running is None:
            await asyncio.sleep(0)
        leaving.cancel()
        return await template.render([{"role": "user", "content": "next"}]), before, template.pid

    text, before, after = with_template("{{ messages[0].content }}", use)
    assert (text, after) == ("next", before)


def test_who_waits_too_long_for_others_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "TURN_S", 0.05)

    async def use(template: TemplateProcess) -> None:
        spinning = asyncio.create_task(refusal(template, SPUN))
        while template._running is None:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="before this one"):
            await template.render(ASK)
        await spinning

    with_template(SPIN_IF_TOLD, use, render_s=1.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_a_child_that_dies_costs_one_conversation(number: signal.Signals) -> None:
    async def use(template: TemplateProcess) -> tuple[str, str]:
        rendering = asyncio.create_task(refusal(template, SPUN))
        while template._answer is None:
            await asyncio.sleep(0)
        assert template.pid is not None
        os.kill(template.pid, number)
        return await rendering, await template.render(ASK)

    reason, after = with_template(SPIN_IF_TOLD, use)
    assert reason == f"chat template: could not render this conversation: template process: ended with {number.name}"
    assert after == "hi"


def test_what_goes_in_and_out_is_bounded() -> None:
    async def use(template: TemplateProcess) -> tuple[str, str, str]:
        long = [{"role": "user", "content": "x" * MAX_INPUT_BYTES}]
        # as much as is taken, and a template that doubles it
        fits = [{"role": "user", "content": "x" * (MAX_INPUT_BYTES - 100)}]
        return await refusal(template, long), await refusal(template, fits), await template.render(ASK)

    too_long, too_much, after = with_template("{{ messages[0].content * 2 }}", use)
    assert f"at most {MAX_INPUT_BYTES} are rendered" in too_long
    assert too_much.endswith(f"at most {MAX_OUTPUT_BYTES} are taken")
    assert after == "hihi"


def test_the_words_of_a_template_are_bounded_and_text() -> None:
    async def use(template: TemplateProcess) -> str:
        return await refusal(template)

    reason = with_template("{{ raise_exception('\\ud800' ~ 'x' * 10000) }}", use)
    assert reason.startswith("chat template: \\ud800xxx")
    assert len(reason) < 2100


def test_a_template_that_does_not_parse_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert "does not parse" in with_template("{% if %}", refusal)
    assert "does not parse" in caplog.text


@pytest.mark.parametrize(
    "said",
    [{"op": "compiled", "fault": "", "tool_form": ""}, {"op": "rendered", "text": 1}, {"op": "step", "tokens": []}],
    ids=["another-answer", "wrong-type", "unknown"],
)
def test_a_child_that_a_template_took_over_is_not_believed(said: dict[str, Any], monkeypatch: Any) -> None:
    compiled = frames.pack_frame({"op": "compiled", "fault": "", "tool_form": ""})
    hostile = f"import os; os.read(0, 1 << 20); os.write(1, {compiled!r}); os.read(0, 1 << 20); "
    monkeypatch.setattr(template_process, "BOOT", f"{hostile} os.write(1, {frames.pack_frame(said)!r}); os.read(0, 1)")
    assert "could not render this conversation: " in with_template("", refusal)


def test_it_writes_no_file_and_no_image_of_a_crash() -> None:
    async def use(template: TemplateProcess) -> str:
        return Path(f"/proc/{template.pid}/limits").read_text()

    limits = {line[:26].strip(): line[26:].split()[:2] for line in with_template("", use).splitlines()}
    assert limits["Max file size"] == limits["Max core file size"] == ["0", "0"]


def test_without_jinja_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BOOT.replace("from mesh", "sys.modules['jinja2'] = None; from mesh", 1)
    monkeypatch.setattr(template_process, "BOOT", boot)
    with pytest.raises(EngineUnsupported, match="extra `gguf`"):
        with_template(CHATML, refusal)


@pytest.mark.parametrize(("messages", "code"), [([], "bad_request"), (ASK, "no_chat_template")])
def test_where_there_is_nothing_to_render_no_process_is_asked(messages: list[dict[str, str]], code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        asyncio.run(render_chat(None, messages, where="the model file"))
    assert caught.value.code == code


def test_a_model_file_with_such_a_template_starts_and_serves(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "hostile.gguf", template="{{ 'a' * 10**10 }}")

    async def scenario() -> tuple[ContentId | None, int]:
        engine = await GgufEngine.start(GgufConfig(path, "m", slots=1))
        try:
            with pytest.raises(BadRequest, match="more than 512 MiB") as caught:
                await engine.render(ASK)
            assert caught.value.code == "template_error"
            return engine.template_digest, len((await serve(engine, [5, 6, 7], 3, ignore_eos=True)).tokens)
        finally:
            await engine.close()

    assert asyncio.run(scenario()) == (ContentId.of_bytes(b"{{ 'a' * 10**10 }}"), 3)


# Prints the child's process id when it has begun to render, then waits for what never comes.
_PARENT = """
import asyncio, sys
from mesh.engine.template_process import TemplateProcess

async def main():
    template = await TemplateProcess.start(sys.argv[1], bos="", eos="", render_s=600.0)
    rendering = asyncio.create_task(template.render([{"role": "user", "content": "spin"}]))
    while template._answer is None:
        await asyncio.sleep(0)
    print(template.pid, flush=True)
    await rendering

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors to watch a stranger's end")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_no_template_without_end_outlives_its_parent(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _PARENT, SPIN_IF_TOLD]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        watched = os.pidfd_open(child)
        parent.send_signal(number)
        parent.wait(30)
    try:
        assert select.select([watched], [], [], 30)[0], f"process {child} lives on"
    finally:
        os.close(watched)
