"""`mesh meter calibrate`: what a busy core of this machine draws, from a meter in its plug."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED
from mesh.cli.newfile import check_new, write_new
from mesh.errors import MeterError, UsageError

if TYPE_CHECKING:
    from mesh.meter.calibration import Calibration, Point

_NS_PER_S = 10**9
_SET_NS = _NS_PER_S  # by how much the wall clock may run apart from the monotonic one within a step
_MAX_LEVELS = 64

_Parsed = TypeVar("_Parsed")

STEPS = """
Put a wall meter between the machine and its plug, with nothing else behind it, and let the machine be idle. The command
keeps 0, then some, then all cores busy, waits --settle seconds on each step until the meter stands still, and asks for
the watts it shows: one number or several, apart by spaces, then Enter. The load stays on until you have answered, and
--seconds at least. Then it goes down the same steps (--rounds), so that a machine that grows warm does not look like
one that draws more. A meter that writes a log needs no typing: --readings FILE, a CSV of `time,watts` by this
machine's clock, is read when the ladder is done. --points FILE, a CSV of `busy_cores,watts`, makes no load at all.
Afterwards: `mesh serve --cpu-calibration FILE`, or cpu_calibration = "FILE" below [meter] of mesh.toml.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was held: Unix nanoseconds from when the meter stood still to its end, millionths of busy cores,
    and microwatts where somebody typed them."""

    from_ns: int
    to_ns: int
    busy_u: int
    watts_u: int | None


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "calibrate", help="watts of a busy core, fitted to readings of a wall meter", description=STEPS
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the calibration; must not exist")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--readings", metavar="FILE", help="the wall meter's log of the ladder: CSV of time,watts")
    source.add_argument("--points", metavar="FILE", help="no ladder: CSV of busy_cores,watts")
    parser.add_argument("--cores", type=levels, metavar="N,...", help="busy cores on each step (0 to all, in 5 steps)")
    parser.add_argument("--settle", type=whole, default=15, metavar="S", help="seconds before a step counts (15)")
    parser.add_argument("--seconds", type=positive, default=20, metavar="S", help="seconds that it counts (20)")
    parser.add_argument("--rounds", type=positive, default=2, metavar="N", help="times up or down the ladder (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def levels(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts) or len(parts) > _MAX_LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of at most {_MAX_LEVELS} numbers of cores")
    found = tuple(sorted({int(part) for part in parts}))
    if len(found) < 3:
        raise argparse.ArgumentTypeError(f"{text!r}: at least three different numbers of cores are needed")
    return found


def whole(text: str) -> int:
    return 0 if text == "0" else positive(text)


def run(args: argparse.Namespace) -> int:
    from mesh.meter.calibration import Calibration
    from mesh.meter.load import logical_cores, processor_name

    out = Path(args.out)
    check_new(out)  # before a ladder of minutes and not after it
    cores = logical_cores()
    points = _points(args, cores)
    made = Calibration.of(points, processor=processor_name(), cores=cores)
    write_new(out, [made.to_json()])
    _tell(made, args)
    return ACCEPTED


def _points(args: argparse.Namespace, cores: int) -> Sequence[Point]:
    from mesh.meter.calibration import Point
    from mesh.meter.wall import parse_points, parse_readings, watts_within

    if args.points is not None:
        return _of_file(args.points, parse_points)
    ladder = args.cores or default_levels(cores)
    if ladder[-1] > cores:
        raise UsageError(f"--cores {ladder[-1]}: this machine has {cores}")
    typed = args.readings is None
    steps = list(climb(turns(ladder, args.rounds), args.settle, args.seconds, _typed if typed else None))
    if typed:
        return [Point(step.busy_u, step.watts_u) for step in steps if step.watts_u is not None]
    if sys.stdin.isatty():
        note(f"done. Let the meter write its log to {args.readings}, then press Enter")
        sys.stdin.readline()
    readings = _of_file(args.readings, parse_readings)
    points = []
    for number, step in enumerate(steps, start=1):
        watts_u = watts_within(readings, step.from_ns, step.to_ns)
        if watts_u is None:
            raise MeterError(
                f"wall meter readings: none of step {number}, from {step.from_ns / _NS_PER_S:.1f} to "
                f"{step.to_ns / _NS_PER_S:.1f} Unix seconds; is the meter's clock that of this machine?"
            )
        points.append(Point(step.busy_u, watts_u))
    return points


def _of_file(name: str, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Raises MeterError, naming the file, and OSError."""
    try:
        return parse(Path(name).read_bytes())
    except MeterError as e:
        raise MeterError(f"{name}: {e}") from None


def default_levels(cores: int) -> tuple[int, ...]:
    """0 to all cores, in at most five steps; of a single core, twice as many processes as it has are not more load."""
    if cores < 2:
        raise UsageError("a machine of one core has no ladder to climb: --points takes what was measured elsewhere")
    return tuple(sorted({cores * step // 4 for step in range(5)}))


def turns(ladder: Sequence[int], rounds: int) -> list[int]:
    """Up, down, up, ..."""
    return [level for turn in range(rounds) for level in (ladder if turn % 2 == 0 else reversed(ladder))]


def climb(ladder: Sequence[int], settle_s: int, hold_s: int, ask: Callable[[], int] | None = None) -> Iterator[Step]:
    """Hold each load in turn. `ask` gives microwatts while the load is on. Raises MeterError where the clock was set
    meanwhile, since nobody could say then which readings belong to a step."""
    from mesh.meter.load import Busy, Load

    for number, level in enumerate(ladder, start=1):
        note(f"step {number} of {len(ladder)}: {counted(level, 'busy core')}, {settle_s} s until it counts")
        with Load(level):
            time.sleep(settle_s)
            busy, from_ns, began_ns = Busy(), time.time_ns(), time.monotonic_ns()
            watts_u = None if ask is None else ask()
            time.sleep(max(0, began_ns + hold_s * _NS_PER_S - time.monotonic_ns()) / _NS_PER_S)
            to_ns, busy_u, held_ns = time.time_ns(), busy.cores_u(), time.monotonic_ns() - began_ns
        if abs(to_ns - from_ns - held_ns) > _SET_NS:
            raise MeterError(f"calibration: the clock was set during step {number}")
        yield Step(from_ns, to_ns, busy_u, watts_u)


def _typed() -> int:
    from mesh.meter.wall import typed_watts

    while True:
        note("watts on the wall meter:")
        line = sys.stdin.readline()
        if not line:
            raise UsageError("the readings end before the ladder does")
        try:
            return typed_watts(line)
        except MeterError as e:
            if not sys.stdin.isatty():
                raise
            note(str(e))


def _tell(made: Calibration, args: argparse.Namespace) -> None:
    from mesh.meter.calibration import RULE
    from mesh.meter.cpu_time import cpu_time_method, watts

    fit = made.fit
    method = cpu_time_method(fit.watts_u, (fit.band_u, RULE))
    if args.json:
        told = {"watts_u": fit.watts_u, "band_u": fit.band_u, "idle_u": fit.idle_u}
        points = [{"busy_u": point.busy_u, "watts_u": point.watts_u} for point in made.points]
        emit({"out": args.out, "method": method, **told, "points": points})
        return
    for point in made.points:
        say(f"{watts(point.busy_u)} busy cores: {watts(point.watts_u)} W")
    say(
        f"a busy core draws {watts(fit.watts_u)} W, give or take {watts(fit.band_u)} W (95 %); with none the machine "
        f"draws {watts(fit.idle_u)} W, which no serve is charged"
    )
    say(f"receipts will say {method}")
    note(f"written to {args.out}")
