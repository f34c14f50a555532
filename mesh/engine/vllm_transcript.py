"""What a vLLM server sends, held against what was asked. Pure: events in, ids and faults out.

The server's word is not taken for anything that can be seen: every id is counted, the prompt that it says it read is
compared with the one it was sent, and `[DONE]` after an error is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mesh.engine.protocol import Scores, TokenSink, put_all
from mesh.engine.stops import StopMatcher
from mesh.engine.vllm_stream import Chunk, Usage, refuse, shown
from mesh.errors import EngineError, EngineFailed
from mesh.schema.request import ServeRequest


@dataclass(slots=True)
class Transcript:
    """One answer as it comes in. `take` gives the ids of a chunk that count; `finish` is set once it has ended.

    A stop string ends it at the id that completes it, whatever the server still sends; `piece` gives an id's bytes.
    `wanted` is of how many of the likeliest ids scores are asked for, None: none; `scores` then has one for each id.
    `cold`: nothing of the prompt may come from the server's prefix cache. `vocabulary` is the number of ids that
    there are, None where nobody knows.
    """

    request: ServeRequest
    prompt: Sequence[int]
    piece: Callable[[int], bytes]
    fingerprint: str | None  # what the server called itself at load
    wanted: int | None = None
    cold: bool = False
    vocabulary: int | None = None
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
        """Hand the ids of a chunk to the sink, with their scores where they are wanted. Of a chunk with an id that may
        not come, those before it count."""
        if self._plain and chunk.tokens is not None and (fit := self._fitting(chunk.tokens)):
            self.deliver(chunk.but(tokens=chunk.tokens[:fit], finish=None, stop=None), sink)
            chunk = chunk.but(tokens=chunk.tokens[fit:], prompt=None)
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
        if chunk.fingerprint is not None and chunk.fingerprint != self.fingerprint:
            self._check_same_server(chunk.fingerprint)
        if not self._began:
            self._began = True
            if chunk.prompt is None or chunk.tokens is None:
                refuse("no token ids although return_token_ids was asked for: too old, or no vLLM")
            if chunk.prompt != tuple(self.prompt):
                refuse(f"an answer to another prompt: of {len(self.prompt)} ids it read {len(chunk.prompt)}, or others")
        if self._ended:
            refuse("more after its finish_reason")
        if self.finish is not None:
            return []
        if chunk.tokens is None:
            refuse("a chunk without token_ids")
        self._came += len(chunk.tokens)
        new = self._take_plain(chunk.tokens) if self._plain and chunk.best is None else self._take_each(chunk)
        if chunk.finish is not None:
            self._end(chunk)
        return new

    def _fitting(self, tokens: Sequence[int]) -> int:
        """How many of these ids come before one that may not; 0 where there is none such or it is the first."""
        room = self.request.max_tokens - len(self.tokens)
        if self.vocabulary is not None and tokens and max(tokens) >= self.vocabulary:
            unknown = next(place for place, token in enumerate(tokens) if token >= self.vocabulary)
            return max(0, min(room, unknown))
        return room if 0 < room < len(tokens) else 0

    def _take_plain(self, tokens: Sequence[int]) -> list[int]:
        """Ids that nothing but their number can end, without log-probabilities."""
        if len(self.tokens) + len(tokens) > self.request.max_tokens:
            refuse(f"more than max_tokens {self.request.max_tokens} ids")
        if self.vocabulary is not None and tokens and max(tokens) >= self.vocabulary:
            refuse(f"id {max(tokens)}, outside the vocabulary of {self.vocabulary}")
        self.tokens += tokens
        self.margins += [None] * len(tokens)
        return list(tokens)

    def _take_each(self, chunk: Chunk) -> list[int]:
        assert chunk.tokens is not None
        new: list[int] = []
        for place, token in enumerate(chunk.tokens):
            if len(self.tokens) >= self.request.max_tokens:
                refuse(f"more than max_tokens {self.request.max_tokens} ids")
            new.append(token)
            self.tokens.append(token)
            best = None if chunk.best is None else chunk.best[place]
            self.margins.append(None if best is None else best[0] - best[1])
            if self.wanted is not None:
                if chunk.ranked is None or chunk.chosen is None:
                    refuse("no log-probabilities although logprobs was asked for")
                self.scores.append(Scores(chunk.chosen[place], chunk.ranked[place][: self.wanted]))
            if self._stops.push(self.piece(token)) or token in self._stop_ids:
                self.finish = "stop"
                break
        return new

    def close(self, usage: Usage | None) -> None:
        """The stream is over. Raises EngineFailed where the answer is not whole or was counted otherwise."""
        if self.finish is None:
            refuse("its last word before the answer ended")
        if usage is None:
            refuse("no usage although stream_options asked for it")
        if usage.fingerprint is not None and usage.fingerprint != self.fingerprint:
            self._check_same_server(usage.fingerprint)
        if usage.prompt_tokens != len(self.prompt):
            refuse(f"usage of {usage.prompt_tokens} prompt tokens, {len(self.prompt)} were given")
        if usage.completion_tokens != self._came:
            refuse(f"usage of {usage.completion_tokens} tokens, {self._came} came")
        if (usage.cached_tokens or 0) > usage.prompt_tokens:
            refuse(f"usage of {usage.cached_tokens} cached tokens in a prompt of {usage.prompt_tokens}")
        if self.cold and usage.cached_tokens:
            refuse(f"usage of {usage.cached_tokens} cached tokens under a salt of its own")
        self.cached = usage.cached_tokens

    def _end(self, chunk: Chunk) -> None:
        self._ended = True
        match chunk.finish:
            case "length":
                if self.finish is None and len(self.tokens) != self.request.max_tokens:
                    refuse(f"finish_reason length after {len(self.tokens)} of {self.request.max_tokens} ids")
                self.finish = self.finish or "length"
            case "stop":
                if type(chunk.stop) is str and self.finish is None:
                    refuse("a stop for a string that its ids do not spell")
                if self.request.sampling.ignore_eos and self.finish is None:
                    refuse("a stop although ignore_eos was asked for")
                if type(chunk.stop) is int and (not self.tokens or self.tokens[-1] != chunk.stop):
                    refuse("a stop for an id that is not its last")
                self.finish = "stop"
            case other:
                refuse(f"finish_reason {shown(str(other))}")

    def _check_same_server(self, fingerprint: str) -> None:
        if self.fingerprint is not None:
            refuse(f"an answer as {shown(fingerprint)}, it was {shown(self.fingerprint)} when it was measured")
