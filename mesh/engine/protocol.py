"""What the mesh asks of an engine.

An engine is handed token ids and gives token ids back; it never reports energy. Its work is proportional to the tokens
it makes. Everything it says about itself (`EngineBlock`) is known before the serve and sealed with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeGuard, runtime_checkable

from mesh.engine.call_off import CallOff
from mesh.identity.shard import ShardIdentity
from mesh.identity.shard_route import ShardRoute
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity, Finish, ServeOutcome
from mesh.schema.request import ServeRequest

MAX_SCORES: Final = 20  # of the likeliest ids at one position: OpenAI's limit, and what a vLLM server gives unasked


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine gives back: all ids it made, in order, the terminating one included, and the outcome.

    `margins`, where the engine knows them, has one entry per token: the distance between the best two logits at that
    position, before sampling. 0.0 is an exact tie. None where a bias, penalty or grammar makes it meaningless.

    A typed decision has no tokens, `outcome.decision` says which option, and `decided` has the natural log-probability
    of each option, in their order.
    """

    tokens: tuple[int, ...]
    outcome: ServeOutcome
    margins: tuple[float, ...] | None = None
    decided: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural log-probabilities at one position, from the logits as the model made them: before biases, penalties,
    grammar, temperature and cuts. `chosen` is that of the id that was taken, `best` the likeliest ids with theirs, best
    first."""

    chosen: float
    best: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a known output is not what the engine makes after the ids before it. At the index `at` the output has the
    id `served` and the engine makes `expected`; None: that side has ended before. `margin` is the distance in logits
    (in natural log-probabilities, which is the same) between the engine's best two ids there: 0.0 is an exact tie, None
    unknown or, where a bias, penalty, grammar or draw stands between logits and choice, meaningless."""

    at: int
    served: int | None
    expected: int | None
    margin: float | None = None


CheckKind = Literal["agreed", "differs", "undecided"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a Checker says of a known output.

    agreed: it is what the engine makes, id by id, and it ends where the engine ends and not earlier; of one that was
    cut, that the engine makes it and has not ended before. `finish` and `accepted` (tokens) are then how the engine
    ends it, as in an outcome; None where it was cut.
    differs: `differences`, in order, the first of which is where another output begins.
    undecided: `reason`. What `differences` says may then be a score; it is no verdict.

    `compared` ids were held against the engine's; after a difference each is held against what the engine makes after
    the output's own ids, so that their share is one. Where a choice depends on more than the ids before it, nothing is
    compared after the first difference.
    """

    kind: CheckKind
    compared: int = 0
    differences: tuple[Difference, ...] = ()
    finish: Finish | None = None
    accepted: int | None = None
    reason: str | None = None


def undecided(result: CheckResult, reason: str) -> CheckResult:
    """What `result` compared, as a score and no verdict, for `reason`."""
    return replace(result, kind="undecided", finish=None, accepted=None, reason=reason)


class TokenSink(Protocol):
    """Where an engine puts tokens as it makes them, and where it hears that nobody wants more. One that has an
    attribute `scores_wanted` asks a ScoringEngine for scores; one whose attribute `taken_whole` is true hands nothing
    on before the end, so that an engine may put all tokens then; one whose attribute `cold` is true asks an engine that
    `runs_cold` to use nothing that it computed for others before."""

    cancelled: CallOff

    def put(self, token: int, scores: Scores | None = None) -> None:
        """Hand over the next committed id. Never blocks; what is put must be what `Served.tokens` says. `scores` come
        only where they are wanted."""
        ...


# The check of a protocol looks for each of its members, which shows when it is done for every request, and asks, in
# some versions of Python, the instance.
@functools.cache
def _has_text(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("render", "encode", "piece"))


@functools.cache
def _can_check(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("undecidable", "check"))


def has_text(engine: ServingEngine) -> TypeGuard[TextEngine]:
    """Whether `engine` is a TextEngine."""
    return _has_text(type(engine))


def can_check(engine: ServingEngine) -> TypeGuard[Checker]:
    """Whether `engine` is a Checker."""
    return _can_check(type(engine))


def tool_form(engine: ServingEngine) -> str | None:
    """In which form the template of `engine` shows tools and their calls (see `chat_template`); None where it shows
    none."""
    form: str | None = getattr(engine, "tool_form", None)
    return form


def identity_of(engine: ServingEngine) -> ShardIdentity | None:
    """What `engine` computes, axis by axis; None where it has none or not all of it is known."""
    identity: ShardIdentity | None = getattr(engine, "identity", None)
    return identity


def identity_gap_of(engine: ServingEngine) -> str | None:
    """Why `engine` has no identity, where it knows."""
    gap: str | None = getattr(engine, "identity_gap", None)
    return gap


def shard_route_of(engine: ServingEngine) -> ShardRoute | None:
    """Over which hosts `engine` computes, where it is a route of shards."""
    route: ShardRoute | None = getattr(engine, "shard_route", None)
    return route


def blueprint_of(engine: ServingEngine) -> bytes | None:
    """The BlueprintId that `engine` was started under; None where it was started under none."""
    found: bytes | None = getattr(engine, "blueprint_id", None)
    return found


def scores_wanted(sink: TokenSink) -> int | None:
    """How many of the likeliest ids `sink` wants scores of, beside the chosen one; None: no scores at all."""
    wanted: int | None = getattr(sink, "scores_wanted", None)
    return wanted


def taken_whole(sink: TokenSink) -> bool:
    """Whether nobody sees a token of `sink` before the last one is there."""
    return bool(getattr(sink, "taken_whole", False))


def put_all(sink: TokenSink, tokens: Sequence[int]) -> None:
    """Put several that came together, which a sink with a method `put_all` takes in one."""
    at_once: Callable[[Sequence[int]], None] | None = getattr(sink, "put_all", None)
    if at_once is not None and len(tokens) > 1:
        at_once(tokens)
        return
    for token in tokens:
        sink.put(token)


def pieces_of(piece: Callable[[int], bytes], tokens: Sequence[int]) -> list[bytes]:
    """The bytes of several ids, which a `piece` with a method `all` gives at once."""
    at_once: Callable[[Sequence[int]], list[bytes]] | None = getattr(piece, "all", None)
    return [piece(token) for token in tokens] if at_once is None else at_once(tokens)


def cold_wanted(sink: TokenSink) -> bool:
    """Whether nothing is to come out of a prefix cache."""
    return bool(getattr(sink, "cold", False))


def runs_cold(engine: ServingEngine) -> bool:
    """Whether `engine` heeds a sink that is `cold`."""
    return bool(getattr(engine, "runs_cold", False))


class ServingEngine(Protocol):
    """A backend. The attributes are constant while `process` is; an engine that restarts draws a new `process`."""

    backend_id: str
    recipe_id: str
    fidelity: Fidelity
    est_uj_per_token: int | None  # microjoules; None where nobody could say
    weights_digest: ContentId | None  # known before serving; what a grant is decided over
    template_digest: ContentId | None
    precision: str | None
    settings: Mapping[str, Any]  # everything that moves its numbers; digested into the receipt
    process: bytes  # 16 bytes, random per start
    context_tokens: int  # prompt and output together
    slots: int  # serves that may run at once

    def deterministic(self, request: ServeRequest) -> bool:
        """Whether this request would give the same ids again. False unless known."""
        ...

    def refusal(self, request: ServeRequest) -> str | None:
        """Why this engine cannot do what the request asks, naming the field; None where it can."""
        ...

    async def ready(self) -> None:
        """Check, before any intent is written, that a serve can start now: the process lives, the weights files are the
        ones that were digested. Raises EngineUnavailable or WeightsChanged."""
        ...

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        """Serve `prompt` (token ids). When `sink.cancelled` is set, stop within a token and return what was made with
        finish `cancelled`. Raises EngineFailed, EngineUnavailable or WeightsChanged."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that gives every id with its scores where the sink wants them."""

    max_scores: int  # of how many of the likeliest ids; -1: it turned out that it has none to give


class Checker(ServingEngine, Protocol):
    """An engine that can hold a known output against what it would make, for less than making it again."""

    def undecidable(self, request: ServeRequest) -> str | None:
        """Why no check of a serve of `request` can decide anything, as far as that is known before one runs; None where
        it can."""
        ...

    async def check(
        self, request: ServeRequest, prompt: Sequence[int], output: Sequence[int], *, cut: bool = False
    ) -> CheckResult:
        """Hold `output` (token ids) against what the engine makes of `prompt`. `cut`: its serve was cancelled, so that
        how it ends is not judged. It is done, and undecided, even where `undecidable` says why. Raises as `serve`
        does."""
        ...


@runtime_checkable
class Decider(Protocol):
    """An engine that makes typed decisions."""

    async def decide(
        self, request: ServeRequest, prompt: Sequence[int], options: Sequence[Sequence[int]], sink: TokenSink
    ) -> Served:
        """Score `options` (token ids, none empty) as ways to go on from `prompt`; the likeliest is the decision, of two
        that are equal the first. Unless `sampling.ignore_eos`, an option is scored with the end of the answer after it.
        Nothing is put into `sink`, which only says when nobody wants it any more. Raises as `serve` does."""
        ...


@runtime_checkable
class TextEngine(Protocol):
    """An engine that also owns the text side of its model: the chat template and the vocabulary."""

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The prompt text of a conversation that ends with the assistant's turn to speak. Raises BadRequest where the
        model has no template (code `no_chat_template`) or its template refuses the messages (`template_error`).
        `tools` are given only to an engine with a `tool_form`."""
        ...

    async def encode(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        """Token ids of `text`; with `special`, control tokens spelled in it count as such (rendered chats). `bare`
        leaves out the ids that the model wants in front of any text."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that one id adds to the text; control tokens add none. Raises BadRequest for an unknown id."""
        ...
