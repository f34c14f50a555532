"""A candidate's benchmark, run: engines started as its contract says, requests over HTTP, a receipt for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh.cli.assembly import Assembly, assembled
from mesh.cli.client import Gateway as Client
from mesh.cli.envelope import held_bytes, memory_bytes
from mesh.cli.specs import CandidateSpec, EngineSpec, MeterSpec
from mesh.cli.state import State
from mesh.errors import CandidateError, EngineUnsupported, MeshError

if TYPE_CHECKING:
    from mesh.engine.protocol import TextEngine
    from mesh.runtime.matrix import Cell
    from mesh.runtime.record import CellOf, EngineOf, Measured, Sample

_DAY_S = 86_400

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ran:
    """What all starts together gave."""

    steward: str
    engines: list[EngineOf]
    cells: list[CellOf]


async def run_contexts(
    spec: EngineSpec, candidate: CandidateSpec, groups: Sequence[Sequence[Cell]], state: State, meter: MeterSpec,
    *, interval_s: float, tell: Tell,
) -> Ran:  # fmt: skip
    """Start the candidate once for each group of cells, and run them in order. Raises as a start does, CandidateError
    where an answer is not as long as the contract wants it."""
    from mesh.runtime.record import EngineOf
    from mesh.schema.ids import ContentId, steward_text

    engines: list[EngineOf] = []
    cells: list[CellOf] = []
    steward = ""
    for number, group in enumerate(groups):
        async with assembled(state, [spec], meter=meter, note=tell) as mesh:
            engine = mesh.engine
            steward = steward_text(mesh.steward.public)
            weights = engine.weights_digest
            engines.append(
                EngineOf(
                    backend_id=engine.backend_id,
                    settings_digest=ContentId.of("settings", dict(engine.settings)).text,
                    deterministic=getattr(getattr(engine, "self_check", None), "deterministic", False),
                    **({} if weights is None else {"weights_digest": weights.text}),
                )
            )
            cells += await _context(mesh, candidate, number, group, interval_s=interval_s, tell=tell)
    return Ran(steward, engines, cells)


async def _context(
    mesh: Assembly, candidate: CandidateSpec, number: int, group: Sequence[Cell], *, interval_s: float, tell: Tell
) -> list[CellOf]:
    from mesh.gateway.app import Gateway
    from mesh.gateway.config import GatewayConfig
    from mesh.runtime.record import CellOf

    # what waits is as many as a candidate lets in; how long it takes is what is measured
    config = GatewayConfig(queue=candidate.max_connections, queue_wait_s=_DAY_S, deadline_s=_DAY_S)
    gateway = Gateway(mesh.steward, [mesh.engine], config)
    port = await gateway.start("127.0.0.1", 0)
    done = []
    try:
        for cell in group:
            same: dict[str, Any] = {
                "context": number, "part": cell.part, "case": cell.case, "domain": cell.domain,
                "prompt_tokens": cell.prompt_tokens, "concurrency": cell.concurrency, "repetition": cell.repetition,
            }  # fmt: skip
            if (skipped := _no_room(cell, candidate)) is not None:
                done.append(CellOf(**same, skipped=skipped))
                continue
            run = _Run(mesh, f"http://127.0.0.1:{port}", cell)
            wall_ns, requests, samples = await run.measured(interval_s)
            done.append(CellOf(**same, wall_ns=wall_ns, requests=requests, samples=samples))
            tokens = sum(request.tokens_out for request in requests)
            tell(f"{cell.case} {cell.domain} x{cell.concurrency}: {tokens} tokens in {wall_ns / 1e9:.1f} s")
    finally:
        await gateway.stop()
    return done


def _no_room(cell: Cell, candidate: CandidateSpec) -> str | None:
    """Why a served candidate would refuse a cell; None where it would not."""
    if cell.tokens > candidate.max_context_tokens:
        return f"takes {cell.tokens} tokens of context, serving.max_context_tokens is {candidate.max_context_tokens}"
    if cell.concurrency > candidate.max_connections:
        return f"takes {cell.concurrency} connections, serving.max_connections is {candidate.max_connections}"
    return None


@dataclass(frozen=True, slots=True)
class _Run:
    mesh: Assembly
    url: str
    cell: Cell

    async def measured(self, interval_s: float) -> tuple[int, list[Measured], list[Sample]]:
        """Nanoseconds from the first request's start to the last answer's end, and what each gave."""
        prompts = [await self._prompt(stream) for stream in range(self.cell.concurrency)]
        loop = asyncio.get_running_loop()
        began_ns = time.monotonic_ns()
        sampling = asyncio.ensure_future(self._sampled(began_ns, interval_s))
        try:
            with ThreadPoolExecutor(len(prompts)) as pool:
                answers = await asyncio.gather(*(loop.run_in_executor(pool, self._ask, each) for each in prompts))
            wall_ns = time.monotonic_ns() - began_ns
        finally:
            sampling.cancel()
        samples = (await asyncio.gather(sampling, return_exceptions=True))[0]
        assert isinstance(samples, list)
        return wall_ns, [self._measured(*answer) for answer in answers], samples

    async def _prompt(self, stream: int) -> str:
        from mesh.engine.protocol import has_text
        from mesh.runtime.prompts import prompt

        engine = self.mesh.engine
        if not has_text(engine):
            raise EngineUnsupported(f"{engine.recipe_id}: without a chat template no prompt can be counted")
        text: TextEngine = engine

        async def count(message: str) -> int:
            rendered = await text.render([{"role": "user", "content": message}])
            return len(await text.encode(rendered, special=True))

        return await prompt(self.cell.domain, self.cell.prompt_tokens, count, seed=self.cell.case, stream=stream)

    def _ask(self, text: str) -> tuple[str, int, int]:
        """In a thread: the receipt's id, and nanoseconds to the first token and to the end."""
        request = self.cell.request
        body: dict[str, Any] = {
            "model": self.mesh.engine.recipe_id,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": request.output_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
            # an answer that has to have so many tokens may not end before
            "ignore_eos": request.min_completion_tokens == request.output_tokens and not request.require_natural_stop,
        }
        began_ns, first_ns, receipt = time.monotonic_ns(), 0, ""
        for event in Client(self.url).stream("/v1/chat/completions", body):
            said = any((choice.get("delta") or {}).get("content") for choice in event.get("choices") or ())
            if said and not first_ns:
                first_ns = time.monotonic_ns() - began_ns
            receipt = (event.get("mesh") or {}).get("receipt_id") or receipt
        total_ns = time.monotonic_ns() - began_ns
        return receipt, first_ns or total_ns, total_ns

    def _measured(self, receipt: str, first_ns: int, total_ns: int) -> Measured:
        from mesh.runtime.record import Energy, Measured
        from mesh.schema.envelope import RECEIPT_TYPE, verify
        from mesh.schema.ids import ContentId

        steward = self.mesh.steward
        entry = steward.reader.by_receipt(bytes(ContentId.from_text(receipt)))
        if entry is None:
            raise MeshError(f"the ledger lacks receipt {receipt}")
        sealed = verify(entry.envelope, RECEIPT_TYPE, {steward.public}).value
        outcome, energy = sealed.outcome, sealed.energy
        least = self.cell.request.min_completion_tokens
        if outcome.finish not in ("stop", "length") or (outcome.tokens_out or 0) < least:
            raise CandidateError(
                f"case {self.cell.case}: an answer of {outcome.tokens_out} tokens that ended in {outcome.finish}, "
                f"expected at least {least}"
            )
        return Measured(
            receipt=receipt, tokens_in=outcome.tokens_in or 0, tokens_out=outcome.tokens_out or 0,
            finish=outcome.finish, first_ns=first_ns, total_ns=total_ns,
            energy=Energy(basis=energy.basis, **({} if energy.uj is None else {"uj": energy.uj})),
        )  # fmt: skip

    async def _sampled(self, began_ns: int, interval_s: float) -> list[Sample]:
        from mesh.runtime.record import Sample

        samples: list[Sample] = []
        try:
            while True:
                pid = getattr(self.mesh.engine, "pid", None)
                found = {
                    "available_bytes": memory_bytes("MemAvailable"),
                    "engine_bytes": None if pid is None else held_bytes(pid),
                }
                known = {name: value for name, value in found.items() if value is not None}
                samples.append(Sample(at_ms=(time.monotonic_ns() - began_ns) // 10**6, **known))
                await asyncio.sleep(interval_s)
        except asyncio.CancelledError:
            return samples
