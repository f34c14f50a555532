"""Calls of tools: found however the text is cut, never invented, and read by the real SDK."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.gateway.toolcalls import Delta, parse_call, reader_of
from tests.gateway.serving import House, Reply, Scripted, house, script
from tests.support.tiny_gguf import write_tiny_gguf

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "東京", "n": 1.50}}\n</tool_call>'
AGAIN = '<tool_call>{"arguments": {}, "name": "time"}</tool_call>'
ARGUMENTS = '{"city": "東京", "n": 1.50}'
HERMES = (
    "{% if tools %}<|im_start|>system\n# Tools in <tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    'say <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def read(form: str, parts: list[str]) -> tuple[str, list[tuple[int, str, str]]]:
    """The content and the calls that come of the text in these parts."""
    reader = reader_of(form, {"weather", "time"}, "call_")
    deltas: list[Delta] = [delta for part in parts for delta in reader.push(part)] + reader.finish()
    assert not reader.holding
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["id"] for call in calls] == [f"call_{n}" for n in range(reader.calls)]
    told = [(call["index"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return "".join(delta.get("content", "") for delta in deltas), told


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [(0, "weather", ARGUMENTS)]),
        (f"\n{CALL}\n{AGAIN}\n", "", [(0, "weather", ARGUMENTS), (1, "time", "{}")]),
        (f"Let me see. \n{CALL}", "Let me see.", [(0, "weather", ARGUMENTS)]),
        (f"{CALL}\n Done it. ", "Done it. ", [(0, "weather", ARGUMENTS)]),
        (CALL.removesuffix("\n</tool_call>"), "", [(0, "weather", ARGUMENTS)]),
        (f"a <b {AGAIN}", "a <b", [(0, "time", "{}")]),
        ("no call <tool_cal at all ", "no call <tool_cal at all ", []),
        (" \n<tool_call>{broken</tool_call> x", " \n<tool_call>{broken</tool_call> x", []),
        ('<tool_call>{"name": "weather", "argu', '<tool_call>{"name": "weather", "argu', []),
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>',) * 2 + ([],),
        ("plain", "plain", []),
        ("", "", []),
        (" \n ", " \n ", []),
    ],
)  # fmt: skip
def test_tagged_calls_are_told_from_text(text: str, content: str, calls: list[Any]) -> None:
    assert read("hermes", [text]) == (content, calls)
    assert read("hermes", list(text)) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "weather", "parameters": {"city": "x"}}', "", [(0, "weather", '{"city": "x"}')]),
        ('\n{"name": "time", "parameters": {}}; {"name": "time"}\n', "", [(0, "time", "{}"), (1, "time", "{}")]),
        ('{"name": "time", "parameters": {}} and more', '{"name": "time", "parameters": {}} and more', []),
        ('{"answer": 1}', '{"answer": 1}', []),
        ('{"name": "time", "par', '{"name": "time", "par', []),
        ('I say {"name": "time"}', 'I say {"name": "time"}', []),
        ("", "", []),
    ],
)  # fmt: skip
def test_bare_calls_are_told_from_text(text: str, content: str, calls: list[Any]) -> None:
    assert read("llama3", [text]) == (content, calls)
    assert read("llama3", list(text)) == (content, calls)


TEXTS = st.lists(
    st.sampled_from([CALL, AGAIN, "<tool_call>", "</tool_call>", " ", "\n", "<", "ab", '{"name"', "}"])
).map("".join)


@given(TEXTS, st.lists(st.integers(0, 400)), st.sampled_from(["hermes", "llama3"]))
def test_cuts_change_nothing(text: str, cuts: list[int], form: str) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(places)]
    assert read(form, parts) == read(form, [text])


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "time", "arguments": "{\\"a\\": 1}"}', ("time", '{"a": 1}')),
        ('{"name": "time", "arguments": "text"}', None),
        ('{"name": "time", "arguments": [1]}', None),
        ('{"name": "time", "arguments": {}, }', None),
        ('[{"name": "time"}]', None),
        ('{"name": 1}', None),
        ("{}", None),
        ("[" * 5000, None),
    ],
)
def test_call_is_a_name_and_an_object(text: str, call: tuple[str, str] | None) -> None:
    assert parse_call(text, {"time"}) == call


def engine(text: str, form: str = "hermes") -> Scripted:
    data = text.encode()
    scripted = Scripted(data[i : i + 3] for i in range(0, len(data), 3))
    scripted.tool_form = form
    scripted.render = _rendered  # type: ignore[method-assign]
    return scripted


async def _rendered(messages: Any, tools: Any = None) -> str:
    return json.dumps([list(messages), list(tools or ())])


def tooled(**fields: Any) -> dict[str, Any]:
    return script(tools=[WEATHER, TIME], max_tokens=200, **fields)


def test_plain_and_streamed_calls_are_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, engine(f"I look.\n{CALL}{AGAIN}")) as gate:
            plain, streamed = await gate.post(tooled()), await gate.post(tooled(stream=True))
            (choice,) = plain.json["choices"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I look.")
            calls = choice["message"]["tool_calls"]
            assert [call["function"] for call in calls] == [
                {"name": "weather", "arguments": ARGUMENTS},
                {"name": "time", "arguments": "{}"},
            ]
            deltas = [event["choices"][0]["delta"] for event in streamed.events]
            told = [call for delta in deltas for call in delta.get("tool_calls", ())]
            assert [call["index"] for call in told] == [0, 1]
            assert [call["function"] for call in told] == [call["function"] for call in calls]
            assert "".join(delta.get("content", "") for delta in deltas) == "I look."
            assert streamed.events[-1]["choices"][0]["finish_reason"] == "tool_calls"
            for reply in (plain, streamed):
                outcome = gate.receipt(reply.headers["Mesh-Serve"]).value.outcome
                assert outcome.tokens_delivered == outcome.tokens_out - 1  # all but the one without text

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_call_that_the_cap_cuts_is_text_and_said_to_be_cut(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        async with house(tmp_path, engine(CALL)) as gate:
            reply = await gate.post(script(tools=[WEATHER], max_tokens=10, stream=streamed))
            choices = [event["choices"][0] for event in reply.events] if streamed else reply.json["choices"]
            assert choices[-1]["finish_reason"] == "length"
            said = "".join((c.get("delta") or c.get("message") or {}).get("content") or "" for c in choices)
            assert said == CALL.encode()[:30].decode()

    asyncio.run(main())


def test_tools_that_must_not_be_called_are_not_shown_and_text_stays_text(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, engine(CALL)) as gate:
            reply = await gate.post(tooled(tool_choice="none", mesh={"disclose": True}))
            (choice,) = reply.json["choices"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)

    asyncio.run(main())


# GW-10
def test_openai_sdk_reads_calls_in_its_helper_and_hands_them_back(tmp_path: Path) -> None:
    def sync_calls(url: str) -> list[Any]:
        with openai.OpenAI(base_url=url + "/v1", api_key="none") as client:
            answer: Any = client.chat.completions.create(**tooled())
            return list(answer.choices[0].message.tool_calls)

    async def main() -> None:
        async with house(tmp_path, engine(CALL + AGAIN)) as gate, gate.sdk() as client:
            async with client.chat.completions.stream(**tooled()) as helper:
                async for _ in helper:
                    pass
                final = await helper.get_final_completion()
            message = final.choices[0].message
            assert message.content in (None, "")
            calls = message.tool_calls or []
            assert [(call.function.name, call.function.arguments) for call in calls] == [
                ("weather", ARGUMENTS),
                ("time", "{}"),
            ]
            assert [call.function.name for call in await asyncio.to_thread(sync_calls, gate.url)] == ["weather", "time"]
            # the whole turn goes back as the SDK keeps it
            said = [
                {"role": "user", "content": "hello"},
                message.model_dump(exclude={"parsed"}, exclude_none=True),
                *({"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in calls),
            ]
            for call in said[1]["tool_calls"]:
                call["function"].pop("parsed_arguments", None)
            answer: Any = await client.chat.completions.create(**{**tooled(), "messages": said})
            assert answer.choices[0].finish_reason == "tool_calls"

    asyncio.run(main())


def test_template_of_a_model_shows_tools_calls_and_results(tmp_path: Path) -> None:
    async def ask(gate: House, **fields: Any) -> Reply:
        return await gate.post({"model": "tiny", "max_tokens": 2, "temperature": 0, **fields})

    async def main() -> None:
        gguf = await GgufEngine.start(
            GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny", chat_template=HERMES, context_tokens=2048)
        )
        assert gguf.tool_form == "hermes"
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city":"x"}'}}
        rendered = await gguf.render([{"role": "user", "content": "hi"}], [WEATHER])
        assert '"name": "weather"' in rendered
        async with house(tmp_path / "house", gguf) as gate:
            bare, tools = await ask(gate, messages=messages), await ask(gate, messages=messages, tools=[WEATHER])
            assert tools.json["usage"]["prompt_tokens"] > bare.json["usage"]["prompt_tokens"] + 100
            messages += [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "5"},
            ]
            assert (await ask(gate, messages=messages, tools=[WEATHER])).status == 200

    asyncio.run(main())
