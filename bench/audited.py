"""A serve of a real model, sealed by a real steward, and its replay: what an auditor pays after what was paid first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.material import bench_key
from bench.measure import PeerMissing, process_cpu_ns
from bench.scratch import scratch
from mesh.cli.engines import packaged_model
from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.protocol import Scores
from mesh.errors import UsageError
from mesh.ledger import Ledger
from mesh.meter.metering import Metering
from mesh.replay.replayer import By, replay
from mesh.schema.disclosure import Disclosure
from mesh.schema.request import Sampling, ServeRequest, prompt_hash_of_text
from mesh.steward.steward import SealedServe, Steward

TEXT = "<|im_start|>user\nWrite a long story about a lighthouse keeper.<|im_end|>\n<|im_start|>assistant\n"
NONCE = b"\x0b" * 32
SEEDED = {"temperature_u": 800_000, "top_p_u": 950_000, "seed": 7}


class _Client:
    """One that waits for the whole answer."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.cut_by: str | None = None
        self.got = 0

    def put(self, token: int, scores: Scores | None = None) -> None:
        self.got += 1

    async def settle(self) -> int:
        return self.got


@dataclass(slots=True)
class Took:
    """Milliseconds of processor time, the engine's process and this one, and on the clock."""

    cpu_ms: float
    wall_ms: float


class Audited:
    """`last` is the newest serve."""

    def __init__(self, runner: asyncio.Runner, steward: Steward, engine: GgufEngine, ids: Sequence[int]) -> None:
        self.engine, self.ids = engine, ids
        self.last: SealedServe
        self._runner, self._steward = runner, steward

    def serve(self, tokens: int, *, seeded: bool = False) -> Took:
        return self._took(lambda: self._runner.run(self._serve(tokens, SEEDED if seeded else {})))

    def replay(self, *, by: By = "auto") -> Took:
        """Raises RuntimeError where it is not verified in the way that was asked for."""
        disclosure = self.last.disclosure(prompt=TEXT)
        return self._took(lambda: self._runner.run(self._replay(disclosure, by)))

    def _took(self, call: Callable[[], None]) -> Took:
        assert self.engine.pid is not None
        cpu, own, wall = process_cpu_ns(self.engine.pid), time.process_time_ns(), time.perf_counter_ns()
        call()
        wall = time.perf_counter_ns() - wall
        cpu = process_cpu_ns(self.engine.pid) - cpu + time.process_time_ns() - own
        return Took(cpu / 1e6, wall / 1e6)

    async def _serve(self, tokens: int, sampling: dict[str, int]) -> None:
        request = ServeRequest.of(
            prompt_hash=prompt_hash_of_text(TEXT, NONCE),
            prompt_tokens=len(self.ids),
            max_tokens=tokens,
            fidelity_floor=0,
            sampling=Sampling.from_map(Sampling.greedy().to_map() | {"ignore_eos": True} | sampling),
            nonce=NONCE,
        )
        admitted = await self._steward.admit(request, [self.engine], caller="bench")
        serve = await self._steward.serve(admitted, self.ids, _Client(), serve_id=self._steward.new_serve_id())
        if not isinstance(serve, SealedServe):
            raise RuntimeError("a serve was not sealed")
        self.last = serve

    async def _replay(self, disclosure: Disclosure, by: By) -> None:
        verdict = await replay(self.last.sealed.envelope, disclosure, self.engine, {self._steward.public}, by=by)
        if (verdict.kind, verdict.method) != ("verified", "prefill" if by == "auto" else "decode"):
            raise RuntimeError(f"a replay says {verdict}")


@contextmanager
def audited(
    *, threads: int = 1, width: int | None = None, path: Path | None = None, **config: object
) -> Iterator[Audited]:
    """`threads` and `width` are those of passes over known outputs. Raises PeerMissing without the packaged model."""
    try:
        model = path or packaged_model()
    except UsageError as e:
        raise PeerMissing("the packaged model is not installed") from e
    options: dict[str, object] = {"slots": 1, "check_threads": threads, "check_width": width, **config}
    key = bench_key(f"audit {time.time_ns()}")  # a ledger claims its key for the whole machine
    with (
        scratch("audit") as folder,
        asyncio.Runner() as runner,
        Ledger.open(folder / "state" / "ledger.sqlite", steward=key.public) as ledger,
    ):
        engine = runner.run(GgufEngine.start(GgufConfig(model, "bench", **options)))  # type: ignore[arg-type]
        metering = Metering(())
        metering.start()
        try:
            steward = Steward(key=key, ledger=ledger, metering=metering)
            yield Audited(runner, steward, engine, runner.run(engine.encode(TEXT, special=True)))
            runner.run(steward.close())
        finally:
            metering.close()
            runner.run(engine.close())
