"""Checking and deciding a grant of three blocks, beside the verification of three signatures: all above 1.0 is ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import nacl.signing

from bench.material import bench_key
from bench.measure import Comparison, Plan, Sides, cpu_us
from mesh.grant.chain import Grant, verify_grant
from mesh.grant.decision import decide
from mesh.grant.frame import Frame
from mesh.grant.making import attenuate, issue
from mesh.schema import cose
from mesh.schema.limits import MAX_GRANT_BYTES

COUNT = 64
BLOCKS = 3


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    issuer = bench_key("grant")
    trust = {issuer.public}
    grants = [_grant(number) for number in range(COUNT)]
    parts = [part for data in grants for part in _signatures(data)]
    frame = Frame.of(
        steward=issuer.public, recipe_id="bench", backend_id="bench/1/none/none/none/none", fidelity=2,
        prompt_tokens=100, max_tokens=50, now_ns=1_790_000_000_000_000_000, weights_digest=bytes(32), est_uj=1000,
    )  # fmt: skip

    def ours(number: int) -> None:
        assert decide(verify_grant(grants[number % COUNT], trust), frame).admitted

    def peer(number: int) -> None:
        for at in range(BLOCKS):
            key, message, signature = parts[number % COUNT * BLOCKS + at]
            key.verify(message, signature)

    yield Sides(
        ours=lambda: cpu_us(ours, plan.cpu_calls),
        peer=lambda: cpu_us(peer, plan.cpu_calls),
        peer_version=f"PyNaCl {version('pynacl')}",
    )


def _grant(number: int) -> bytes:
    """Three blocks: which model, how much at once, until when."""

    def random(size: int) -> bytes:
        drawn.append(size)
        return bytes((number, len(drawn))).ljust(size, b"\x55")

    drawn: list[int] = []
    issuer = bench_key("grant")
    data = issue(issuer, {"model-in": [bytes(32)]}, random=random)
    for caveats in ({"max-tokens": 50, "max-uj": 5000}, {"not-after": 1_800_000_000_000_000_000}):
        data = attenuate(verify_grant(data, {issuer.public}), caveats, random=random)
    return data


def _signatures(data: bytes) -> Iterator[tuple[nacl.signing.VerifyKey, bytes, bytes]]:
    """Key, message and signature of each block, its chain put together outside of what is measured."""
    grant = Grant.from_cbor(data, max_bytes=MAX_GRANT_BYTES)
    chain = verify_grant(data, {bench_key("grant").public})
    parent = b""
    for block, envelope in zip(chain.blocks, grant.blocks, strict=True):
        parts = cose.split(envelope)
        assert parts is not None
        protected, _, payload, signature = parts
        yield nacl.signing.VerifyKey(block.signer), cose.to_be_signed(protected, payload, parent), signature
        parent = block.id


COMPARISON = Comparison(
    name="grant of three blocks vs three Ed25519 verifications",
    unit="us CPU",
    ours="check the chain in full and decide (verify_grant, decide)",
    peer="PyNaCl VerifyKey.verify of the same bytes, three times",
    goal=None,
    sides=_sides,
)
