"""The digest of a model's file, beside b3sum on the same file: both from the page cache, on all cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides
from bench.scratch import scratch
from mesh.identity.weights import digest_files

_BLOCK_BYTES = 16 * 1024 * 1024


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    with scratch("weights") as folder:
        path = folder / "weights.bin"
        _write(path, plan.file_bytes)

        def ours() -> float:
            start = time.perf_counter_ns()
            digest_files({path.name: path})
            return plan.file_bytes / (time.perf_counter_ns() - start)

        b3sum = shutil.which("b3sum")
        if b3sum is None:
            yield Sides(ours, PeerMissing("b3sum is not on PATH: `apt-get install b3sum` or `cargo install b3sum`"))
            return
        command = [b3sum, "--no-names", "--num-threads", str(len(os.sched_getaffinity(0))), str(path)]

        def peer() -> float:
            start = time.perf_counter_ns()
            subprocess.run(command, check=True, capture_output=True)
            return plan.file_bytes / (time.perf_counter_ns() - start)

        theirs = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        assert theirs == digest_files({path.name: path}).files[0].id.hex()
        version = subprocess.run([b3sum, "--version"], check=True, capture_output=True, text=True).stdout.strip()
        yield Sides(ours, peer, version)


def _write(path: Path, size: int) -> None:
    """Bytes just written are in the page cache, which is where both sides read them."""
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            file.write(os.urandom(min(_BLOCK_BYTES, left)))
        file.flush()
        os.fsync(file.fileno())  # or the disk would still be busy with it in the first rounds


COMPARISON = Comparison(
    name="weights digest vs b3sum",
    unit="GB/s wall",
    ours="digest a page-cached file (digest_files), all cores",
    peer="b3sum of the same file, as many threads, with the start of its process",
    goal=Goal(">=", 0.8),
    sides=_sides,
)
