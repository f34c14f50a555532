"""What Prometheus reads at /metrics: sums over the receipts sealed since the start, and how full it is now.

Per backend and in whole microjoules, so that the sums are those of the ledger. No content, no caller, no key: what is
counted says how much was served and never for whom.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from mesh.gateway.backends import Backends
from mesh.schema.envelope import Sealed
from mesh.schema.receipt import Receipt
from mesh.steward.costs import Costs

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds. An fsync on a good disk is the first, a busy laptop's the middle.
SEAL_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

_MICRO = 1_000_000
_Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Seals:
    """A histogram of how long seals took."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SEAL_BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SEAL_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class _Sums:
    """Over the receipts of one model. `figures` and `uj` are by the basis of the energy figure."""

    finishes: Counter[str] = field(default_factory=Counter)
    prompt: int = 0
    output: int = 0
    delivered: int = 0
    cached: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    uj: Counter[str] = field(default_factory=Counter)
    seals: _Seals = field(default_factory=_Seals)

    def tokens(self) -> Iterator[tuple[str, int]]:
        yield from (("prompt", self.prompt), ("output", self.output))
        yield from (("delivered", self.delivered), ("cached", self.cached))


class Metrics:
    """Counts from the moment it is made; `sealed` is the steward's observer. Everything on the event loop."""

    def __init__(self, backends: Backends, costs: Costs) -> None:
        self._backends = backends
        self._costs = costs
        self._sums: dict[str, _Sums] = {}
        self._refusals: Counter[_Labels] = Counter()

    def sealed(self, sealed: Sealed, took_s: float) -> None:
        receipt: Receipt = sealed.value
        outcome, energy = receipt.outcome, receipt.energy
        sums = self._sums.get(receipt.engine.recipe_id)
        if sums is None:
            sums = self._sums[receipt.engine.recipe_id] = _Sums()
        sums.finishes[outcome.finish] += 1
        sums.prompt += outcome.tokens_in or 0
        sums.output += outcome.tokens_out or 0
        sums.delivered += outcome.tokens_delivered or 0
        sums.cached += outcome.cache_hit_tokens or 0
        sums.figures[energy.basis] += 1
        if energy.uj is not None:
            sums.uj[energy.basis] += energy.uj
        sums.seals.add(took_s)

    def refused(self, reason: str) -> None:
        """A request was turned down; `reason` is one of the codes that errors have."""
        self._refusals[(("reason", reason),)] += 1

    async def show(self, request: web.Request) -> web.Response:
        return web.Response(body=self.text().encode(), headers={"Content-Type": METRICS_TYPE})

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        of_each = self._sums.items()
        yield from _family(
            "mesh_serves_total", "counter", "Sealed serves.",
            (_labelled(model, "finish", each) for model, sums in of_each for each in sums.finishes.items()),
        )  # fmt: skip
        yield from _family(
            "mesh_tokens_total", "counter", "Tokens that receipts count.",
            (_labelled(model, "kind", each) for model, sums in of_each for each in sums.tokens()),
        )  # fmt: skip
        yield from _family(
            "mesh_energy_joules_total", "counter", "Energy in receipts, by how the figure came about.",
            (_labelled(model, "basis", (basis, f"{uj // _MICRO}.{uj % _MICRO:06d}"))
             for model, sums in of_each for basis, uj in sums.uj.items()),
        )  # fmt: skip
        yield from _family(
            "mesh_energy_receipts_total", "counter", "Receipts by the basis of their energy figure; some have none.",
            (_labelled(model, "basis", each) for model, sums in of_each for each in sums.figures.items()),
        )  # fmt: skip
        yield from _family(
            "mesh_joules_per_token", "gauge", "Running mean over the last receipts with a figure.", self._costs_now()
        )
        rooms = [((("model", backend.name),), backend.room) for backend in self._backends.all]
        yield from _family("mesh_slots", "gauge", "Serves that can run at once.", ((m, r.slots) for m, r in rooms))
        yield from _family("mesh_running", "gauge", "Serves that run.", ((m, r.running) for m, r in rooms))
        yield from _family("mesh_queue_length", "gauge", "Serves that wait.", ((m, r.waiting) for m, r in rooms))
        yield from _family("mesh_refusals_total", "counter", "Requests turned down.", self._refusals.items())
        yield from self._seal_lines()

    def _costs_now(self) -> Iterator[tuple[_Labels, str]]:
        for backend in self._backends.all:
            uj = self._costs.learned(backend.engine)
            if uj is not None:
                yield (("model", backend.name),), f"{uj / _MICRO:.9f}"

    def _seal_lines(self) -> Iterator[str]:
        name = "mesh_seal_seconds"
        yield from _head(name, "histogram", "From the end of a serve to its receipt on disk.")
        for model, sums in self._sums.items():
            seals, total = sums.seals, 0
            for bound, count in zip((*SEAL_BUCKETS_S, "+Inf"), seals.counts, strict=True):
                total += count
                yield _sample(f"{name}_bucket", (("model", model), ("le", str(bound))), total)
            yield _sample(f"{name}_sum", (("model", model),), f"{seals.sum_s:.6f}")
            yield _sample(f"{name}_count", (("model", model),), total)


def _family(name: str, kind: str, told: str, samples: Iterable[tuple[_Labels, int | str]]) -> Iterator[str]:
    yield from _head(name, kind, told)
    for labels, value in samples:
        yield _sample(name, labels, value)


def _labelled(model: str, label: str, sample: tuple[str, int | str]) -> tuple[_Labels, int | str]:
    value, count = sample
    return (("model", model), (label, value)), count


def _head(name: str, kind: str, told: str) -> tuple[str, str]:
    return f"# HELP {name} {told}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: _Labels, value: int | str) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{told}}} {value}"


def _escaped(text: str) -> str:
    """A label's value; a model may be called anything that is printable."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
