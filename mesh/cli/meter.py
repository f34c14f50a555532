"""`mesh meter`: what this machine can measure, what it measures now, and a log of it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mesh.cli import calibrate
from mesh.cli.console import counted, emit, json_safe, note, say
from mesh.cli.engines import positive, watts_u
from mesh.cli.exits import ACCEPTED
from mesh.cli.meter_flags import add_meter_flags, flagged
from mesh.cli.newfile import PUBLIC, check_new, naming
from mesh.cli.tables import print_table, table_of
from mesh.errors import UsageError
from mesh.schema.limits import MAX_SOURCES

if TYPE_CHECKING:
    from mesh.cli.specs import MeterSpec
    from mesh.meter.finding import Finding
    from mesh.meter.protocol import Domain, EnergyMeter, Reading

_NS_PER_S = 10**9


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("meter", help="what this machine can measure, live or as a log")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    probing = actions.add_parser("probe", help="what can be measured here, and why not the rest")
    probing.set_defaults(run=run_probe)

    watching = actions.add_parser("watch", help="the power of every domain, live")
    watching.set_defaults(run=run_watch)

    recording = actions.add_parser(
        "record",
        help="readings into a log that tests play back",
        description="Writes one JSON object a line, as the readings come, until --seconds are over or Ctrl-C.",
    )
    recording.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to; must not exist")
    recording.set_defaults(run=run_record)

    calibrate.add(actions)

    for action in (watching, recording):
        action.add_argument("--seconds", type=positive, metavar="N", help="for so long (until Ctrl-C)")
        action.add_argument("--pid", type=positive, metavar="N", help="also the CPU time of this process tree ...")
        action.add_argument("--cpu-watts", type=watts_u, metavar="W", help="... times watts of one busy core")
    watching.add_argument("--interval-ms", type=positive, default=1000, metavar="N", help="between looks (1000)")
    recording.add_argument("--interval-ms", type=positive, default=100, metavar="N", help="between looks (100)")
    for action, what in ((probing, ""), (watching, " a line, for each look"), (recording, "")):
        add_meter_flags(action)
        action.add_argument("--json", action="store_true", help=f"print one JSON object{what}")


def run_probe(args: argparse.Namespace) -> int:
    found = findings(_asked(args))
    if args.json:
        emit({"found": [_view(one) for one in found]})
    else:
        _print_findings(found)
    return ACCEPTED


def run_watch(args: argparse.Namespace) -> int:
    with _meters(args) as meters, suppress(KeyboardInterrupt):
        if args.json:
            _watch_json(meters, args)
        elif sys.stdout.isatty():
            _watch_live(meters, args)
        else:
            for rows in _looks(meters, args):
                say("  ".join(f"{domain.name} {told}" for domain, _, _, told in rows))
                sys.stdout.flush()
    return ACCEPTED


def run_record(args: argparse.Namespace) -> int:
    from mesh.meter.recorded import log_lines, reading_line

    written, last_ns = 0, 0
    check_new(args.out)
    with _meters(args) as meters:
        domains = [domain for meter in meters for domain in meter.domains()]
        if len(domains) > MAX_SOURCES:
            raise UsageError(f"{len(domains)} domains: a log holds at most {MAX_SOURCES}")
        absent: dict[str, str | None] = {domain.name: None for domain in domains}
        looks = _readings(meters, args)
        first = next(looks)  # what fails here leaves no log behind
        with _log(args.out) as file, suppress(KeyboardInterrupt):
            file.writelines(log_lines(domains))
            for readings in itertools.chain([first], looks):
                for reading in readings:
                    last_ns = max(last_ns, reading.at_ns)
                    file.write(reading_line(reading, not_before_ns=last_ns))
                    if reading.uj is not None:
                        absent.pop(reading.domain, None)
                    elif reading.domain in absent:
                        absent[reading.domain] = reading.reason
                file.flush()
                written += len(readings)
    if args.json:
        emit(
            {
                "out": str(args.out),
                "domains": [domain.name for domain in domains],
                "readings": written,
                "absent": absent,
            }
        )
    else:
        note(f"{counted(written, 'reading')} of {counted(len(domains), 'domain')} written to {args.out}")
        for name, reason in absent.items():
            note(f"{name}: no reading has a figure ({reason or 'no-reading'})")
    return ACCEPTED


@contextmanager
def _log(path: Path) -> Iterator[BinaryIO]:
    """A new file that is gone again where nothing could be written to it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PUBLIC)
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException:
        with suppress(FileNotFoundError):
            if not path.stat().st_size:
                path.unlink()
        raise


def findings(spec: MeterSpec) -> list[Finding]:
    """What each kind of meter finds here. The CPU's time can be had anywhere, and is no measurement."""
    from mesh.meter.finding import Finding

    found: list[Finding] = []
    for meter in device_meters(spec):
        try:
            found += meter.findings()
        finally:
            meter.close()
    found.append(
        Finding(
            "cpu-time", "cpu-time", "modelled",
            "CPU seconds of an engine's processes times the watts of a busy core that you state (--cpu-watts)",
            "cpu-time@<watts>W", _NS_PER_S // os.sysconf("SC_CLK_TCK"),
        )
    )  # fmt: skip
    return found


def device_meters(spec: MeterSpec) -> list[Any]:
    """The meters of devices that were asked for, over everything that there is of each."""
    meters: list[Any] = []
    if spec.rapl is not None:
        from mesh.meter.rapl import RaplMeter

        meters.append(RaplMeter(spec.rapl, boundary=spec.rapl_boundary))
    if spec.nvml is not None:
        from mesh.meter.nvml import NvmlMeter, Wanted, find_cards
        from mesh.meter.visible import card_of

        cards, missing = find_cards()
        if isinstance(spec.nvml, str):
            wanted = [Wanted(str(card.index), card, None) for card in cards]
            wanted = wanted or [Wanted("all", None, None, missing)]
        else:
            found = [(selector, card_of(cards, selector)) for selector in spec.nvml]
            wanted = [
                Wanted(str(selector), card, None, missing or "no-such-card" if card is None else None)
                for selector, card in found
            ]
        meters.append(NvmlMeter(wanted))
    return meters


def _asked(args: argparse.Namespace) -> MeterSpec:
    """The devices that were asked for, by default all."""
    if not args.meter:
        args.meter = ["rapl", "nvml"]
    return flagged(args, cpu_watts_u=None)


@contextmanager
def _meters(args: argparse.Namespace) -> Iterator[Sequence[EnergyMeter]]:
    if (args.pid is None) != (args.cpu_watts is None):
        raise UsageError("--pid and --cpu-watts go together")
    # a process alone is what was asked for where no device was
    devices = () if args.pid is not None and not args.meter else device_meters(_asked(args))
    meters: list[EnergyMeter] = list(devices)
    if args.pid is not None:
        from mesh.meter.cpu_time import CpuTimeMeter

        meters.append(CpuTimeMeter(f"pid-{args.pid}", lambda: args.pid, args.cpu_watts))
    try:
        yield meters
    finally:
        for meter in meters:
            meter.close()


def _readings(meters: Sequence[EnergyMeter], args: argparse.Namespace) -> Iterator[list[Reading]]:
    """A look now and after every interval. What came late does not shift what follows."""
    start_ns, interval_ns = time.monotonic_ns(), args.interval_ms * 1_000_000
    for number in itertools.count():
        due_ns = start_ns + number * interval_ns
        if args.seconds is not None and due_ns - start_ns > args.seconds * _NS_PER_S:
            return
        time.sleep(max(0, due_ns - time.monotonic_ns()) / _NS_PER_S)
        yield [reading for meter in meters for reading in meter.read()]


_Row = tuple["Domain", "Reading", Decimal | None, str]


def _looks(meters: Sequence[EnergyMeter], args: argparse.Namespace) -> Iterator[list[_Row]]:
    """Each domain with its reading and what it shows: power since the look before, or why there is none."""
    domains = {domain.name: domain for meter in meters for domain in meter.domains()}
    before: dict[str, Reading] = {}
    for readings in _readings(meters, args):
        rows = []
        for reading in readings:
            watts = drawn(before.get(reading.domain), reading)
            told = f"absent: {reading.reason}" if reading.uj is None else "..." if watts is None else f"{watts:.3f} W"
            rows.append((domains[reading.domain], reading, watts, told))
            before[reading.domain] = reading
        yield rows


def drawn(before: Reading | None, now: Reading) -> Decimal | None:
    """Watts between two looks, over the time that passed between them; None where nothing can be said."""
    if before is None or before.uj is None or now.uj is None or now.reset or now.uj < before.uj:
        return None
    if now.at_ns <= before.at_ns:
        return None
    return Decimal((now.uj - before.uj) * 1000) / (now.at_ns - before.at_ns)


def _watch_json(meters: Sequence[EnergyMeter], args: argparse.Namespace) -> None:
    for rows in _looks(meters, args):
        told = []
        for domain, reading, watts, _ in rows:
            row: dict[str, Any] = {"domain": domain.name, "at_ns": reading.at_ns}
            row |= {"reason": reading.reason} if reading.uj is None else {"uj": reading.uj}
            row |= {} if watts is None else {"watts": format(watts.quantize(Decimal("0.001")), "f")}
            told.append(row)
        sys.stdout.write(json.dumps(json_safe({"readings": told})) + "\n")
        sys.stdout.flush()


def _watch_live(meters: Sequence[EnergyMeter], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=sys.stdout, highlight=False), auto_refresh=False) as live:
        for rows in _looks(meters, args):
            cells = [(domain.name, told, domain.method) for domain, _, _, told in rows]
            live.update(table_of(("domain", "power", "method"), cells), refresh=True)


def _print_findings(found: Sequence[Finding]) -> None:
    rows = []
    for one in found:
        words = one.words if one.reason is None or one.verdict == "part" else f"{one.words} ({one.reason})"
        rows.append((one.name, one.verdict, one.method or "", _interval(one.resolution_ns), words))
    print_table(table_of(("what", "figure", "method", "moves every", ""), rows))


def _interval(resolution_ns: int | None) -> str:
    return "" if not resolution_ns else f"{Decimal(resolution_ns) / 1_000_000:.1f} ms"


def _view(found: Finding) -> dict[str, Any]:
    fields = {
        "meter": found.meter, "name": found.name, "figure": found.verdict, "method": found.method,
        "resolution_ns": found.resolution_ns, "reason": found.reason, "words": found.words,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}
