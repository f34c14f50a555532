"""The commitment to an output, beside a TOPLOC proof of the activations that made it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.material import bench_key
from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides, cpu_us
from bench.venvs import python_of
from mesh.schema.commitment import opening, opening_key, output_commitment
from mesh.schema.request import payload_digest

TOKENS, WIDTH = 256, 576  # SmolLM2-135M's hidden states
_PROGRAM = Path(__file__).parent.parent / "peers" / "toploc_build.py"
_TORCH = ("torch==2.13.0+cpu", "numpy", "setuptools", "wheel", "ninja")
# its wheel is built against an older torch: made anew against this one
_TOPLOC = ("--no-build-isolation", "--no-deps", "--no-binary", "toploc", "toploc==0.1.6")
_PROOFS = 64  # times as many commitments as proofs in a round


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    key = opening_key(bench_key("commitment").seed)
    payload = payload_digest(list(range(100, 131)))
    outputs = [tuple((i * 7919 + n) % 49_152 for i in range(TOKENS)) for n in range(64)]
    requests = [bytes([n]) * 32 for n in range(64)]

    def ours() -> float:
        def commit(number: int) -> bytes:
            request = requests[number % 64]
            salt = opening(key, request, request[:16])
            return output_commitment(salt, request, payload, outputs[number % 64])

        return cpu_us(commit, plan.cpu_calls)

    try:
        python = python_of("toploc", *_TORCH, then=_TOPLOC)
    except PeerMissing as e:
        yield Sides(ours, e)
        return
    with subprocess.Popen(
        [str(python), "-I", str(_PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        proofs = max(4, plan.cpu_calls // _PROOFS)

        def ask(line: str) -> str:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write(line + "\n")
            peer.stdin.flush()
            answer = peer.stdout.readline().strip()
            if not answer:
                raise RuntimeError(f"TOPLOC's process ended with exit {peer.wait()}, see above")
            return answer

        version = ask(json.dumps({"tokens": TOKENS, "width": WIDTH}))
        yield Sides(ours, lambda: int(ask(str(proofs))) / proofs / 1000, version)
        peer.communicate()


COMPARISON = Comparison(
    name=f"commitment to {TOKENS} tokens vs TOPLOC proof",
    unit="us CPU",
    ours="opening of the serve and commitment to its ids (opening, output_commitment)",
    peer=f"build_proofs_bytes of the same tokens' hidden states, {WIDTH} wide, one thread",
    goal=Goal("<=", 1 / 200),
    sides=_sides,
)
