"""The conversation and the tools of a chat request, read into what a model's template takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from mesh.errors import BadRequest
from mesh.gateway.fields import Fields, kind

Message = Mapping[str, Any]  # as a chat template takes it

# `developer` is what newer clients call `system`; templates know the older name.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_NOT_YET = "not supported by this server"
MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_FUNCTION = "expected a function"


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """The conversation under `messages`. Calls in it have their arguments as values, not as text, which is what
    templates expect."""
    messages = fields.array("messages")
    if not messages:
        raise fields.fault("messages", "missing" if messages is None else "empty")
    return tuple(_message(item, f"messages[{i}]") for i, item in enumerate(messages))


def first_of_tools(messages: tuple[Message, ...]) -> str | None:
    """The name of the first field that only a template for tools can show; None where there is none."""
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            return f"messages[{i}].role"
        if "tool_calls" in message:
            return f"messages[{i}].tool_calls"
    return None


def read_tools(fields: Fields) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """The functions under `tools`, as templates take them, and the names of those whose calls are strict: held to their
    parameters."""
    tools = fields.array("tools") or []
    if len(tools) > MAX_TOOLS:
        raise fields.fault("tools", f"{len(tools)} of them, at most {MAX_TOOLS}")
    told = [_tool(item, f"tools[{i}]") for i, item in enumerate(tools)]
    read = tuple(tool for tool, _ in told)
    names = [tool["function"]["name"] for tool in read]
    if len(set(names)) != len(names):
        raise fields.fault("tools", "two have one name")
    return read, tuple(name for name, (_, strict) in zip(names, told, strict=True) if strict)


def plain(value: Any) -> Any:
    """JSON as a template takes it: numbers are read as exact decimals, which nothing that writes JSON knows."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def _object(item: Any, where: str) -> Fields:
    if type(item) is not dict:
        raise BadRequest(f"{where}: expected an object, got {kind(item)}", code="invalid_value", param=where)
    return Fields(item, within=where)


def _message(item: Any, where: str) -> Message:
    message = _object(item, where)
    role = message.text("role")
    if role not in ROLES:
        raise message.fault("role", f"expected one of {', '.join(ROLES)}" if role else "missing")
    content = message.take("content")
    if type(content) is list:
        # the parts of one message are its lines, as other servers read them
        content = "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    read: dict[str, Any] = {"role": ROLES[role]}
    calls = message.array("tool_calls") if role == "assistant" else None
    if calls:
        read["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
        content = "" if content is None else content
    if role == "tool":
        read["tool_call_id"] = message.text("tool_call_id")
        if read["tool_call_id"] is None:
            raise message.fault("tool_call_id", "missing")
    if type(content) is not str:
        raise message.wrong("content", "text or an array of text parts", content)
    message.refuse(("name", "refusal", "tool_calls", "tool_call_id", "function_call", "audio", "annotations"), _NOT_YET)
    message.done()
    return read | {"content": content}


def _part(item: Any, where: str) -> str:
    part = _object(item, where)
    part.only("type", ("text",), "only text parts are supported")
    text = part.text("text")
    if text is None:
        raise part.fault("text", "missing")
    part.done()
    return text


def _call(item: Any, where: str) -> dict[str, Any]:
    call = _object(item, where)
    call.only("type", ("function",), _FUNCTION)
    call.take("index")  # a client may hand back the deltas of a stream as they came
    function, call_id = call.object("function"), call.text("id")
    call.done()
    if function is None:
        raise call.fault("function", "missing")
    name, arguments = function.text("name"), function.text("arguments")
    function.done()
    if name is None or not _NAME.match(name):
        raise function.fault("name", "missing" if name is None else "not the name of a function")
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        values = None
    if type(values) is not dict:
        raise function.fault("arguments", "expected a json object in text")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": values}}


def _tool(item: Any, where: str) -> tuple[Mapping[str, Any], bool]:
    tool = _object(item, where)
    tool.only("type", ("function",), "only functions are supported")
    function = tool.object("function")
    tool.done()
    if function is None:
        raise tool.fault("function", "missing")
    name, description = function.text("name"), function.text("description")
    parameters = function.object("parameters")
    strict = function.flag("strict") or False
    function.done()
    if name is None or not _NAME.match(name):
        raise function.fault("name", "missing" if name is None else "expected 1 to 64 letters, digits and _.-")
    read: dict[str, Any] = {"name": name, "description": description or ""}
    read["parameters"] = {"type": "object", "properties": {}} if parameters is None else plain(parameters.rest())
    return {"type": "function", "function": read}, strict
