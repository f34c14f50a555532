"""Real receipts for a real ledger: signed by a fixed key, small, each for a serve of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh.ledger import Idempotency, Intent, Kept, Ledger, Position
from mesh.schema import canonical
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.energy import Energy
from mesh.schema.envelope import Sealed, SigningKey, seal
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.schema.request import Sampling, ServeRequest

KEY = SigningKey(hashlib.sha256(b"ledger tests").digest())
SETTINGS = canonical.encode({"engine": "none", "note": "settings of a test"})


class Maker:
    """Intents, receipts and checkpoints of one key."""

    def __init__(self, key: SigningKey = KEY) -> None:
        self.key = key
        self.steward = key.public
        self.request = ServeRequest.of(
            prompt_hash=b"\x01" * 32, prompt_tokens=3, max_tokens=8, fidelity_floor=0, sampling=Sampling.greedy()
        )
        self.engine = EngineBlock.of(
            backend_id="test/1/none/none/none/none", recipe_id="tiny", fidelity=0, deterministic=True,
            settings_digest=b"\x02" * 32, process=b"\x03" * 16,
        )  # fmt: skip

    @staticmethod
    def serve_id(number: int, thread: int = 0) -> bytes:
        return hashlib.sha256(b"%d %d" % (thread, number)).digest()[:16]

    def intent(
        self, serve_id: bytes, *, caller: str = "caller", idempotency: Idempotency | None = None,
        settings: bytes = SETTINGS,
    ) -> Intent:  # fmt: skip
        return Intent(
            serve_id, caller, self.request.to_cbor(), self.engine.to_cbor(), settings, "tiny", 1_000, idempotency
        )

    def receipt(self, serve_id: bytes, position: Position) -> Receipt:
        return Receipt.of(
            v="mesh/1", steward=self.steward, seq=position.seq, prev=position.prev, serve_id=serve_id,
            request_id=self.request.id, prompt_hash=self.request.prompt_hash, max_tokens=8, started_ns=1_000,
            ended_ns=2_000, engine=self.engine,
            outcome=ServeOutcome.of(finish="stop", counted_by="engine", tokens_in=3, tokens_out=2),
            energy=Energy.of(basis="absent", sources=[], span_ns=10, reason="no-meter"), output_commitment=b"\x04" * 32,
        )  # fmt: skip

    def sealing(self, serve_id: bytes) -> Callable[[Position], Sealed]:
        return lambda position: seal(self.receipt(serve_id, position), self.key)

    def checkpointing(self, position: Position) -> Sealed:
        return seal(
            Checkpoint.of(
                v="mesh/1", steward=self.steward, at_ns=5, count=position.seq, head=position.prev, domains=[]
            ),
            self.key,
        )

    def serve(self, ledger: Ledger, number: int, *, kept: Kept | None = None, thread: int = 0) -> Sealed:
        """One intent and its receipt, both durable."""
        serve_id = self.serve_id(number, thread)
        assert ledger.open_intent(self.intent(serve_id)).result() is None
        return ledger.seal(serve_id, self.sealing(serve_id), kept).result()

    def fill(self, path: Path, receipts: int, *, checkpoint: bool = False) -> list[Sealed]:
        """A closed ledger of so many receipts."""
        with Ledger.open(path, steward=self.steward) as ledger:
            sealed = [self.serve(ledger, number) for number in range(receipts)]
            if checkpoint:
                ledger.checkpoint(self.checkpointing).result()
        return sealed


@pytest.fixture
def maker() -> Maker:
    # of its own per test: a key can be held by one process at a time, and tests may run side by side
    return Maker(SigningKey(hashlib.sha256(str(next(_numbers)).encode()).digest()))


def _count() -> Iterator[int]:
    import os

    start = int.from_bytes(os.urandom(6), "big")
    while True:
        yield start
        start += 1


_numbers = _count()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(path: Path, maker: Maker) -> Iterator[Ledger]:
    with Ledger.open(path, steward=maker.steward) as opened:
        yield opened
