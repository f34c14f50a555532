"""A model's chat template, seen from the gateway's side: rendered in a process of its own (`template_child`).

The template came with the model, so it is a program from strangers, and the gateway's process holds the signing key. A
child that takes too long, too much memory or falls over costs the conversation it was rendering, and nobody else's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mesh.engine.chat_template import TOOL_FORMS
from mesh.engine.gguf_process import ChildProcess, Message
from mesh.engine.template_child import FROM_CHILD, MAX_FRAME_BYTES, MAX_INPUT_BYTES
from mesh.errors import BadRequest, EngineError, EngineFailed, EngineUnavailable, EngineUnsupported, Overloaded
from mesh.schema.ids import ContentId

log = logging.getLogger(__name__)

RENDER_S: Final = 10.0  # that one conversation may take
COMPILE_S: Final = 30.0  # the same for the start of a child: Python, Jinja and the template
TURN_S: Final = 30.0  # that a conversation waits for those before it
AGAIN_S: Final = 60.0  # before a template that ended its child while it was compiled is tried once more

BOOT: Final = "import sys; sys.path[:] = sys.argv[2:]; from mesh.engine.template_child import main; main()"


async def render_chat(
    template: TemplateProcess | None,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    where: str,
) -> str:
    """`TextEngine.render` over the template of `where` (a model file or folder), None where it has none."""
    if not messages:
        raise BadRequest("messages: empty, expected at least one", param="messages")
    if template is None:
        raise BadRequest(
            f"chat template: {where} has none and none is configured; give it a prompt instead",
            code="no_chat_template", param="messages",
        )  # fmt: skip
    return await template.render(messages, tools)


class TemplateProcess:
    """Made by `start`. One conversation is rendered at a time, in the order they come; a child that ended is started
    again by the next one. `digest` is of the template as it is in the file, `tool_form` how it shows tools (see
    `ChatTemplate`)."""

    def __init__(self, source: str, *, bos: str, eos: str, render_s: float, compile_s: float) -> None:
        self.digest = ContentId.of_bytes(source.encode())
        self.tool_form: str | None = None
        self._source, self._tokens = source, {"bos": bos, "eos": eos}
        self._render_s, self._compile_s = render_s, compile_s
        self._child: ChildProcess | None = None
        self._answer: asyncio.Future[Message] | None = None
        self._expected: tuple[str, ...] = ()  # what it may answer
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[str] | None = None
        self._fault: str | None = None  # how the last child ended before it had compiled the template
        self._fault_until = 0.0  # monotonic seconds
        self._closed = False

    @classmethod
    async def start(
        cls, source: str, *, bos: str, eos: str, render_s: float = RENDER_S, compile_s: float = COMPILE_S
    ) -> TemplateProcess:
        """`bos` and `eos` are the spelling of the control tokens. A template that is no good is told to those who
        chat, and to the log. Raises EngineUnsupported where Jinja is not installed, EngineFailed where no process can
        be started."""
        process = cls(source, bos=bos, eos=eos, render_s=render_s, compile_s=compile_s)
        try:
            await process._begin()
        except BadRequest as e:
            log.warning("%s", e)
        except BaseException:
            await process.close()
            raise
        return process

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The prompt text up to where the assistant speaks. Raises BadRequest, code `template_error`, with the
        template's own words where it refuses and with what happened where it had to be stopped; Overloaded where those
        before it take too long."""
        message = {"op": "render", "messages": _json(messages), "tools": _json(tools or ())}
        size = len(message["messages"]) + len(message["tools"])
        if size > MAX_INPUT_BYTES:
            raise _refused(f"a conversation of {size} bytes, at most {MAX_INPUT_BYTES} are rendered")
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            raise Overloaded("chat template: conversations before this one take too long to render") from None
        # a client that leaves ends its wait and not the child, which answers in turn
        self._running = asyncio.create_task(self._render(message))
        self._running.add_done_callback(self._ran)
        return await asyncio.shield(self._running)

    async def close(self) -> None:
        self._closed = True
        if self._running is not None:
            if self._child is not None:
                self._child.kill(EngineUnavailable("chat template: closed"))
            await asyncio.wait({self._running})
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    def _ran(self, task: asyncio.Task[str]) -> None:
        self._running = None
        self._turn.release()
        if not task.cancelled():
            task.exception()  # a caller that is gone asks for it no more

    async def _render(self, message: Message) -> str:
        if self._child is None:
            await self._begin()
        answer = await self._ask(message, self._render_s, "render this conversation", ("rendered", "refused"))
        if answer["op"] == "refused":
            raise BadRequest(answer["reason"], code="template_error", param="messages")
        text: str = answer["text"]
        return text

    async def _begin(self) -> None:
        """Start a child and have it compile. Raises BadRequest where the template is what ends it."""
        if self._fault is not None and time.monotonic() < self._fault_until:
            raise _refused(self._fault)
        self._child = await ChildProcess.start(
            self._on_message, self._on_end, boot=BOOT, known=FROM_CHILD, max_bytes=MAX_FRAME_BYTES, name="template"
        )
        self._fault = None
        try:
            message = {"op": "compile", "source": self._source, **self._tokens}
            answer = await self._ask(message, self._compile_s, "compile", ("compiled",))
        except BadRequest as e:
            self._fault, self._fault_until = str(e).removeprefix(_SUBJECT), time.monotonic() + AGAIN_S
            raise
        self.tool_form = answer["tool_form"] if answer["tool_form"] in TOOL_FORMS else None
        if answer["fault"]:
            log.warning("%s", answer["fault"])  # the child tells it to everyone who chats

    async def _ask(self, message: Message, limit_s: float, doing: str, expected: tuple[str, ...]) -> Message:
        child = self._child
        if self._closed or child is None:
            raise EngineUnavailable("chat template: closed")
        self._answer, self._expected = asyncio.get_running_loop().create_future(), expected
        try:
            child.send(message)
            async with asyncio.timeout(limit_s):
                return await self._answer
        except TimeoutError:
            fault = _refused(f"took more than {limit_s:g} s to {doing} and was stopped")
        except (EngineUnavailable, EngineUnsupported):
            raise
        except EngineError as e:
            raise _refused(f"could not {doing}: {e}") from None
        finally:
            self._answer = None
        log.warning("%s", fault)
        self._child = None
        child.kill(EngineFailed("template process: stopped"))
        await child.close()  # the next conversation finds it gone
        raise fault

    def _on_message(self, message: Message) -> None:
        if self._answer is None or self._answer.done() or message["op"] not in self._expected:
            raise EngineFailed(f"template pipe: {message['op']} that nobody asked for")
        self._answer.set_result(message)

    def _on_end(self, reason: EngineError) -> None:
        child, self._child = self._child, None
        if not self._closed:
            log.warning("%s%s", reason, "" if child is None else child.said)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason)


_SUBJECT: Final = "chat template: "


def _json(items: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps([dict(item) for item in items], ensure_ascii=False, separators=(",", ":")).encode()


def _refused(fault: str) -> BadRequest:
    return BadRequest(f"{_SUBJECT}{fault}", code="template_error", param="messages")
