"""The flags and the table of a configuration that say what is metered, as plain values."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.specs import EngineSpec, MeterSpec, VllmSpec
from mesh.errors import UsageError
from mesh.meter.powercap import BOUNDARIES, POWERCAP

if TYPE_CHECKING:
    from mesh.gateway.config import MeterConfig

FLAGS = ("meter", "rapl_boundary", "gpus", "cpu_calibration")


def add_meter_flags(parser: argparse.ArgumentParser) -> None:
    """--meter and what belongs to it."""
    group = parser.add_argument_group("meter")
    group.add_argument(
        "--meter",
        action="append",
        metavar="METER",
        help="rapl[=DIR], the processor's counter (of another powercap tree), or nvml[=CARD,...], all cards or these, "
        "by number or UUID; may be repeated",
    )
    group.add_argument("--rapl-boundary", choices=BOUNDARIES, help=f"what rapl adds up ({BOUNDARIES[0]})")


def add_calibration_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cpu-calibration",
        type=Path,
        metavar="FILE",
        help="in place of --cpu-watts, what `mesh meter calibrate` fitted on this machine",
    )


def add_gpus_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus",
        type=gpus,
        metavar="CARD,...",
        help="this machine's cards that a vLLM server computes on; none: `none`",
    )


def gpus(text: str) -> tuple[int | str, ...]:
    """Cards by number or UUID, or `none`."""
    if text == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and 0 < len(part) <= 80 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of cards: numbers or UUIDs, or none")
    cards = tuple(int(part) if part.isdigit() and len(part) < 5 else part for part in parts)
    if len(set(cards)) != len(cards):
        raise argparse.ArgumentTypeError(f"{text!r} names a card twice")
    return cards


def flagged(args: argparse.Namespace, *, cpu_watts_u: int | None, calibration: Path | None = None) -> MeterSpec:
    """What the flags ask for. Raises UsageError, and MeterError for a calibration that is none."""
    if cpu_watts_u is not None and calibration is not None:
        raise UsageError("--cpu-watts and --cpu-calibration: one of them says what a core draws")
    spec = _calibrated(MeterSpec(cpu_watts_u), calibration)
    for word in args.meter or ():
        kind, equals, rest = word.partition("=")
        if equals and not rest:
            raise UsageError(f"--meter {word}: nothing after the =")
        if kind == "rapl" and spec.rapl is None:
            spec = replace(spec, rapl=Path(rest) if equals else POWERCAP)
        elif kind == "nvml" and spec.nvml is None:
            spec = replace(spec, nvml=_cards(rest) if equals else "all")
        elif kind in ("rapl", "nvml"):
            raise UsageError(f"--meter {kind}: given twice")
        else:
            raise UsageError(f"--meter {word}: expected rapl or nvml")
    if args.rapl_boundary is not None:
        if spec.rapl is None:
            raise UsageError("--rapl-boundary goes with --meter rapl")
        spec = replace(spec, rapl_boundary=args.rapl_boundary)
    return checked(spec)


def _cards(text: str) -> tuple[int | str, ...]:
    try:
        return gpus(text)
    except argparse.ArgumentTypeError as e:
        raise UsageError(f"--meter nvml: {e}") from None


def configured(config: MeterConfig, base: Path) -> MeterSpec:
    """What a configuration asks for; its paths are relative to `base`. Raises UsageError."""
    tree = {True: POWERCAP, False: None}
    rapl = tree[config.rapl] if isinstance(config.rapl, bool) else base / config.rapl
    nvml = tuple(config.nvml) if isinstance(config.nvml, list) else config.nvml
    calibration = None if config.cpu_calibration is None else base / config.cpu_calibration
    return checked(_calibrated(MeterSpec(config.cpu_watts_u, rapl, config.rapl_boundary, nvml), calibration))


def _calibrated(spec: MeterSpec, path: Path | None) -> MeterSpec:
    """Watts that were fitted on another processor are a guess about this one, with a band that does not hold."""
    if path is None:
        return spec
    from mesh.meter.calibration import RULE, read_calibration
    from mesh.meter.load import logical_cores, processor_name

    made = read_calibration(path)
    here = processor_name(), logical_cores()
    if (made.processor, made.cores) != here:
        raise UsageError(
            f"calibration {path}: made on {made.processor!r} with {made.cores} cores, expected this machine's "
            f"{here[0]!r} with {here[1]}"
        )
    return replace(spec, cpu_watts_u=made.fit.watts_u, cpu_fitted=(made.fit.band_u, RULE))


def checked(spec: MeterSpec) -> MeterSpec:
    """Raises UsageError where two of the meters would count the same energy."""
    if isinstance(spec.nvml, tuple) and len(set(spec.nvml)) != len(spec.nvml):
        raise UsageError("nvml names a card twice")
    if spec.cpu_watts_u is not None and spec.rapl is not None:
        raise UsageError("cpu watts and rapl both count what the processor spends, and receipts would add the two up")
    return spec


def with_gpus(spec: EngineSpec, cards: tuple[int | str, ...] | None) -> EngineSpec:
    """Raises UsageError for an engine that computes on no card."""
    if cards is None:
        return spec
    if not isinstance(spec, VllmSpec):
        raise UsageError("--gpus applies to a vLLM server; this engine computes on the processor")
    return replace(spec, gpus=cards)
