"""The one path from a request to a sealed receipt, and its one ending.

    admit -> intent (durable) -> meter -> engine -> meter -> judge -> commit -> seal (durable)

A refusal before the intent leaves nothing behind. After it everything has a receipt: finished, cut, failed, or, when
this process dies, interrupted, which the next start seals. Whoever waits for a serve may be cancelled at any time; the
serve itself is told through its sink and still sealed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from blake3 import blake3

from mesh.engine.protocol import ServingEngine
from mesh.errors import EngineError, GrantRefused, LedgerLocked, LedgerUnwritable, WeightsChanged
from mesh.grant.caveats import TOTAL_UJ
from mesh.grant.decision import NOTHING_USED, Used
from mesh.grant.terms import Terms
from mesh.ledger import Entry, Idempotency, Intent, Kept, Ledger, LedgerReader, Position
from mesh.meter.metering import Counted, Metering
from mesh.schema.commitment import opening, opening_key, output_commitment
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import Sealed, SigningKey, seal
from mesh.schema.ids import ContentId, serve_id_from
from mesh.schema.receipt import VERSION, EngineBlock, Receipt
from mesh.schema.request import ServeRequest, pack_ids, payload_digest
from mesh.steward.admission import Admitted, Grant, Offer, admit
from mesh.steward.costs import SEED_RECEIPTS, Costs
from mesh.steward.described import Described, describe
from mesh.steward.disclosing import kept_disclosure
from mesh.steward.interrupted import interrupted_fields
from mesh.steward.judge import judge
from mesh.steward.marks import Marks
from mesh.steward.recorder import Recorder, run
from mesh.steward.serves import Delivery, Repeated, SealedServe
from mesh.steward.wall import WallClock

log = logging.getLogger(__name__)

Observer = Callable[[Sealed, float], None]
"""Is told of a receipt and of the seconds that its seal took."""


class Steward:
    """One signing key, its ledger and its meters. `keep_ns` is for how long prompts and answers are kept so that they
    can be disclosed later; None, the default, keeps neither."""

    def __init__(
        self,
        *,
        key: SigningKey,
        ledger: Ledger,
        metering: Metering,
        keep_ns: int | None = None,
        launches: Mapping[str, bytes] | None = None,
        clock_ns: Callable[[], int] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._key = key
        self._ledger = ledger
        self._metering = metering
        self._keep_ns = keep_ns
        self._launches = dict(launches or {})  # by the served name: the launch records of their engines
        self._clock_ns = clock_ns or WallClock()
        self._random = random
        self._opening_key = opening_key(key.seed)
        self._mac_key = blake3(key.seed, derive_key_context="mesh steward idempotency").digest()
        self._described: dict[tuple[bytes, bool], Described] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._unsealed: dict[bytes, tuple[Callable[[Position], Sealed], Kept | None]] = {}
        self._failing = False
        self.costs = Costs()
        self.costs.learn_ledger(ledger.reader.receipts(limit=SEED_RECEIPTS, newest_first=True), key.public)
        self._observers: list[Observer] = []
        self._marks = Marks(key, ledger.reader.count())

    @property
    def public(self) -> bytes:
        return self._key.public

    @property
    def reader(self) -> LedgerReader:
        return self._ledger.reader

    @property
    def keep_ns(self) -> int | None:
        return self._keep_ns

    @property
    def writable(self) -> bool:
        """False from an intent or a seal that could not be written until something can."""
        return not self._unsealed and not self._failing

    @property
    def free_bytes(self) -> int | None:
        """What the ledger's file system has left; None where it does not say."""
        return self._ledger.free_bytes

    def observe(self, observer: Observer) -> None:
        """Have `observer` called, on the event loop, with every receipt from now on once it is sealed."""
        self._observers.append(observer)

    def new_serve_id(self) -> bytes:
        return serve_id_from(self._clock_ns() // 1_000_000, self._random(10))

    def mac(self, data: bytes) -> bytes:
        """A 32-byte keyed hash under a key that only this steward has: it remembers a body without keeping it."""
        return blake3(data, key=self._mac_key).digest()

    async def recover(self) -> list[Sealed]:
        """Seal, as interrupted, every serve that the last process began and did not live to end."""
        return [
            await self._ledger.seal_async(intent.serve_id, self._interrupted(intent))
            for intent in self._ledger.open_intents()
        ]

    async def admit(
        self, request: ServeRequest, candidates: Sequence[ServingEngine], *, caller: str, grant: Terms | None = None
    ) -> Admitted:
        """Choose who serves the request, before anything is written. Raises NoCandidate or EngineUnavailable, or
        GrantRefused: `grant` is decided over what would really run."""
        return await self.choose([Offer(request, engine) for engine in candidates], caller=caller, grant=grant)

    def choose(
        self, offers: Sequence[Offer], *, caller: str, grant: Terms | None = None
    ) -> Coroutine[Any, Any, Admitted]:
        """`admit`, where each backend has its own reading of the request. Raises Overloaded too."""
        bound = None if grant is None else Grant(grant, self._key.public, self._clock_ns())
        return admit(offers, caller=caller, costs=self.costs, grant=bound)

    async def used_up(self, grant: Terms) -> Used:
        """What is used of those of the grant's totals of which nothing is left now, whatever a serve would need. Where
        there is something, it is decided when it is known how much that is."""
        limits = grant.totals
        if not limits:
            return NOTHING_USED
        totals = await asyncio.to_thread(self.reader.totals, {block_id for block_id, _ in limits})
        return {name: total.used for name, total in totals.items() if total.used >= limits.get(name, total.used + 1)}

    def refusal(
        self, engine: ServingEngine, grant: Terms, *, max_tokens: int, used: Used = NOTHING_USED
    ) -> GrantRefused | None:
        """Why the grant admits no serve of so many tokens on this engine, however short the prompt is; None where it
        may. Asks nothing of the engine."""
        bound = Grant(grant, self._key.public, self._clock_ns(), used)
        cost = engine.est_uj_per_token
        decision = bound.decide(engine, 0, max_tokens, None if cost is None else cost * max_tokens)[1]
        # what an engine costs may be known from its receipts alone, and that is asked later
        found = [one for one in decision.refusals if one.offered is not None or one.caveat not in ("max-uj", TOTAL_UJ)]
        return found[0].error() if found else None

    async def serve(
        self,
        admitted: Admitted,
        prompt: Sequence[int],
        sink: Delivery,
        *,
        serve_id: bytes,
        idempotency: Idempotency | None = None,
        prompt_text: str | None = None,
        options: Sequence[Sequence[int]] = (),
    ) -> SealedServe | Repeated:
        """Run an admitted request to its sealed receipt. An engine's failure is not raised: it is sealed, and named in
        `SealedServe.error`. Raises Conflict (idempotency) or LedgerUnwritable before the engine starts, and
        LedgerUnwritable after it where the seal could not be written; it is then tried again before the next serve.

        `options` are those of a typed decision, as ids; the request's `prompt_tokens` counts them too."""
        task = self.begin(
            admitted, prompt, sink, serve_id=serve_id, idempotency=idempotency, prompt_text=prompt_text, options=options
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            sink.cancelled.set()
            raise

    def begin(
        self,
        admitted: Admitted,
        prompt: Sequence[int],
        sink: Delivery,
        *,
        serve_id: bytes,
        idempotency: Idempotency | None = None,
        prompt_text: str | None = None,
        options: Sequence[Sequence[int]] = (),
    ) -> asyncio.Task[SealedServe | Repeated]:
        """`serve` as a task, for who does not wait for it: it is called off through its sink and never cancelled."""
        given = (tuple(prompt), tuple(map(tuple, options)))
        task = asyncio.ensure_future(self._serve(admitted, given, sink, serve_id, idempotency, prompt_text))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; without this an abandoned one is reported as never retrieved

    async def _serve(
        self,
        admitted: Admitted,
        given: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]],
        sink: Delivery,
        serve_id: bytes,
        idempotency: Idempotency | None,
        prompt_text: str | None,
    ) -> SealedServe | Repeated:
        request, engine = admitted.request, admitted.engine
        prompt, options = given
        payload = prompt + tuple(token for option in options for token in option) if options else prompt
        described = self._describe(engine, request)
        _check_same(admitted, described.block)
        started_ns = self._clock_ns()
        if self._unsealed:
            await self.seal_leftovers()
        request_bytes = request.to_cbor()
        intent = Intent(
            serve_id=serve_id,
            caller=admitted.caller,
            request=request_bytes,
            engine=described.block_bytes,
            settings=described.settings_bytes,
            route=described.route_bytes,
            recipe_id=engine.recipe_id,
            started_ns=started_ns,
            idempotency=idempotency,
            grant_id=admitted.grant_id,
            draws=admitted.draws,
        )
        try:
            first = await self._ledger.open_intent_async(intent)
        except (LedgerUnwritable, LedgerLocked):
            self._failing = True
            raise
        self._failing = False
        if first is not None:
            return Repeated(first)
        recorder = Recorder(sink, request.max_tokens)
        if not self._metering.begin_nowait(serve_id, engine.recipe_id):
            await self._metering.begin(serve_id, engine.recipe_id)
        served = await run(engine, request, prompt, recorder, options)
        recorder.closed = True
        energy = self._metering.end_nowait(serve_id) or await self._metering.end(serve_id)
        ended_ns = max(self._clock_ns(), started_ns)
        delivered = await sink.settle()
        judgement = judge(
            request,
            payload,
            described.block,
            recorder.put_ids,
            served,
            cut_by=(sink.cut_by or "client-gone") if sink.cancelled.is_set() else None,
            delivered=delivered,
            options=len(options),
        )
        request_id = ContentId.of_canonical("request", request_bytes)
        salt = opening(self._opening_key, request_id, serve_id)
        committed = judgement.committed
        commitment = None
        if committed is not None:
            commitment = output_commitment(salt, request_id, payload_digest(payload), committed)
        fields = {
            "serve_id": serve_id,
            "request_id": request_id,
            "prompt_hash": request.prompt_hash,
            "max_tokens": request.max_tokens,
            "started_ns": started_ns,
            "ended_ns": ended_ns,
            "engine": described.block,
            "outcome": judgement.outcome,
            "energy": energy,
            "grant_id": admitted.grant_id,
            "output_commitment": commitment,
        }
        kept = self._kept(payload, committed or (), prompt_text, ended_ns)
        sealed = await self._seal(serve_id, lambda position: self._sign(position, fields), kept)
        return SealedServe(
            sealed=sealed,
            receipt_id=sealed.id,
            receipt=sealed.value,
            request=request,
            tokens=committed or (),
            payload=payload,
            opening=salt,
            settings=described.settings,
            error=served if isinstance(served, EngineError) else None,
            decided=None if isinstance(served, EngineError) or judgement.outcome.decision is None else served.decided,
        )

    def _describe(self, engine: ServingEngine, request: ServeRequest) -> Described:
        key = (engine.process, engine.deterministic(request))
        described = self._described.get(key)
        if described is None:
            # an engine that restarted has a new process id; what its last one said is not said again
            self._described = {
                k: v for k, v in self._described.items() if v.block.recipe_id != engine.recipe_id or k[0] == key[0]
            }
            described = self._described[key] = describe(
                engine, deterministic=key[1], launch=self._launches.get(engine.recipe_id)
            )
        return described

    def _kept(self, prompt: Sequence[int], output: Sequence[int], text: str | None, now_ns: int) -> Kept | None:
        if self._keep_ns is None:
            return None
        return Kept(pack_ids(prompt), pack_ids(output), text, now_ns + self._keep_ns)

    def _sign(self, position: Position, fields: dict[str, Any]) -> Sealed:
        receipt = Receipt.of(v=VERSION, steward=self._key.public, seq=position.seq, prev=position.prev, **fields)
        self._metering.sealed(receipt.serve_id)
        return seal(receipt, self._key)

    async def _seal(self, serve_id: bytes, make: Callable[[Position], Sealed], kept: Kept | None) -> Sealed:
        began = time.monotonic()
        try:
            sealed = await self._ledger.seal_async(serve_id, make, kept)
        except LedgerUnwritable:
            self._unsealed[serve_id] = (make, kept)
            self._failing = True
            raise
        self._failing = False
        self.costs.learn(sealed.value)
        took_s = time.monotonic() - began
        for observe in self._observers:
            observe(sealed, took_s)
        return sealed

    async def seal_leftovers(self) -> None:
        """Seal what a full disk kept from being sealed. Raises LedgerUnwritable while it still does."""
        for serve_id, (make, kept) in list(self._unsealed.items()):
            if self._unsealed.pop(serve_id, None) is not None:
                await self._seal(serve_id, make, kept)

    async def check_writable(self) -> None:
        """Make up for what could not be written, or, after a write that failed, try a small one: a checkpoint. Raises
        LedgerUnwritable or LedgerLocked where that fails too."""
        await self.seal_leftovers()
        if self._failing:
            await self.checkpoint()
            self._failing = False

    def _interrupted(self, intent: Intent) -> Callable[[Position], Sealed]:
        fields = interrupted_fields(intent, self._clock_ns())
        return lambda position: self._sign(position, fields)

    def disclosure(self, entry: Entry) -> Disclosure:
        """What the ledger keeps for the caller of a serve. Raises NotFound (`not_kept`) where the prompt was not kept
        or its time is over."""
        return kept_disclosure(self._ledger.reader, entry, self._key, now_ns=self._clock_ns())

    def counted(self) -> tuple[bytes, list[Counted]]:
        """The meters' running epoch, and what each domain counted in it as of its latest reading."""
        return self._metering.counted()

    async def checkpoint(self) -> Sealed:
        """Sign and store how far the ledger reaches, and the meters' totals of the epoch."""
        return await self._ledger.checkpoint_async(
            lambda position: self._marks.signed(position, self._metering.totals(), self._clock_ns())
        )

    async def purge(self) -> int:
        """Delete the kept prompts and answers whose time is over; returns of how many serves."""
        return await asyncio.wrap_future(self._ledger.purge_kept(self._clock_ns()))

    async def close(self) -> None:
        """Wait for the running serves to be sealed, and leave a checkpoint. The caller stops new ones first and closes
        the ledger and the meters after."""
        while self._running:
            await asyncio.wait(self._running)
        try:
            await self.seal_leftovers()
            await self.checkpoint()
        except LedgerUnwritable as e:
            log.error("closing without a checkpoint: %s", e)


def _check_same(admitted: Admitted, engine: EngineBlock) -> None:
    """Raises WeightsChanged where an engine has restarted, since a grant admitted it, as another one."""
    frame = admitted.frame
    if frame is not None and (frame.weights_digest, frame.backend_id) != (engine.weights_digest, engine.backend_id):
        raise WeightsChanged(f"{engine.recipe_id}: the engine that the grant admitted was replaced by another")


__all__ = ["Admitted", "Delivery", "Repeated", "SealedServe", "Steward"]
