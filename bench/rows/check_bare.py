"""Checking a receipt, beside the verification of its signature: everything above 1.0 is ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import nacl.signing

from bench.material import COUNT, bench_key, signed_receipts
from bench.measure import Comparison, Goal, Plan, Sides, cpu_us
from mesh.schema.envelope import RECEIPT_TYPE, verify


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    key = bench_key("check")
    trust = {key.public}
    bare = nacl.signing.VerifyKey(key.public)
    signed = signed_receipts(key)
    envelopes = [receipt.envelope for receipt in signed]
    parts = [(receipt.to_be_signed, receipt.signature) for receipt in signed]
    yield Sides(
        ours=lambda: cpu_us(lambda n: verify(envelopes[n % COUNT], RECEIPT_TYPE, trust), plan.cpu_calls),
        peer=lambda: cpu_us(lambda n: bare.verify(*parts[n % COUNT]), plan.cpu_calls),
        peer_version=f"PyNaCl {version('pynacl')}",
    )


COMPARISON = Comparison(
    name="check vs bare Ed25519 verification",
    unit="us CPU",
    ours="check a receipt in full (envelope.verify)",
    peer="PyNaCl VerifyKey.verify of the same bytes",
    goal=Goal("<=", 1.5),
    sides=_sides,
)
