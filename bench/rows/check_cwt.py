"""Checking a receipt, beside the COSE library for Python checking the very same envelope."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.material import COUNT, bench_key, signed_receipts
from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides, cpu_us
from bench.venvs import python_of
from mesh.schema.envelope import RECEIPT_TYPE, verify

_PROGRAM = Path(__file__).parent.parent / "peers" / "cwt_check.py"
# cwt holds cbor2 below 6 and we need 6: hence an environment and a process of its own.
_REQUIREMENTS = ("cwt==3.3.0",)


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    key = bench_key("check")
    trust = {key.public}
    envelopes = [receipt.envelope for receipt in signed_receipts(key)]

    def ours() -> float:
        return cpu_us(lambda n: verify(envelopes[n % COUNT], RECEIPT_TYPE, trust), plan.cpu_calls)

    try:
        python = python_of("cwt", *_REQUIREMENTS)
    except PeerMissing as e:
        yield Sides(ours, e)
        return
    with _peer(python, key.public, envelopes) as peer:
        version = _ask(peer)
        yield Sides(ours, lambda: int(_ask(peer, plan.cpu_calls)) / plan.cpu_calls / 1000, f"cwt {version}")


@contextmanager
def _peer(python: Path, public: bytes, envelopes: Sequence[bytes]) -> Iterator[subprocess.Popen[str]]:
    command = [str(python), "-I", str(_PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        work = {"key": public.hex(), "envelopes": [envelope.hex() for envelope in envelopes]}
        peer.stdin.write(json.dumps(work) + "\n")
        peer.stdin.flush()
        yield peer
        # the end of its input ends it, and leaving the block waits for that


def _ask(peer: subprocess.Popen[str], calls: int | None = None) -> str:
    assert peer.stdin is not None
    assert peer.stdout is not None
    if calls is not None:
        peer.stdin.write(f"{calls}\n")
        peer.stdin.flush()
    answer = peer.stdout.readline().strip()
    if not answer:
        raise RuntimeError(f"cwt's process ended with exit {peer.wait()}, see above")
    return answer


COMPARISON = Comparison(
    name="check vs cwt COSE_Sign1",
    unit="us CPU",
    ours="check a receipt in full (envelope.verify)",
    peer="cwt: decode, verify and compare the claims of the same envelope (alg -19)",
    goal=Goal("<=", 0.75),
    sides=_sides,
)
