"""The process that runs a chat template: a program from strangers, kept away from the gateway and bounded here.

It reads frames and answers each in turn, so that what it is doing is never in doubt. Time is the parent's to watch; the
bounds on memory and files are set here, once everything that is needed has been imported.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from mesh.engine import frames
from mesh.engine.chat_template import ChatTemplate
from mesh.engine.child import become_child
from mesh.errors import BadRequest, EngineFailed, EngineUnsupported

MAX_INPUT_BYTES: Final = 16 * 1024 * 1024  # of a conversation and its tools as JSON, and of a template
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024  # of a rendered prompt
MEMORY_BYTES: Final = 512 * 1024 * 1024  # address space beyond what it starts with
_MAX_REASON_CHARS: Final = 2000
_HEAD_BYTES: Final = 1024  # what a frame has beside its text

MAX_FRAME_BYTES: Final = max(MAX_INPUT_BYTES, MAX_OUTPUT_BYTES) + _HEAD_BYTES

TO_CHILD: Final[frames.Known] = {
    "compile": {"source": str, "bos": str, "eos": str},
    "render": {"messages": bytes, "tools": bytes},  # JSON; tools: an array, empty where there are none
}
FROM_CHILD: Final[frames.Known] = {
    "compiled": {"fault": str, "tool_form": str},  # each empty where there is none
    "rendered": {"text": str},
    "refused": {"reason": str},
    "fault": {"kind": str, "reason": str},
}


def main() -> None:
    """`argv[1]` is the parent's process id."""
    reading, writing = become_child(int(sys.argv[1]))
    # the library has to be there before memory and files are bounded
    with suppress(ImportError):
        import jinja2.ext
        import jinja2.meta
        import jinja2.sandbox  # noqa: F401
    _bound()
    _serve(reading, writing)


def _bound() -> None:
    """No more memory than a conversation can need, and nothing on the disk: no file of its own, no image of a crash."""
    bounds = [(resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)]
    with suppress(OSError), open("/proc/self/statm", "rb") as file:  # where there is none, nothing can be added to it
        bounds.append((resource.RLIMIT_AS, int(file.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES))
    for what, most in bounds:
        with suppress(ValueError):  # where it already is lower
            resource.setrlimit(what, (most, most))


def _serve(reading: int, writing: int) -> NoReturn:
    reader = frames.FrameReader(TO_CHILD, max_bytes=MAX_FRAME_BYTES)
    template: ChatTemplate | None = None
    while data := os.read(reading, 1 << 20):
        for message in reader.feed(data):
            if message["op"] == "compile":
                try:
                    template = ChatTemplate(message["source"], bos=message["bos"], eos=message["eos"])
                except EngineUnsupported as e:
                    _send(writing, {"op": "fault", "kind": "unsupported", "reason": str(e)})
                    os._exit(3)
                _send(writing, _compiled(template))
            elif template is None:
                raise EngineFailed("template pipe: render before compile")
            else:
                _send(writing, _rendered(template, message["messages"], message["tools"]))
    os._exit(0)  # the parent closed the pipe, or is gone


def _compiled(template: ChatTemplate) -> dict[str, Any]:
    return {"op": "compiled", "fault": _short(template.fault or ""), "tool_form": template.tool_form or ""}


def _rendered(template: ChatTemplate, messages: bytes, tools: bytes) -> dict[str, Any]:
    try:
        text = template.render(json.loads(messages), json.loads(tools))
        size = len(text.encode())
    except BadRequest as e:
        return {"op": "refused", "reason": _short(str(e))}
    except MemoryError:
        return {"op": "refused", "reason": f"chat template: needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    if size > MAX_OUTPUT_BYTES:
        reason = f"chat template: made a prompt of {size} bytes, at most {MAX_OUTPUT_BYTES} are taken"
        return {"op": "refused", "reason": reason}
    return {"op": "rendered", "text": text}


def _short(reason: str) -> str:
    """A template's words, as far as they fit and are text."""
    words = reason if len(reason) <= _MAX_REASON_CHARS else reason[:_MAX_REASON_CHARS] + "..."
    return words.encode(errors="backslashreplace").decode()


def _send(writing: int, message: Mapping[str, Any]) -> None:
    data = memoryview(frames.pack_frame(dict(message)))
    try:
        while data:
            data = data[os.write(writing, data) :]
    except OSError:
        os._exit(0)  # nobody listens any more


if __name__ == "__main__":
    main()
