"""A vLLM server behind the mesh: ids in, ids out, over its HTTP interface.

The server belongs to the operator, or is one of our own (`vllm_managed`). Either way it is a process that may be
restarted, replaced or reconfigured while we look elsewhere, so it is asked what it is before each serve, and what it
said at load is what it is held to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mesh.engine.grammars import Grammars
from mesh.engine.protocol import (
    CheckResult,
    Served,
    TokenSink,
    cold_wanted,
    scores_wanted,
    taken_whole,
    undecided,
)
from mesh.engine.same import check_same
from mesh.engine.server_port import KeptPort
from mesh.engine.vllm_answers import read_at_once, read_streamed
from mesh.engine.vllm_checks import Checking, undecidable, unfit_of, unsure
from mesh.engine.vllm_described import (
    ServerFacts,
    VllmConfig,
    check_folder,
)
from mesh.engine.vllm_identity import WeightsFolder
from mesh.engine.vllm_own import Launch, OwnServer
from mesh.engine.vllm_requests import completion_body, refusal_of, served
from mesh.engine.vllm_route import look
from mesh.engine.vllm_self import VllmSelf
from mesh.engine.vllm_stream import Usage
from mesh.engine.vllm_transcript import Transcript
from mesh.errors import (
    EngineError,
    EngineFailed,
    EngineUnavailable,
    EngineUnsupported,
    IdentityChanged,
    RouteIncompatible,
    UsageError,
    WeightsChanged,
)
from mesh.identity.shard import ShardIdentity
from mesh.identity.weights import folder_weights
from mesh.schema.request import ServeRequest

log = logging.getLogger(__name__)

# At most this many are asked for in one answer: if it is cut, so many may have been made that no receipt counts.
_WHOLE_TOKENS: Final = 64
_SLOWEST_TOKEN_S: Final = 1
_QUICK_S: Final = 0.002


class VllmEngine(VllmSelf):
    """Made by `start`. Everything it says about itself is constant while `process` is.

    `self_check` holds what was measured at load and `self_check.reason` says it in a line; `pid` is the root of our own
    server's processes, None for somebody else's.
    """

    runs_cold = True

    def __init__(
        self, config: VllmConfig, *, launch: Launch | None, port: KeptPort | None, random: Callable[[int], bytes]
    ) -> None:
        super().__init__(config, random)
        self._own = (
            None if launch is None
            else OwnServer(launch, self._server, self._lost, start_s=config.start_s, excess=config.excess, port=port)
        )  # fmt: skip
        self._up = False
        self._closed = False
        self._disk_is_quick = False
        self._met = False  # the server that was asked last is the one that was measured
        self._restarting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._awaiting: list[asyncio.Future[BaseException | None]] = []  # those whom the look is for
        self._grammars = Grammars()
        self.learn = self._grammars.learn

    @classmethod
    async def start(
        cls, config: VllmConfig, *, launch: Launch | None = None, port: KeptPort | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> VllmEngine:  # fmt: skip
        """Ask the server what it is, digest the model's folder and measure. With `launch` the server is ours: started
        here, started again when it ends, stopped by `close`, which also gives up the `port` that is kept for it.

        Raises UsageError for a configuration that the server contradicts, EngineUnsupported for a server that does not
        give token ids, EngineUnavailable or EngineFailed where it does not answer, ModelFileError for an unsound
        folder, OSError where one cannot be read.
        """
        kind = VllmEngine if config.text_folder is None else VllmTextEngine
        engine = kind(config, launch=launch, port=port, random=random)
        try:
            await engine._open()
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def pid(self) -> int | None:
        return None if self._own is None else self._own.pid

    def deterministic(self, request: ServeRequest) -> bool:
        return self._repeats

    def refusal(self, request: ServeRequest) -> str | None:
        sampling = request.sampling
        if sampling.grammar is not None and (reason := self._grammars.refusal(sampling)) is not None:
            return reason
        return refusal_of(request, self.context_tokens, self._vocabulary)

    async def ready(self) -> None:
        if not self._up:
            raise self._unavailable()
        if self._config.guard is not None and (why := self._config.guard(None)) is not None:
            raise EngineUnavailable(f"vllm engine: {why}")
        # callers that come at once share one look, which none of them ends by going
        if self._looking is None:
            self._looking = asyncio.create_task(self._meet())
            self._looking.add_done_callback(self._looked)
        seen: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._awaiting.append(seen)
        if (fault := await seen) is not None:
            raise fault

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self._admit(request, prompt)
        transcript = Transcript(
            request, prompt, self._bytes_of, self._facts.fingerprint, scores_wanted(sink), cold_wanted(sink),
            self._vocabulary,
        )  # fmt: skip
        usage: Usage | None = None
        if not sink.cancelled.is_set():
            at_once = taken_whole(sink) and request.max_tokens <= _WHOLE_TOKENS
            body = self._body(transcript, streamed=not at_once)
            if at_once:
                patience_s = self._config.idle_s + request.max_tokens * _SLOWEST_TOKEN_S
                usage = await read_at_once(self._server, body, transcript, sink, patience_s=patience_s)
            else:
                usage = await read_streamed(self._server, body, transcript, sink)
        if self._own is not None:
            self._own.failures = 0
        return served(
            transcript, usage, raw=self.max_scores >= 0, delivered_fidelity=int(self.fidelity),
            weights_digest=self.weights_digest, precision=self.precision,
        )  # fmt: skip

    async def close(self) -> None:
        self._closed, self._up = True, False
        for task in (self._restarting, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._template is not None:
            await self._template.close()
        await self._server.close()
        if self._own is not None:
            await self._own.close()

    # --- what it says of itself

    async def _open(self) -> None:
        config = self._config
        if config.weights is not None:
            self._weights = await asyncio.to_thread(folder_weights, config.weights)
            self._folder = await asyncio.to_thread(WeightsFolder.of, config.weights)
        if self._own is not None:
            await self._own.begin()
        self._facts = await self._identify()
        self.recipe_id = config.recipe_id or self._facts.model
        self.blueprint_id = config.blueprint_id
        if config.weights is not None and not config.route:  # the hosts of a route say what each has loaded
            check_folder(self._facts, config.weights)
        await self._read_text()
        self._describe(await self._measure())
        if config.route:
            if self.identity is None:
                raise EngineUnsupported(f"vllm engine: a route without an identity: {self.identity_gap}")
            self.shard_route = await look(self._server, config, self._folder, self.identity)
        await self._check_weights()  # what was digested is what the server had loaded by then
        if self._own is not None and self._own.ended is not None:  # while it was measured
            raise self._own.ended
        self._up = self._met = True

    async def look_again(self) -> None:
        """Hold the hosts of a route to what they said. Raises IdentityChanged."""
        if self.identity is not None:
            await self._same_hosts(self.identity)

    async def _same_hosts(self, whole: ShardIdentity) -> None:
        if (
            self.shard_route is not None
            and await look(self._server, self._config, self._folder, whole) != self.shard_route
        ):
            raise IdentityChanged(f"vllm server at {self._server.url}: its hosts compute or hold other than before")

    # --- whether it still is what it was

    async def _check_weights(self) -> None:
        if self._weights is None:
            return
        began_s = time.perf_counter()
        # a thread costs more than a local disk takes to answer; a disk that is far may take any time
        changed = self._weights.changed() if self._disk_is_quick else await asyncio.to_thread(self._weights.changed)
        self._disk_is_quick = time.perf_counter() - began_s < _QUICK_S
        if changed is not None:
            raise WeightsChanged(
                f"model folder: {changed}: restart the gateway to digest it again and serve it as it is"
            )

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looking = None
        awaiting, self._awaiting = self._awaiting, []
        called_off = look.cancelled()
        fault = None if called_off else look.exception()
        for seen in awaiting:
            if called_off:
                seen.cancel()
            elif not seen.done():  # its caller may have gone
                seen.set_result(fault)

    async def _meet(self) -> None:
        """Ask the server what it is. One that was started again is measured again, and refused where it is another,
        however often it is asked."""
        await self._check_weights()
        met, self._met = self._met, False
        try:
            cards, surely = await self._server.met_again()
            same = any((card.name, card.root) == (self._facts.model, self._facts.root) for card in cards)
            if met and surely and same:
                self._met = True
                return
            facts = await self._identify()
        except EngineUnavailable:
            raise
        except (EngineError, UsageError) as e:
            raise EngineUnavailable(str(e)) from None
        await self._hold_to_its_word(facts)
        self._met = True

    async def _hold_to_its_word(self, facts: ServerFacts) -> None:
        """Refuse a server that is another than was measured; measure again one that was started again."""
        difference = self._facts.difference(facts)
        if difference is not None:
            now, _ = self._identified(facts.named(self._facts.fingerprint))
            check_same(f"vllm server at {self._server.url}", self.identity, now, how=f"{difference}; ")
            raise EngineUnavailable(
                f"vllm server at {self._server.url}: no longer the one that was measured: {difference}"
            )
        if facts.started_s is None or facts.started_s != self._facts.started_s:
            await self._take_again(facts)

    async def _take_again(self, facts: ServerFacts) -> None:
        """A new start of the server. Serves go on only if it gives the same numbers as before."""
        was, described = self._facts, dict(self.settings)
        self._facts = facts
        try:
            check = await self._measure()
        except EngineError as e:
            self._facts = was
            raise EngineUnavailable(f"vllm server: started again, and it does not answer as it should: {e}") from None
        try:
            identity = self._identified(self._facts)[0]
            check_same(f"vllm server at {self._server.url}", self.identity, identity)
            if identity is not None:
                await self._same_hosts(identity)
        except IdentityChanged:
            self._facts = was
            raise
        except (EngineError, RouteIncompatible) as e:
            self._facts = was
            raise EngineUnavailable(f"vllm server: started again, and not as the route that it was: {e}") from None
        now = self._settings(check)
        changed = sorted(name for name in {*described, *now} if described.get(name) != now.get(name))
        if changed:
            self._facts = was
            what = "gives other numbers" if changed == ["probe"] else f"has other settings ({', '.join(changed)})"
            raise EngineUnavailable(f"vllm server at {self._server.url}: was started again and {what} than before")
        self._describe(check)

    def _lost(self, reason: EngineError) -> None:
        """Our own server ended."""
        was_up, self._up = self._up, False
        if self._closed:
            return
        log.warning("%s", reason)  # the server's own last lines are for the operator, not for clients
        if was_up:
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        assert self._own is not None
        await self._own.begin_again(self._check_weights, self._recognize)
        self._restarting = None
        self._up = True

    async def _recognize(self) -> None:
        await self._hold_to_its_word(await self._identify())

    def _unavailable(self) -> EngineUnavailable:
        if self._closed:
            return EngineUnavailable("vllm engine: closed")
        return EngineUnavailable("vllm engine: its server ended and is started again")

    # --- one serve

    def _admit(self, request: ServeRequest, prompt: Sequence[int]) -> None:
        refusal = self.refusal(request)
        if refusal is not None:
            raise EngineFailed(f"vllm engine: {refusal}")
        if len(prompt) != request.prompt_tokens:
            raise EngineFailed(f"vllm engine: {len(prompt)} prompt ids, the request says {request.prompt_tokens}")
        if not self._up:
            raise self._unavailable()

    def _body(self, transcript: Transcript, *, streamed: bool) -> dict[str, Any]:
        grammar = transcript.request.sampling.grammar
        return completion_body(
            transcript.request, transcript.prompt, self._facts.model, margins=self._config.margins,
            scores=transcript.wanted, grammar=None if grammar is None else self._grammars.text(grammar),
            streamed=streamed, salt=self._random(16).hex() if transcript.cold else None,
        )  # fmt: skip


class VllmTextEngine(VllmEngine):
    """One whose model folder is at hand: a TextEngine, and a Checker."""

    _far: tuple[bytes, float | None] | None = None  # of which process passes were measured, and what was found

    def undecidable(self, request: ServeRequest) -> str | None:
        return undecidable(request, raw=self.max_scores >= 0)

    async def check(
        self, request: ServeRequest, prompt: Sequence[int], output: Sequence[int], *, cut: bool = False
    ) -> CheckResult:
        self._admit(request, prompt)
        assert self._tokenizer is not None
        pieces = len(self._tokenizer.pieces)
        unfit = unfit_of(request, prompt, output, pieces)
        if unfit is not None:
            return CheckResult("undecided", reason=unfit)
        checking = Checking(
            self._server.complete, self._facts.model, lambda: self._random(16).hex(), self._bytes_of,
            self._tokenizer.eos_ids,
        )  # fmt: skip
        if self._far is None or self._far[0] != self.process:
            self._far = self.process, await checking.measured(self.context_tokens, pieces)
        result = await checking.check(request, prompt, output, cut=cut, far=self._far[1])
        reason = self.undecidable(request) or unsure(self._far[1])
        return result if reason is None else undecided(result, reason)

    @property
    def tool_form(self) -> str | None:
        return None if self._template is None else self._template.tool_form

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        return await self._text.render(messages, tools)

    async def encode(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        if not self._up:
            raise self._unavailable()
        return await self._text.encode(text, special=special, bare=bare)

    @property
    def piece(self) -> Callable[[int], bytes]:
        return self._text.piece
