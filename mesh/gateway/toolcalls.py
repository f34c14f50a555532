"""Calls of tools in what a model says, told apart from its text, whole or as it streams.

Two forms are known, those that templates show most: `<tool_call>{...}</tool_call>` (Hermes, Qwen), and an answer that
is nothing but `{"name": ..., "parameters": {...}}` (Llama 3). A call goes out once it is complete and names a tool of
the request; what looks like a call and is none stays text, so that nothing a model said is lost. White space next to a
call belongs to neither.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Protocol

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS = ("arguments", "parameters")
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"

Delta = dict[str, Any]


class Reader(Protocol):
    """What is said goes in in order; OpenAI's deltas come out. `holding`: some of it has not come out yet. `calls` is
    how many calls have."""

    calls: int

    @property
    def holding(self) -> bool: ...

    def push(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]: ...


def reader_of(form: str, names: Collection[str], prefix: str) -> Reader:
    """A reader of one answer in a template's `form`. `prefix` begins the ids of its calls."""
    return (_Tagged if form == "hermes" else _Bare)(names, prefix)


class _Calls:
    """The deltas of calls, numbered."""

    def __init__(self, names: Collection[str], prefix: str) -> None:
        self._names = names
        self._prefix = prefix
        self.calls = 0

    def _delta(self, name: str, arguments: str) -> Delta:
        call = {
            "index": self.calls,
            "id": f"{self._prefix}{self.calls}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self.calls += 1
        return {"tool_calls": [call]}


class _Tagged(_Calls):
    """`<tool_call>` and `</tool_call>` around each."""

    def __init__(self, names: Collection[str], prefix: str) -> None:
        super().__init__(names, prefix)
        self._held = ""
        self._inside = False
        self._gap = ""  # the white space before the call that was opened last
        self._searched = 0  # of what is held of it
        self._after_call = False

    @property
    def holding(self) -> bool:
        return self._inside or bool(self._held)

    def push(self, text: str) -> list[Delta]:
        self._held += text
        out: list[Delta] = []
        while (at := self._held.find(_CLOSE if self._inside else _OPEN, self._searched)) >= 0:
            if self._inside:
                out += self._called(self._held[:at], _CLOSE)
                self._held = self._held[at + len(_CLOSE) :]
            else:
                said = self._held[:at].rstrip(_BLANK)
                out += self._say(said)
                self._gap, self._held = self._held[len(said) : at], self._held[at + len(_OPEN) :]
            self._inside = not self._inside
            self._searched = 0
        if self._inside:
            self._searched = max(0, len(self._held) - len(_CLOSE) + 1)
        else:
            cut = len(self._held) - _overlap(self._held, _OPEN)
            cut = len(self._held[:cut].rstrip(_BLANK))  # the rest may stand before a call
            out += self._say(self._held[:cut])
            self._held = self._held[cut:]
        return out

    def finish(self) -> list[Delta]:
        """What is left; a call whose end the model left out is one if it is whole."""
        rest, self._held = self._held, ""
        inside, self._inside = self._inside, False
        return self._called(rest, "") if inside else self._say(rest)

    def _called(self, body: str, close: str) -> list[Delta]:
        call = parse_call(body, self._names)
        if call is None:
            return self._say(self._gap + _OPEN + body + close)
        self._after_call = True
        return [self._delta(*call)]

    def _say(self, text: str) -> list[Delta]:
        if self._after_call:
            text = text.lstrip(_BLANK)
        if not text:
            return []
        self._after_call = False
        return [{"content": text}]


class _Bare(_Calls):
    """An answer that is a call, or several with `;` between them. Whether it is shows at its first character, whether
    it holds at its end."""

    def __init__(self, names: Collection[str], prefix: str) -> None:
        super().__init__(names, prefix)
        self._held = ""
        self._is_text = False

    @property
    def holding(self) -> bool:
        return bool(self._held)

    def push(self, text: str) -> list[Delta]:
        if not self._is_text:
            self._held += text
            first = self._held.lstrip(_BLANK)[:1]
            self._is_text = first not in ("", "{")
            text = ""
            if self._is_text:
                text, self._held = self._held, ""
        return _texts(text)

    def finish(self) -> list[Delta]:
        rest, self._held = self._held, ""
        calls = []
        at, end = _skip(rest, 0), len(rest.rstrip(_BLANK))
        while at < end:
            try:
                _, stop = _DECODER.raw_decode(rest, at)
            except (ValueError, RecursionError):
                return _texts(rest)
            call = parse_call(rest[at:stop], self._names)
            if call is None:
                return _texts(rest)
            calls.append(call)
            at = _skip(rest, stop)
            if rest[at : at + 1] == ";":
                at = _skip(rest, at + 1)
        return [self._delta(*call) for call in calls] if calls else _texts(rest)


def parse_call(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """The function's name and its arguments as the model spelled them; None where `text` is no call of one of
    `names`."""
    try:
        members = {key: (value, raw) for key, value, raw in _members(text.strip(_BLANK))}
    except (ValueError, RecursionError):
        return None
    name = members.get("name", (None, ""))[0]
    if type(name) is not str or name not in names:
        return None
    value, raw = next((members[key] for key in _ARGUMENTS if key in members), ({}, "{}"))
    if type(value) is str:  # some models write the object as text
        raw = value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return (name, raw) if type(value) is dict else None


def _members(text: str) -> Iterator[tuple[str, Any, str]]:
    """The members of the JSON object that `text` is, each with its value's own spelling. Raises ValueError."""
    json.loads(text)  # the whole is json, so that what follows need not look for what cannot be there
    if not text.startswith("{"):
        raise ValueError
    at = _skip(text, 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, at)
        yield key, value, text[at:end]
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _overlap(text: str, word: str) -> int:
    """How much of `word` the text ends with, less than all of it."""
    return next((n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0)


def _texts(text: str) -> list[Delta]:
    return [{"content": text}] if text else []
