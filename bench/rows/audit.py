"""Auditing a receipt without replaying it, beside checking the same envelope and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.material import bench_key, receipt_fields
from bench.measure import Comparison, Goal, Plan, Sides, cpu_us
from mesh.replay.census import Census, Source
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, seal, verify
from mesh.schema.receipt import Receipt

_EPOCH = bytes(16)


def linked(key: SigningKey, count: int) -> list[bytes]:
    """A whole sequence of `count` receipts and the checkpoint that it ends with, which comes first."""
    envelopes, prev, uj = [], None, 0
    for seq in range(count):
        fields = {name: value for name, value in receipt_fields(key.public, seq).items() if name != "prev"}
        fields["energy"] |= {"epoch": _EPOCH}
        sealed = seal(Receipt.of(**fields | ({} if prev is None else {"prev": prev})), key)
        prev, uj = sealed.id, uj + sealed.value.energy.uj
        envelopes.append(sealed.envelope)
    totals = {"domain": "cpu", "first_uj": 0, "last_uj": uj, "idle_uj": 0, "unattributed_uj": 0, "open_uj": 0}
    last = Checkpoint.of(
        v="mesh/1", steward=key.public, at_ns=1, count=count, head=prev, domains=[totals], epoch=_EPOCH, epoch_seq=0
    )
    return [seal(last, key).envelope, *envelopes]


def audited(envelopes: list[bytes], trust: set[bytes]) -> Census:
    census = Census(trust)
    census.open(Source("bench", whole=True, ordered=True))
    for envelope in envelopes:
        census.take(envelope, "bench")
    census.finish()
    if census.faults or census.good != len(envelopes) - 1:
        raise AssertionError(f"an honest sequence is faulty: {census.faults[:1]}")
    return census


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    key = bench_key("audit")
    trust = {key.public}
    envelopes = linked(key, plan.cpu_calls)
    receipts = envelopes[1:]
    yield Sides(
        ours=lambda: cpu_us(lambda _: audited(envelopes, trust), 1) / len(receipts),
        peer=lambda: cpu_us(lambda n: verify(receipts[n], RECEIPT_TYPE, trust), len(receipts)),
        peer_version="this repository",
    )


COMPARISON = Comparison(
    name="audit vs checking the same envelopes",
    unit="us CPU per receipt",
    ours="all of an audit but replays: envelope, place, links, counts, energy",
    peer="envelope.verify alone",
    goal=Goal("<=", 1.25),
    sides=_sides,
)
