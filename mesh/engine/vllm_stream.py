"""What a vLLM server streams, taken apart and held against what was asked. Pure: bytes in, ids and faults out.

The server's word is not taken for anything that can be seen: every id is counted, the prompt that it says it read is
compared with the one it was sent, and `[DONE]` after an error is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec

from mesh.engine.protocol import Scores, TokenSink, put_all
from mesh.engine.stops import StopMatcher
from mesh.errors import EngineError, EngineFailed
from mesh.schema.limits import MAX_TOKEN_ID
from mesh.schema.request import ServeRequest

# The first event repeats the prompt's ids: some ten bytes each.
MAX_EVENT_BYTES: Final = 16 << 20
_LOGPROB_KEY: Final = "token_id:"


@dataclass(frozen=True, slots=True)
class Chunk:
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


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None  # None where the server was not started with what counts them
    fingerprint: str | None = None


_Ids = tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)], ...]


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


# Reads what it takes as `read_answer` does, at a tenth of the time.
_PLAIN: Final = msgspec.json.Decoder(_PlainEvent)


class Done:
    """The stream's last word. It ends a stream, it does not say that the answer is whole."""


DONE: Final = Done()
Event = Chunk | Usage | Done


class EventReader:
    """Server-sent events out of bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

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
            _fail(f"an event of over {MAX_EVENT_BYTES} bytes")


def read_event(data: bytes) -> Event:
    """One event's data. Raises EngineFailed naming the field at fault, or with the error that the server reports."""
    if data == b"[DONE]":
        return DONE
    try:
        plain = _PLAIN.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass  # it is another, or has a fault that is named below
    else:
        choice = plain.choices[0]
        return Chunk(
            choice.token_ids, choice.prompt_token_ids, None, None, None, choice.finish_reason, choice.stop_reason,
            plain.system_fingerprint,
        )  # fmt: skip
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        _fail("an event that is not JSON")
    if type(event) is not dict:
        _fail("an event that is not an object")
    if (error := event.get("error")) is not None:
        _fail(f"an error in mid-stream: {error_text(error)}")
    return read_answer(event)


def read_answer(answer: dict[str, Any]) -> Chunk | Usage:
    """A completion object, whole or a part of a stream."""
    fingerprint = answer.get("system_fingerprint")
    if fingerprint is not None and type(fingerprint) is not str:
        _fail("system_fingerprint that is not text")
    choices = answer.get("choices")
    if type(choices) is not list or len(choices) > 1:
        _fail("choices that are not a list of one")
    if not choices:
        return _usage(answer.get("usage"), fingerprint)
    choice = choices[0]
    if type(choice) is not dict or choice.get("index") != 0:
        _fail("a choice that is not the one asked for")
    tokens = _ids(choice, "token_ids")
    finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    if not (finish is None or type(finish) is str) or not (stop is None or type(stop) in (int, str)):
        _fail("finish_reason or stop_reason of a wrong type")
    ranked, chosen = _logprobs(choice.get("logprobs"), tokens)
    best = None if ranked is None else tuple(_best_two(entry) for entry in ranked)
    return Chunk(tokens, _ids(choice, "prompt_token_ids"), best, chosen, ranked, finish, stop, fingerprint)


def read_whole(answer: dict[str, Any]) -> tuple[Chunk, Usage]:
    """A completion object that is a whole answer. Raises EngineFailed naming the field at fault."""
    chunk = read_answer(answer)
    if not isinstance(chunk, Chunk):
        _fail("an answer without a choice")
    return chunk, _usage(answer.get("usage"), chunk.fingerprint)


def read_prompt_logprobs(answer: dict[str, Any], length: int) -> list[tuple[tuple[int, float], ...]]:
    """For each of a prompt's `length` ids but the first, the likeliest ids there with their log-probabilities, best
    first, two at least. Raises EngineFailed for what does not fit the prompt."""
    entries = answer["choices"][0].get("prompt_logprobs")
    if type(entries) is not list or len(entries) != length:
        _fail("prompt_logprobs that do not fit the prompt")
    ranked: list[tuple[tuple[int, float], ...]] = []
    for entry in entries[1:]:
        try:
            pairs = [(int(key), value["logprob"]) for key, value in entry.items()]
        except (AttributeError, ValueError, TypeError, KeyError):
            _fail("prompt_logprobs that are not by token id")
        if len(pairs) < 2 or not all(_is_finite(value) for _, value in pairs):
            _fail("prompt_logprobs that are not two numbers or more")
        ranked.append(tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))))
    return ranked


def error_text(error: Any) -> str:
    """What kind of error it is. Its message is left out: it may quote the prompt."""
    if not isinstance(error, dict):
        return type(error).__name__ if not isinstance(error, str) else _plain(error)
    named = [f"{name} {_plain(str(error[name]))}" for name in ("type", "code", "param") if error.get(name) is not None]
    return ", ".join(named) or "an error without a type"


def _plain(text: str) -> str:
    return text if text.isprintable() and len(text) <= 80 else ascii(text[:80])


def _fail(fault: str) -> NoReturn:
    raise EngineFailed(f"vllm server: sent {fault}")


def _ids(choice: dict[str, Any], name: str) -> tuple[int, ...] | None:
    ids = choice.get(name)
    if ids is None:
        return None
    if type(ids) is not list or not all(type(i) is int and 0 <= i <= MAX_TOKEN_ID for i in ids):
        _fail(f"{name} that are not token ids")
    return tuple(ids)


def _usage(usage: Any, fingerprint: str | None) -> Usage:
    if type(usage) is not dict:
        _fail("neither a choice nor usage")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else None
    prompt: Any = usage.get("prompt_tokens")
    completion: Any = usage.get("completion_tokens")
    if not all(type(count) is int and count >= 0 for count in (prompt, completion, 0 if cached is None else cached)):
        _fail("usage that does not count tokens")
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
        _fail("logprobs that do not fit the ids")
    ranked: list[tuple[tuple[int, float], ...]] = []
    for entry in top:
        if type(entry) is not dict or not all(
            key.startswith(_LOGPROB_KEY) and _is_finite(value) for key, value in entry.items()
        ):
            _fail("logprobs that are not by token id")
        try:
            pairs = [(int(key.removeprefix(_LOGPROB_KEY)), value) for key, value in entry.items()]
        except ValueError:
            _fail("logprobs that are not by token id")
        ranked.append(tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))))
    if not all(map(_is_finite, chosen)):
        _fail("logprobs that are not numbers")
    return tuple(ranked), tuple(chosen)


def _best_two(entry: tuple[tuple[int, float], ...]) -> tuple[float, float] | None:
    return (entry[0][1], entry[1][1]) if len(entry) > 1 else None


def _is_finite(value: Any) -> bool:
    """JSON as Python reads it has NaN and infinities, of which no distance can be taken."""
    return type(value) is float and math.isfinite(value)


@dataclass(slots=True)
class Transcript:
    """One answer as it comes in. `take` gives the ids of a chunk that count; `finish` is set once it has ended.

    A stop string ends it at the id that completes it, whatever the server still sends; `piece` gives an id's bytes.
    `wanted` is of how many of the likeliest ids scores are asked for, None: none; `scores` then has one for each id.
    `cold`: nothing of the prompt may come from the server's prefix cache.
    """

    request: ServeRequest
    prompt: Sequence[int]
    piece: Callable[[int], bytes]
    fingerprint: str | None  # what the server called itself at load
    wanted: int | None = None
    cold: bool = False
    tokens: list[int] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    finish: str | None = None
    cached: int | None = None
    _stops: StopMatcher = field(init=False)
    _stop_ids: frozenset[int] = field(init=False)
    _plain: bool = field(init=False)
    _began: bool = False
    _came: int = 0  # ids that the server sent, those after a stop string too
    _ended: bool = False  # the server said how it ended

    def __post_init__(self) -> None:
        self._stops = StopMatcher(self.request.sampling.stop)
        self._stop_ids = frozenset(self.request.sampling.stop_ids)
        self._plain = self.wanted is None and not self.request.sampling.stop and not self._stop_ids

    def deliver(self, chunk: Chunk, sink: TokenSink) -> None:
        """Hand the ids of a chunk to the sink, with their scores where they are wanted."""
        before = len(self.tokens)
        new = self.take(chunk)
        try:
            if self.wanted is None:
                put_all(sink, new)
            else:
                for place, token in enumerate(new, before):
                    sink.put(token, self.scores[place])
        except EngineError:
            raise
        except Exception as e:  # noqa: BLE001 - whatever the sink's fault is, the serve has an end
            raise EngineFailed(f"vllm engine: the sink failed: {type(e).__name__}") from None

    def take(self, chunk: Chunk) -> list[int]:
        """Raises EngineFailed where the server broke one of its promises."""
        self._check_same_server(chunk.fingerprint)
        if not self._began:
            self._began = True
            if chunk.prompt is None or chunk.tokens is None:
                _fail("no token ids although return_token_ids was asked for: too old, or no vLLM")
            if chunk.prompt != tuple(self.prompt):
                _fail(f"an answer to another prompt: of {len(self.prompt)} ids it read {len(chunk.prompt)}, or others")
        if self._ended:
            _fail("more after its finish_reason")
        if self.finish is not None:
            return []
        if chunk.tokens is None:
            _fail("a chunk without token_ids")
        self._came += len(chunk.tokens)
        new = self._take_plain(chunk.tokens) if self._plain and chunk.best is None else self._take_each(chunk)
        if chunk.finish is not None:
            self._end(chunk)
        return new

    def _take_plain(self, tokens: Sequence[int]) -> list[int]:
        """Ids that nothing but their number can end, without log-probabilities."""
        if len(self.tokens) + len(tokens) > self.request.max_tokens:
            _fail(f"more than max_tokens {self.request.max_tokens} ids")
        for token in tokens:
            self.piece(token)  # refuses one that the vocabulary does not have
        self.tokens += tokens
        self.margins += [None] * len(tokens)
        return list(tokens)

    def _take_each(self, chunk: Chunk) -> list[int]:
        assert chunk.tokens is not None
        new: list[int] = []
        for place, token in enumerate(chunk.tokens):
            if len(self.tokens) >= self.request.max_tokens:
                _fail(f"more than max_tokens {self.request.max_tokens} ids")
            new.append(token)
            self.tokens.append(token)
            best = None if chunk.best is None else chunk.best[place]
            self.margins.append(None if best is None else best[0] - best[1])
            if self.wanted is not None:
                if chunk.ranked is None or chunk.chosen is None:
                    _fail("no log-probabilities although logprobs was asked for")
                self.scores.append(Scores(chunk.chosen[place], chunk.ranked[place][: self.wanted]))
            if self._stops.push(self.piece(token)) or token in self._stop_ids:
                self.finish = "stop"
                break
        return new

    def close(self, usage: Usage | None) -> None:
        """The stream is over. Raises EngineFailed where the answer is not whole or was counted otherwise."""
        if self.finish is None:
            _fail("its last word before the answer ended")
        if usage is None:
            _fail("no usage although stream_options asked for it")
        self._check_same_server(usage.fingerprint)
        if usage.prompt_tokens != len(self.prompt):
            _fail(f"usage of {usage.prompt_tokens} prompt tokens, {len(self.prompt)} were given")
        if usage.completion_tokens != self._came:
            _fail(f"usage of {usage.completion_tokens} tokens, {self._came} came")
        if (usage.cached_tokens or 0) > usage.prompt_tokens:
            _fail(f"usage of {usage.cached_tokens} cached tokens in a prompt of {usage.prompt_tokens}")
        if self.cold and usage.cached_tokens:
            _fail(f"usage of {usage.cached_tokens} cached tokens under a salt of its own")
        self.cached = usage.cached_tokens

    def _end(self, chunk: Chunk) -> None:
        self._ended = True
        match chunk.finish:
            case "length":
                if self.finish is None and len(self.tokens) != self.request.max_tokens:
                    _fail(f"finish_reason length after {len(self.tokens)} of {self.request.max_tokens} ids")
                self.finish = self.finish or "length"
            case "stop":
                if type(chunk.stop) is str and self.finish is None:
                    _fail("a stop for a string that its ids do not spell")
                if self.request.sampling.ignore_eos and self.finish is None:
                    _fail("a stop although ignore_eos was asked for")
                if type(chunk.stop) is int and (not self.tokens or self.tokens[-1] != chunk.stop):
                    _fail("a stop for an id that is not its last")
                self.finish = "stop"
            case other:
                _fail(f"finish_reason {_plain(str(other))}")

    def _check_same_server(self, fingerprint: str | None) -> None:
        if fingerprint is not None and self.fingerprint is not None and fingerprint != self.fingerprint:
            _fail(f"an answer as {_plain(fingerprint)}, it was {_plain(self.fingerprint)} when it was measured")
