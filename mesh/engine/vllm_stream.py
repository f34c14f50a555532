"""What a vLLM server sends, taken apart. Pure: bytes in, events and faults out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec

from mesh.errors import EngineFailed
from mesh.schema.limits import MAX_TOKEN_ID
from mesh.schema.record import Record
from mesh.schema.value import TokenId

# The first event repeats the prompt's ids: some ten bytes each.
MAX_EVENT_BYTES: Final = 16 << 20
_LOGPROB_KEY: Final = "token_id:"
_DATA: Final = re.compile(rb"^data:[ ]*(.*)$", re.M)


class Chunk(Record):
    """Ids as they came, None where the server sent none at all. Log-probabilities have one entry per id: `best` the
    best two of that position, `ranked` all ids that came with theirs, best first, and `chosen` the one of the id
    itself. `prompt` is what the server says it read, in the first chunk."""

    tokens: tuple[int, ...] | None
    prompt: tuple[int, ...] | None = None
    best: tuple[tuple[float, float] | None, ...] | None = None
    chosen: tuple[float, ...] | None = None
    ranked: tuple[tuple[tuple[int, float], ...], ...] | None = None
    finish: str | None = None
    stop: int | str | None = None
    fingerprint: str | None = None


class Usage(Record):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None  # None where the server was not started with what counts them
    fingerprint: str | None = None


_Ids = tuple[TokenId, ...]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _PlainChoice(msgspec.Struct):
    """A choice as most events have it: the one asked for, without log-probabilities."""

    index: Literal[0]
    token_ids: _Ids | None = None
    prompt_token_ids: _Ids | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: None = None


class _PlainEvent(msgspec.Struct):
    choices: Annotated[list[_PlainChoice], msgspec.Meta(min_length=1, max_length=1)]
    system_fingerprint: str | None = None
    error: None = None


class _PlainDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _PlainUsage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _PlainDetails | None = None


class _PlainAnswer(_PlainEvent, kw_only=True):
    usage: _PlainUsage


class _StreamEvent(msgspec.Struct):
    """Of a stream: a choice, or none and the usage."""

    choices: Annotated[list[_PlainChoice], msgspec.Meta(max_length=1)]
    system_fingerprint: str | None = None
    error: None = None
    usage: _PlainUsage | None = None


# These read what they take as `read_answer` and `read_whole` do, at a tenth of the time.
_PLAIN: Final = msgspec.json.Decoder(_PlainEvent)
_STREAMED: Final = msgspec.json.Decoder(_StreamEvent)
_PLAIN_ANSWER: Final = msgspec.json.Decoder(_PlainAnswer)


class Done:
    """The stream's last word. It ends a stream, it does not say that the answer is whole."""


DONE: Final = Done()
Event = Chunk | Usage | Done


class EventReader:
    """Server-sent events out of bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def plain(self, data: bytes) -> list[Event] | None:
        """What `joined` makes of the events that `feed` would read out of `data`, in a few turns of C's; None where
        `feed` has to: not all of them are plain, or the lines are cut."""
        if self._rest or not data.endswith(b"\n"):
            return None
        lines = _DATA.findall(data)
        done = lines[-1:] == [b"[DONE]"]
        try:
            events = list(map(_STREAMED.decode, lines[:-1] if done else lines))
        except (msgspec.MsgspecError, RecursionError):
            return None
        told = _joined(events)
        if done and told is not None:
            told.append(DONE)
        return told

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that `data` completes. Raises EngineFailed for one that is malformed, an error, or too long."""
        if not self._rest and data.endswith(b"\n"):
            # whole lines, as a server that writes an event at a time sends them
            for line in data.split(b"\n"):
                if line.startswith(b"data:"):
                    yield read_event(line[5:].strip())
            return
        self._rest += data
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end]).rstrip(b"\r")
            del self._rest[: end + 1]
            if line.startswith(b"data:"):
                yield read_event(line[5:].strip())
        if len(self._rest) > MAX_EVENT_BYTES:
            refuse(f"an event of over {MAX_EVENT_BYTES} bytes")


def read_event(data: bytes) -> Event:
    """One event's data. Raises EngineFailed naming the field at fault, or with the error that the server reports."""
    if data == b"[DONE]":
        return DONE
    try:
        plain = _PLAIN.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass  # it is another, or has a fault that is named below
    else:
        return _chunk(plain)
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        refuse("an event that is not JSON")
    if type(event) is not dict:
        refuse("an event that is not an object")
    if (error := event.get("error")) is not None:
        refuse(f"an error in mid-stream: {error_text(error)}")
    return read_answer(event)


def joined(events: Sequence[Event]) -> Iterator[Event]:
    """The same with one chunk in place of those that followed one another without log-probabilities: whoever takes
    them has one turn for all, and what they come to is the same."""
    first = last = None  # of a run of chunks, whose ids are in `ids`
    ids: list[int] = []
    for event in events:
        if type(event) is not Chunk:
            if first is not None and last is not None:
                yield _run(first, last, ids)
                first = last = None
            yield event
        elif (
            last is not None and last.tokens and event.tokens and last.finish is None and last.stop is None
            and last.best is None and event.best is None and event.prompt is None
            and event.fingerprint == last.fingerprint
        ):  # fmt: skip
            ids += event.tokens
            last = event
        else:
            if first is not None and last is not None:
                yield _run(first, last, ids)
            first = last = event
            ids = list(event.tokens or ())
    if first is not None and last is not None:
        yield _run(first, last, ids)


def _joined(events: Sequence[_StreamEvent]) -> list[Event] | None:
    """The same of plain ones. None: one of them is nothing at all."""
    told: list[Event] = []
    last: _PlainChoice | None = None  # of a run, whose ids are in `ids`
    ids: list[int] = []
    prompt = fingerprint = None
    for event in events:
        choice = event.choices[0] if event.choices else None
        if (
            choice is not None and choice.token_ids and choice.prompt_token_ids is None
            and last is not None and last.token_ids and last.finish_reason is None and last.stop_reason is None
            and event.system_fingerprint == fingerprint
        ):  # fmt: skip
            ids += choice.token_ids
            last = choice
            continue
        if last is not None:
            told.append(_told(last, ids, prompt, fingerprint))
        last = choice
        if choice is not None:
            ids, prompt, fingerprint = list(choice.token_ids or ()), choice.prompt_token_ids, event.system_fingerprint
        elif event.usage is None:
            return None
        else:
            told.append(_counted(event.usage, event.system_fingerprint))
    if last is not None:
        told.append(_told(last, ids, prompt, fingerprint))
    return told


def _told(last: _PlainChoice, ids: Sequence[int], prompt: tuple[int, ...] | None, fingerprint: str | None) -> Chunk:
    """A run that ends with `last`."""
    tokens = None if last.token_ids is None else tuple(ids)
    return Chunk(tokens, prompt, None, None, None, last.finish_reason, last.stop_reason, fingerprint)


def _counted(usage: _PlainUsage, fingerprint: str | None) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(
        usage.prompt_tokens, usage.completion_tokens, None if details is None else details.cached_tokens, fingerprint
    )  # fmt: skip


def _run(first: Chunk, last: Chunk, ids: Sequence[int]) -> Chunk:
    return first if first is last else last.but(tokens=tuple(ids), prompt=first.prompt)


def _chunk(plain: _PlainEvent) -> Chunk:
    choice = plain.choices[0]
    return Chunk(
        choice.token_ids, choice.prompt_token_ids, None, None, None, choice.finish_reason, choice.stop_reason,
        plain.system_fingerprint,
    )  # fmt: skip


def read_answer(answer: dict[str, Any]) -> Chunk | Usage:
    """A completion object, whole or a part of a stream."""
    fingerprint = answer.get("system_fingerprint")
    if fingerprint is not None and type(fingerprint) is not str:
        refuse("system_fingerprint that is not text")
    choices = answer.get("choices")
    if type(choices) is not list or len(choices) > 1:
        refuse("choices that are not a list of one")
    if not choices:
        return _usage(answer.get("usage"), fingerprint)
    choice = choices[0]
    if type(choice) is not dict or choice.get("index") != 0:
        refuse("a choice that is not the one asked for")
    tokens = _ids(choice, "token_ids")
    finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    if not (finish is None or type(finish) is str) or not (stop is None or type(stop) in (int, str)):
        refuse("finish_reason or stop_reason of a wrong type")
    ranked, chosen = _logprobs(choice.get("logprobs"), tokens)
    best = None if ranked is None else tuple(_best_two(entry) for entry in ranked)
    return Chunk(tokens, _ids(choice, "prompt_token_ids"), best, chosen, ranked, finish, stop, fingerprint)


class _Tokenized(msgspec.Struct):
    tokens: list[TokenId]


_TOKENIZED: Final = msgspec.json.Decoder(_Tokenized)


def read_tokens(data: bytes | bytearray) -> list[int] | None:
    """The ids that /tokenize gave; None where these are none."""
    try:
        return _TOKENIZED.decode(data).tokens
    except (msgspec.MsgspecError, RecursionError):
        return None


def read_plain(data: bytes | bytearray) -> tuple[Chunk, Usage] | None:
    """What `read_whole` would make of a whole answer without log-probabilities; None where it is another, or has a
    fault that `read_whole` names."""
    try:
        plain = _PLAIN_ANSWER.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return _chunk(plain), _counted(plain.usage, plain.system_fingerprint)


def read_whole(answer: dict[str, Any]) -> tuple[Chunk, Usage]:
    """A completion object that is a whole answer. Raises EngineFailed naming the field at fault."""
    chunk = read_answer(answer)
    if not isinstance(chunk, Chunk):
        refuse("an answer without a choice")
    return chunk, _usage(answer.get("usage"), chunk.fingerprint)


def read_prompt_logprobs(answer: dict[str, Any], length: int) -> list[tuple[tuple[int, float], ...]]:
    """For each of a prompt's `length` ids but the first, the likeliest ids there with their log-probabilities, best
    first, two at least. Raises EngineFailed for what does not fit the prompt."""
    entries = answer["choices"][0].get("prompt_logprobs")
    if type(entries) is not list or len(entries) != length:
        refuse("prompt_logprobs that do not fit the prompt")
    ranked: list[tuple[tuple[int, float], ...]] = []
    for entry in entries[1:]:
        try:
            pairs = [(int(key), value["logprob"]) for key, value in entry.items()]
        except (AttributeError, ValueError, TypeError, KeyError):
            refuse("prompt_logprobs that are not by token id")
        if len(pairs) < 2 or not all(_is_finite(value) for _, value in pairs):
            refuse("prompt_logprobs that are not two numbers or more")
        ranked.append(tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))))
    return ranked


def error_text(error: Any) -> str:
    """What kind of error it is. Its message is left out: it may quote the prompt."""
    if not isinstance(error, dict):
        return type(error).__name__ if not isinstance(error, str) else shown(error)
    named = [f"{name} {shown(str(error[name]))}" for name in ("type", "code", "param") if error.get(name) is not None]
    return ", ".join(named) or "an error without a type"


def shown(text: str) -> str:
    """A server's word, for a terminal and a log."""
    return text if text.isprintable() and len(text) <= 80 else ascii(text[:80])


def refuse(fault: str) -> NoReturn:
    """Raises EngineFailed: the server sent this."""
    raise EngineFailed(f"vllm server: sent {fault}")


def _ids(choice: dict[str, Any], name: str) -> tuple[int, ...] | None:
    ids = choice.get(name)
    if ids is None:
        return None
    if type(ids) is not list or not all(type(i) is int and 0 <= i <= MAX_TOKEN_ID for i in ids):
        refuse(f"{name} that are not token ids")
    return tuple(ids)


def _usage(usage: Any, fingerprint: str | None) -> Usage:
    if type(usage) is not dict:
        refuse("neither a choice nor usage")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else None
    prompt: Any = usage.get("prompt_tokens")
    completion: Any = usage.get("completion_tokens")
    if not all(type(count) is int and count >= 0 for count in (prompt, completion, 0 if cached is None else cached)):
        refuse("usage that does not count tokens")
    return Usage(int(prompt), int(completion), cached, fingerprint)


def _logprobs(
    logprobs: Any, tokens: tuple[int, ...] | None
) -> tuple[tuple[tuple[tuple[int, float], ...], ...] | None, tuple[float, ...] | None]:
    """All ids at each position with theirs, best first, and the id's own."""
    if logprobs is None or tokens is None:
        return None, None
    top, chosen = (
        (logprobs.get(name) for name in ("top_logprobs", "token_logprobs")) if type(logprobs) is dict else ((), ())
    )
    if type(top) is not list or type(chosen) is not list or not len(top) == len(chosen) == len(tokens):
        refuse("logprobs that do not fit the ids")
    ranked: list[tuple[tuple[int, float], ...]] = []
    for entry in top:
        if type(entry) is not dict or not all(
            key.startswith(_LOGPROB_KEY) and _is_finite(value) for key, value in entry.items()
        ):
            refuse("logprobs that are not by token id")
        try:
            pairs = [(int(key.removeprefix(_LOGPROB_KEY)), value) for key, value in entry.items()]
        except ValueError:
            refuse("logprobs that are not by token id")
        ranked.append(tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))))
    if not all(map(_is_finite, chosen)):
        refuse("logprobs that are not numbers")
    return tuple(ranked), tuple(chosen)


def _best_two(entry: tuple[tuple[int, float], ...]) -> tuple[float, float] | None:
    return (entry[0][1], entry[1][1]) if len(entry) > 1 else None


def _is_finite(value: Any) -> bool:
    """JSON as Python reads it has NaN and infinities, of which no distance can be taken."""
    return type(value) is float and math.isfinite(value)
