"""Making a receipt, beside the signature in it: everything above 1.0 is ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import nacl.signing

from bench.material import COUNT, bench_key, receipt_fields, signed_receipts
from bench.measure import Comparison, Goal, Plan, Sides, cpu_us
from mesh.schema.envelope import seal
from mesh.schema.receipt import Receipt


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    key = bench_key("seal")
    bare = nacl.signing.SigningKey(key.seed)
    fields = [receipt_fields(key.public, seq) for seq in range(1, COUNT + 1)]
    signed = signed_receipts(key)
    messages = [receipt.to_be_signed for receipt in signed]
    assert [bare.sign(message).signature for message in messages] == [receipt.signature for receipt in signed]
    yield Sides(
        ours=lambda: cpu_us(lambda n: seal(Receipt.from_map(fields[n % COUNT]), key), plan.cpu_calls),
        peer=lambda: cpu_us(lambda n: bare.sign(messages[n % COUNT]), plan.cpu_calls),
        peer_version=f"PyNaCl {version('pynacl')}",
    )


COMPARISON = Comparison(
    name="seal vs bare Ed25519 signature",
    unit="us CPU",
    ours="validate, encode and sign a receipt (Receipt.from_map, seal)",
    peer="PyNaCl SigningKey.sign of the same bytes",
    goal=Goal("<=", 2.0),
    sides=_sides,
)
