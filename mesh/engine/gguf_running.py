"""A serve that is in the child, what comes of it, and what none can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh.engine import gguf_frames as frames
from mesh.engine.call_off import CallOff
from mesh.engine.gguf_process import ChildProcess, Message
from mesh.engine.gguf_watch import SERVES, Watch
from mesh.engine.protocol import CheckResult, Scores, Served, ServingEngine, TokenSink, undecided
from mesh.errors import EngineError, EngineFailed
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import ServeRequest, pack_ids


class Nobody:
    """A sink of what makes no ids."""

    def __init__(self) -> None:
        self.cancelled = CallOff()

    def put(self, token: int, scores: Scores | None = None) -> None:
        raise EngineFailed("engine pipe: ids of an output that is only checked")


@dataclass(slots=True)
class Running:
    """`done` gets how it ended, or why it did not end well. `options` is how many a decision is between, 0 where it is
    none; `known` how many ids an output has that is only checked."""

    sink: TokenSink
    vocabulary: int
    done: asyncio.Future[str]
    options: int = 0
    known: int = 0
    tokens: list[int] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)
    decided: tuple[float, ...] | None = None
    checked: CheckResult | None = None

    def take(self, token: int, margin: float | None, scores: Scores | None) -> None:
        """One more id. Raises EngineFailed for one that no vocabulary of this size has."""
        if self.done.done():
            return
        if token >= self.vocabulary:
            raise EngineFailed(f"engine pipe: id {token} outside the vocabulary of {self.vocabulary}")
        self.tokens.append(token)
        self.margins.append(margin)
        try:
            if scores is None:
                self.sink.put(token)
            else:
                self.sink.put(token, scores)
        except Exception as e:  # noqa: BLE001 - one serve's sink must not end the others
            self.done.set_exception(EngineFailed(f"gguf engine: the sink failed: {type(e).__name__}"))

    def decide(self, logprobs: tuple[float, ...]) -> None:
        """The decision. Raises EngineFailed for one between other options."""
        if self.done.done():
            return
        if len(logprobs) != self.options:
            raise EngineFailed(f"engine pipe: {len(logprobs)} log-probabilities for {self.options} options")
        self.decided = logprobs
        self.end("stop")

    def check(self, result: CheckResult) -> None:
        """What came of a check."""
        if not self.done.done():
            self.checked = result
            self.end("stop")

    def result(self, reason: str | None) -> CheckResult:
        """The same after it ended; with a `reason` it decides nothing. Raises EngineFailed where it ended without."""
        if self.checked is None:
            raise EngineFailed("gguf engine: a check ended without a result")
        return self.checked if reason is None else undecided(self.checked, reason)

    def served(self, finish: str, tokens_in: int, engine: ServingEngine) -> Served:
        """What it came to on `engine`, after it ended as `finish`."""
        decision = None if self.decided is None else max(range(self.options), key=self.decided.__getitem__)
        outcome = ServeOutcome.of(
            finish=finish, counted_by="engine", tokens_in=tokens_in, tokens_out=len(self.tokens),
            tokens_accepted=len(self.tokens), cache_hit_tokens=0, spec_proposed=0, spec_accepted=0,
            delivered_fidelity=int(engine.fidelity), weights_digest=engine.weights_digest, precision=engine.precision,
            decision=decision,
        )  # fmt: skip
        known = tuple(margin for margin in self.margins if margin is not None)
        margins = known if len(known) == len(self.tokens) else None
        return Served(tuple(self.tokens), outcome, margins, self.decided)

    def end(self, ending: str | EngineError) -> None:
        """`ending` is its finish, or why it has none."""
        if self.done.done():
            return
        if isinstance(ending, EngineError):
            self.done.set_exception(ending)
        else:
            self.done.set_result(ending)


class Serves:
    """Those that are in the child, and what they are told by."""

    def __init__(self) -> None:
        self._running: dict[int, Running] = {}

    async def run(self, child: ChildProcess, watch: Watch, number: int, message: Message, running: Running) -> str:
        """Have `child` do `message` as its number `number`. Returns its finish; raises EngineError where it has
        none."""
        sink = running.sink
        if sink.cancelled.is_set():
            return "cancelled"
        self._running[number] = running
        watch.owe(SERVES)
        child.send({**message, "serve": number})
        cancelled: asyncio.Future[Any] = asyncio.ensure_future(sink.cancelled.wait())
        endings: set[asyncio.Future[Any]] = {running.done, cancelled}
        try:
            await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            if not running.done.done():
                child.send({"op": "cancel", "serve": number})
            return await running.done
        finally:
            cancelled.cancel()
            del self._running[number]
            if not self._running:
                watch.settle(SERVES)
            # where this task was cancelled or its sink failed the child need not go on
            done = running.done
            if not done.done() or done.cancelled() or done.exception() is not None:
                child.send({"op": "cancel", "serve": number})

    def take(self, message: Message) -> None:
        """What the child says of one or several. Raises EngineFailed for what no right child says."""
        match message["op"]:
            case "step":
                for serve, token, margin, scores in frames.unpack_step(message["tokens"]):
                    if (running := self._running.get(serve)) is not None:
                        running.take(token, margin, scores)
                return
            case "alive":
                return
            case "done" if message["finish"] not in frames.FINISHES:
                raise EngineFailed("engine pipe: done.finish is none that a child may report")
        running = self._running.get(message["serve"])
        if running is None:
            return
        match message["op"]:
            case "decided":
                running.decide(frames.unpack_logprobs(message["logprobs"]))
            case "checked":
                running.check(frames.unpack_check(message, running.known))
            case "done":
                running.end(message["finish"])
            case "failed":
                running.end(EngineFailed(f"gguf engine: {message['reason']}"))

    def fail(self, reason: EngineError) -> None:
        for running in self._running.values():
            running.end(type(reason)(str(reason)))


def serve_message(
    request: ServeRequest, prompt: Sequence[int], scores: int | None, grammar: str | None
) -> dict[str, Any]:
    """What the child is told of a serve, but for its number."""
    return {
        "op": "serve", "prompt": pack_ids(prompt), "max_tokens": request.max_tokens,
        "sampling": request.sampling.to_map(), "scores": -1 if scores is None else scores, "grammar": grammar or "",
    }  # fmt: skip


def check_message(
    request: ServeRequest, prompt: Sequence[int], output: Sequence[int], grammar: str | None, *, cut: bool
) -> dict[str, Any]:
    """The same of a known output."""
    message = serve_message(request, prompt, None, grammar)
    return {**message, "op": "check", "output": pack_ids(output), "cut": cut}


def decide_message(request: ServeRequest, prompt: Sequence[int], options: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The same of a decision."""
    packed = [pack_ids(option) for option in options]
    return {"op": "decide", "prompt": pack_ids(prompt), "options": packed, "ending": not request.sampling.ignore_eos}


def refusal_of(request: ServeRequest, vocabulary: int, context_tokens: int) -> str | None:
    """Why a GGUF engine cannot do what the request asks, naming the field; None where it can."""
    if any(pair[0] >= vocabulary for pair in request.sampling.logit_bias):
        return f"logit_bias: names an id that the vocabulary of {vocabulary} does not have"
    if request.prompt_tokens < 1:
        return "prompt: empty, there is nothing to go on from"
    needed = request.prompt_tokens + request.max_tokens
    if needed > context_tokens:
        return f"max_tokens: prompt and output need {needed} tokens, the context holds {context_tokens}"
    return None


def fault_of(request: ServeRequest, payload: Sequence[int], vocabulary: int) -> str | None:
    """Why a payload is not the one of its request; None where it may be."""
    if len(payload) != request.prompt_tokens:
        return f"{len(payload)} prompt ids, the request says {request.prompt_tokens}"
    if not all(0 <= token < vocabulary for token in payload):
        return f"a prompt id is outside the vocabulary of {vocabulary}"
    return None


def unchecked_of(prompt: Sequence[int], output: Sequence[int], vocabulary: int, context_tokens: int) -> str | None:
    """Why an output cannot be held against a model; None where it can."""
    if not all(0 <= token < vocabulary for token in output):
        return f"an id of the output is outside the vocabulary of {vocabulary}"
    if len(prompt) + len(output) > context_tokens:
        return f"prompt and output have {len(prompt) + len(output)} ids, the context holds {context_tokens}"
    return None
