"""Durable receipts a second with 64 callers, beside the same path without the signature.

A caller writes its intent, waits until it is on disk, has its receipt made and sealed, and waits until that is on disk.
Both sides validate, encode, number, chain and commit; the peer's envelopes hold 64 zero bytes for a signature. Its
ledger never learns: what a `make` returns is checked against its place, and the signature is looked at on reopening.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.material import bench_key, engine_fields, receipt_fields
from bench.measure import Comparison, Goal, Plan, Round, Sides
from bench.scratch import scratch
from mesh.errors import SignatureError
from mesh.ledger import Intent, Ledger, Position
from mesh.schema import canonical
from mesh.schema.energy import Energy
from mesh.schema.envelope import RECEIPT_TYPE, Sealed, SigningKey, seal, verify
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.schema.request import Sampling, ServeRequest

_SETTINGS = canonical.encode({"engine": "none"})


class _Unsigned(SigningKey):
    __slots__ = ()

    def sign(self, message: bytes) -> bytes:
        return bytes(64)


class _Path:
    """One steward's ledger and those who wait for it."""

    def __init__(self, folder: Path, key: SigningKey, plan: Plan) -> None:
        self._key = key
        self._plan = plan
        self._made = 0
        self._request = ServeRequest.of(
            prompt_hash=bytes(32), prompt_tokens=431, max_tokens=256, fidelity_floor=0, sampling=Sampling.greedy()
        )
        # what a steward has at hand when it comes to seal: values already validated, and their bytes
        self._engine = EngineBlock.from_map(engine_fields())
        fields = receipt_fields(key.public, 0)
        self._fields = fields | {
            "engine": self._engine,
            "outcome": ServeOutcome.from_map(fields["outcome"]),
            "energy": Energy.from_map(fields["energy"]),
        }
        self._bytes = (self._request.to_cbor(), self._engine.to_cbor())
        self.ledger = Ledger.open(folder / "ledger.db", steward=key.public)

    def round(self) -> float:
        """Receipts a second."""
        return asyncio.run(self._round())

    async def _round(self) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(self._caller(number) for number in range(self._plan.callers)))
        return self._plan.callers * self._plan.serves / (time.perf_counter() - start)

    async def _caller(self, number: int) -> None:
        request, engine = self._bytes
        for _ in range(self._plan.serves):
            self._made += 1
            serve_id = self._made.to_bytes(16, "big")
            intent = Intent(serve_id, f"caller {number}", request, engine, _SETTINGS, self._engine.recipe_id, 1_000)
            first = await self.ledger.open_intent_async(intent)
            assert first is None
            await self.ledger.seal_async(serve_id, partial(self._make, serve_id))

    def _make(self, serve_id: bytes, position: Position) -> Sealed:
        fields = self._fields | {"serve_id": serve_id, "seq": position.seq, "prev": position.prev}
        return seal(Receipt.of(**fields), self._key)

    def check(self) -> None:
        """That the ledger holds every receipt, and the last one is signed as it should be. Raises SignatureError."""
        assert self.ledger.reader.count() == self._made
        (last,) = self.ledger.reader.receipts(newest_first=True, limit=1)
        verify(last.envelope, RECEIPT_TYPE, {self._key.public})


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    with scratch("durable") as folder, ExitStack() as stack:
        signed = _Path(folder / "signed", bench_key("signed"), plan)
        stack.callback(signed.ledger.close)
        unsigned = _Path(folder / "unsigned", _Unsigned(bench_key("unsigned").seed), plan)
        stack.callback(unsigned.ledger.close)
        ours: Round = signed.round
        yield Sides(ours, unsigned.round)
        signed.check()
        try:
            unsigned.check()
        except SignatureError:
            return
        raise AssertionError("the unsigned side has signed")


COMPARISON = Comparison(
    name="durable sealing, 64 callers, vs unsigned",
    unit="receipts/s wall",
    ours="intent and sealed receipt, each on disk before the caller goes on",
    peer="the same path with zeros for a signature",
    goal=Goal(">=", 0.5),
    sides=_sides,
)
