"""Which meters an operator asked for, made for the engines that run, and what came of it in words.

What was asked for and cannot be measured stays a domain whose readings say why, so that receipts are `absent` for that
reason; another meter never steps in. Each engine's serves cost what happens on the machine and the cards that it
computes on, so each domain lists the engines that it covers. A server of others is somewhere else as far as anyone
here knows, until `gpus` says which of this machine's cards it computes on (none of them: an empty list).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh.cli.specs import EngineSpec, MeterSpec, ReferenceSpec, VllmSpec
from mesh.cli.starting import engine_pid
from mesh.errors import MeterError
from mesh.meter.visible import Card, card_of, visible_cards

if TYPE_CHECKING:
    from mesh.engine.protocol import ServingEngine
    from mesh.meter.finding import Finding
    from mesh.meter.nvml import Wanted
    from mesh.meter.protocol import Domain, EnergyMeter

Running = tuple[EngineSpec, "ServingEngine"]


@dataclass(frozen=True, slots=True)
class OpenMeters:
    """The meters of a gateway, to be closed by whoever has them, and what its operator should be told of them."""

    meters: list[EnergyMeter]
    notes: list[str]


async def open_meters(spec: MeterSpec, running: Sequence[Running], environment: Mapping[str, str]) -> OpenMeters:
    """`environment` is what the servers that are ours inherit. Looks at devices, so not on the event loop."""
    return await asyncio.to_thread(_open, spec, running, environment)


def _open(spec: MeterSpec, running: Sequence[Running], environment: Mapping[str, str]) -> OpenMeters:
    meters: list[EnergyMeter] = []
    notes: list[str] = []
    findings: list[Finding] = []
    try:
        if spec.cpu_watts_u is not None:
            meters += _cpu_time(running, spec.cpu_watts_u, spec.cpu_fitted)
        here = frozenset(engine.recipe_id for spec_of, engine in running if is_here(spec_of))
        if spec.rapl is not None and not here:
            notes.append(
                "meter rapl: not opened, for no engine is known to run on this machine; gpus says that one does"
            )
        elif spec.rapl is not None:
            from mesh.meter.rapl import RaplMeter

            rapl = RaplMeter(spec.rapl, boundary=spec.rapl_boundary, engines=here)
            meters.append(rapl)
            findings += rapl.findings()
        if spec.nvml is not None:
            from mesh.meter.nvml import NvmlMeter, find_cards

            wanted = wanted_cards(spec.nvml, running, environment, *find_cards(), notes)
            if wanted:
                nvml = NvmlMeter(wanted)
                meters.append(nvml)
                findings += nvml.findings()
    except BaseException:
        for meter in meters:
            meter.close()
        raise
    notes += [f"meter {found.name}: {found.words}" for found in findings if found.verdict == "absent"]
    reasons = {found.name: found.reason for found in findings if found.reason is not None}
    domains = [domain for meter in meters for domain in meter.domains()]
    notes += [_of_engine(engine.recipe_id, domains, reasons) for _, engine in running]
    return OpenMeters(meters, notes)


def is_here(spec: EngineSpec) -> bool:
    """Whether an engine is known to run on this machine."""
    return not isinstance(spec, VllmSpec) or spec.url is None or spec.gpus is not None


def _cpu_time(running: Sequence[Running], cpu_watts_u: int, fitted: tuple[int, str] | None) -> list[EnergyMeter]:
    """One for each engine whose processes are ours and nobody else's: a server of others has none here, and beside
    other engines the reference engine's time cannot be told from that of their parent."""
    from mesh.meter.cpu_time import CpuTimeMeter

    return [
        CpuTimeMeter(engine.recipe_id, engine_pid(engine), cpu_watts_u, fitted=fitted)
        for spec, engine in running
        if not (isinstance(spec, VllmSpec) and spec.url is not None)
        and not (isinstance(spec, ReferenceSpec) and len(running) > 1)
    ]


def wanted_cards(
    asked: str | Sequence[int | str],
    running: Sequence[Running],
    environment: Mapping[str, str],
    cards: Sequence[Card],
    missing: str | None,
    notes: list[str],
) -> list[Wanted]:
    """The cards that engines compute on, as far as they were asked for. `missing` is why there are no cards."""
    from mesh.meter.nvml import Wanted

    chosen = list(cards)
    refused: list[Wanted] = []
    if not isinstance(asked, str):
        chosen = []
        for selector in asked:
            card = card_of(cards, selector)
            if card is None:
                refused.append(Wanted(str(selector), None, frozenset(), missing or "no-such-card"))
            else:
                chosen.append(card)
    used: dict[str, tuple[Card, set[str]]] = {}
    lost: dict[tuple[str, str], set[str]] = {}
    for spec, engine in running:
        found, faults = _cards_of(spec, environment, cards, missing)
        for label, reason in faults:
            lost.setdefault((label, reason), set()).add(engine.recipe_id)
        for card in found:
            if card in chosen:
                used.setdefault(card.uuid, (card, set()))[1].add(engine.recipe_id)
            else:
                notes.append(f"meter nvml: {engine.recipe_id} also computes on card {card.index}, which is not metered")
    notes += [
        f"meter nvml: card {card.index} ({card.uuid}) is not metered, for no engine is known to compute on it; "
        "gpus says which do"
        for card in chosen
        if card.uuid not in used
    ]
    if not used and not lost and not chosen and not refused:
        notes.append("meter nvml: no card is metered, for no engine is known to compute on one; gpus says which do")
    engines_of_lost = {label for label, _ in lost}
    return [
        *(Wanted(str(card.index), card, frozenset(engines)) for card, engines in used.values()),
        *(Wanted(label, None, frozenset(engines), reason) for (label, reason), engines in lost.items()),
        *(one for one in refused if one.label not in engines_of_lost),
    ]


def _cards_of(
    spec: EngineSpec, environment: Mapping[str, str], cards: Sequence[Card], missing: str | None
) -> tuple[list[Card], list[tuple[str, str]]]:
    """The cards that an engine computes on, and those that it is said to and that cannot be had: as what, and why."""
    if not isinstance(spec, VllmSpec):
        return [], []  # our own engines compute on the processor
    if spec.gpus is not None:
        found: list[Card] = []
        faults: list[tuple[str, str]] = []
        for selector in spec.gpus:
            card = card_of(cards, selector)
            if card is None:
                faults.append((str(selector), missing or "no-such-card"))
            elif card not in found:
                found.append(card)
        return found, faults
    if spec.url is not None or spec.device not in (None, "cuda"):
        return [], []
    if missing is not None:
        return [], [("all", missing)]
    try:
        visible, order = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER")
        return visible_cards(cards, visible, order), []
    except MeterError:
        return [], [("all", "devices-unknown")]


def _of_engine(recipe_id: str, domains: Sequence[Domain], reasons: Mapping[str, Any]) -> str:
    """What receipts of this engine will say, as far as it is known before the first."""
    covering = [domain for domain in domains if domain.covers(recipe_id)]
    if not covering:
        return f"energy of {recipe_id}: absent, no meter covers it"
    faults = [f"{domain.name} ({reasons[domain.name]})" for domain in covering if domain.name in reasons]
    if faults:
        return f"energy of {recipe_id}: absent while {', '.join(faults)} cannot be read"
    by = ", ".join(f"{domain.name} by {domain.method}" for domain in covering)
    modelled = any(domain.modelled for domain in covering)
    return f"energy of {recipe_id}: {'modelled' if modelled else 'measured'}, {by}"
