"""A serve of a real model, sealed by a real steward, and its replay: what an auditor pays after what was paid first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.material import bench_key
from bench.measure import PeerMissing, process_cpu_ns
from bench.scratch import scratch
from mesh.cli.engines import packaged_model
from mesh.engine.call_off import CallOff
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
        self.cancelled = CallOff()
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
    """`last` is the newest serve, made by the first engine; `engines` are the auditors' by the threads of their
    passes."""

    def __init__(
        self, runner: asyncio.Runner, steward: Steward, engines: Mapping[int, GgufEngine], ids: Sequence[int]
    ) -> None:
        self.ids = ids
        self.last: SealedServe
        self._runner, self._steward, self._engines = runner, steward, engines
        self._serving = next(iter(engines.values()))

    def serve(self, tokens: int, *, seeded: bool = False) -> Took:
        return self._took(self._serving, lambda: self._runner.run(self._serve(tokens, SEEDED if seeded else {})))

    def replay(self, *, by: By = "auto", threads: int = 1) -> Took:
        """Raises RuntimeError where it is not verified in the way that was asked for."""
        disclosure, engine = self.last.disclosure(prompt=TEXT), self._engines[threads]
        return self._took(engine, lambda: self._runner.run(self._replay(disclosure, engine, by)))

    def _took(self, engine: GgufEngine, call: Callable[[], None]) -> Took:
        assert engine.pid is not None
        cpu, own, wall = process_cpu_ns(engine.pid), time.process_time_ns(), time.perf_counter_ns()
        call()
        wall = time.perf_counter_ns() - wall
        cpu = process_cpu_ns(engine.pid) - cpu + time.process_time_ns() - own
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
        admitted = await self._steward.admit(request, [self._serving], caller="bench")
        serve = await self._steward.serve(admitted, self.ids, _Client(), serve_id=self._steward.new_serve_id())
        if not isinstance(serve, SealedServe):
            raise RuntimeError("a serve was not sealed")
        self.last = serve

    async def _replay(self, disclosure: Disclosure, engine: GgufEngine, by: By) -> None:
        verdict = await replay(self.last.sealed.envelope, disclosure, engine, {self._steward.public}, by=by)
        if (verdict.kind, verdict.method) != ("verified", "prefill" if by == "auto" else "decode"):
            raise RuntimeError(f"a replay says {verdict}")


@contextmanager
def audited(*, threads: Sequence[int] = (1,), path: Path | None = None) -> Iterator[Audited]:
    """An engine for each of `threads`, which are those of passes over known outputs. Raises PeerMissing without the
    packaged model."""
    try:
        model = path or packaged_model()
    except UsageError as e:
        raise PeerMissing("the packaged model is not installed") from e
    key = bench_key(f"audit {time.time_ns()}")  # a ledger claims its key for the whole machine
    with (
        scratch("audit") as folder,
        asyncio.Runner() as runner,
        Ledger.open(folder / "state" / "ledger.sqlite", steward=key.public) as ledger,
    ):
        engines: dict[int, GgufEngine] = {}
        metering = Metering(())
        metering.start()
        try:
            for count in threads:
                config = GgufConfig(model, "bench", slots=1, check_threads=count)
                engines[count] = runner.run(GgufEngine.start(config))
            steward = Steward(key=key, ledger=ledger, metering=metering)
            yield Audited(runner, steward, engines, runner.run(engines[threads[0]].encode(TEXT, special=True)))
            runner.run(steward.close())
        finally:
            metering.close()
            for engine in engines.values():
                runner.run(engine.close())
