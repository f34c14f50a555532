"""`mesh runtime bench`: the matrix that a candidate declares, measured, with a receipt for every request."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import add_candidate_flags
from mesh.cli.exits import ACCEPTED
from mesh.cli.meter_flags import add_calibration_flag, add_gpus_flag, add_meter_flags, flagged, with_gpus
from mesh.cli.newfile import check_new, write_new
from mesh.cli.state import add_state_flag, state_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.runtime.candidate import Candidate
    from mesh.runtime.descriptor import Descriptor
    from mesh.runtime.record import CellOf, Record


def add(actions: Any) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        "bench",
        help="run the matrix that a candidate declares, into a record that its receipts bear out",
        description="Starts the candidate as often as its contract says; the prompts are ours, of the declared sizes. "
        "--check holds a record to the candidate and to the receipts in --state; exit 10 where it is not borne out.",
    )
    parser.add_argument("candidate", metavar="CANDIDATE", help="its folder or its pack")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--out", metavar="FILE", help="the record; must not exist")
    which.add_argument("--check", metavar="FILE", help="a record; runs nothing")
    add_candidate_flags(parser)
    add_state_flag(parser)
    add_calibration_flag(parser)
    add_gpus_flag(parser)
    add_meter_flags(parser)
    parser.set_defaults(run=run)
    return parser  # type: ignore[no-any-return]


def run(args: argparse.Namespace) -> int:
    candidate, descriptor = _read(Path(args.candidate))
    if args.check:
        return _check(args, candidate, descriptor)
    out = Path(args.out)
    check_new(out)
    record = _run(args, candidate, descriptor)
    data = record.to_json()
    write_new(out, (data,))
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if args.json:
        emit({"record": str(out), "digest": digest, "cells": [_figures(cell) for cell in record.cells]})
        return ACCEPTED
    for cell in record.cells:
        say(_words(cell))
    note(f"{out}: {digest}, {counted(sum(len(cell.requests) for cell in record.cells), 'receipt')}")
    return ACCEPTED


def _read(path: Path) -> tuple[Candidate, Descriptor]:
    from mesh.runtime.packing import describe
    from mesh.runtime.unpacking import verify

    if path.is_dir():
        candidate, descriptor, _ = describe(path)
        return candidate, descriptor
    packed = verify(path)
    return packed.candidate, packed.descriptor


def _run(args: argparse.Namespace, candidate: Candidate, descriptor: Descriptor) -> Record:
    from mesh.cli.bench_run import run_contexts
    from mesh.cli.candidates import spec_of_candidate
    from mesh.cli.specs import ReferenceSpec
    from mesh.runtime.matrix import contexts
    from mesh.runtime.prompts import NAME
    from mesh.runtime.record import SCHEMA_VERSION, Record, candidate_of

    models = None if args.models is None else Path(args.models)
    spec = with_gpus(spec_of_candidate(Path(args.candidate), models, executable=args.vllm_executable), args.gpus)
    assert not isinstance(spec, ReferenceSpec)
    assert spec.candidate is not None
    if spec.candidate.runtime_digest != descriptor.digest:
        raise UsageError(f"{args.candidate}: changed while it was read")
    meter = flagged(args, cpu_watts_u=args.cpu_watts, calibration=args.cpu_calibration)
    contract = candidate.benchmark.contract
    began_ms = time.time_ns() // 10**6
    ran = asyncio.run(
        run_contexts(
            spec, spec.candidate, contexts(contract), state_of(args), meter,
            interval_s=contract.sample_interval_seconds, tell=note,
        )
    )  # fmt: skip
    return Record(
        schema_version=SCHEMA_VERSION, prompts=NAME, steward=ran.steward, began_ms=began_ms,
        ended_ms=time.time_ns() // 10**6, candidate=candidate_of(candidate, descriptor, spec.candidate.payload),
        machine=_machine(), engines=ran.engines, cells=ran.cells,
    )  # fmt: skip


def _machine() -> Any:
    import mesh
    from mesh.cli.envelope import memory_bytes
    from mesh.meter.load import processor_name
    from mesh.runtime.record import Machine

    memory = memory_bytes("MemTotal")
    return Machine(
        system=platform.system(), release=platform.release(), architecture=platform.machine(),
        processor=processor_name() or "unknown", cores=len(os.sched_getaffinity(0)),
        python=".".join(map(str, sys.version_info[:3])), mesh=mesh.__version__,
        **({} if memory is None else {"memory_bytes": memory}),
    )  # fmt: skip


def _check(args: argparse.Namespace, candidate: Candidate, descriptor: Descriptor) -> int:
    from mesh.cli.bench_check import receipt_faults
    from mesh.identity.files import open_regular
    from mesh.runtime.faults import raise_faults
    from mesh.runtime.record import MAX_RECORD_BYTES, Record, record_faults

    with open_regular(Path(args.check)) as file:
        record = Record.from_json(file.read(MAX_RECORD_BYTES + 1), what=args.check)
    with state_of(args).open_reader() as reader:
        faults = [*record_faults(record, candidate, descriptor), *receipt_faults(record, reader)]
    raise_faults(faults, args.check)
    receipts = sum(len(cell.requests) for cell in record.cells)
    if args.json:
        emit({"record": args.check, "good": True, "receipts": receipts})
    else:
        say(f"good: {candidate.id} {candidate.version}, {counted(receipts, 'receipt')}")
    return ACCEPTED


def _figures(cell: CellOf) -> dict[str, Any]:
    """What people ask first: tokens a second, of all streams together, and the wait for a first token."""
    told: dict[str, Any] = {
        "part": cell.part, "case": cell.case, "domain": cell.domain, "prompt_tokens": cell.prompt_tokens,
        "concurrency": cell.concurrency, "repetition": cell.repetition,
    }  # fmt: skip
    if cell.skipped is not None or cell.wall_ns is None:
        return {**told, "skipped": cell.skipped}
    tokens = sum(request.tokens_out for request in cell.requests)
    first = sorted(request.first_ns for request in cell.requests)
    told |= {
        "tokens_per_s": round(tokens * 1e9 / cell.wall_ns, 2),
        "first_ms": round(first[len(first) // 2] / 1e6, 1),
    }
    figures = [request.energy.uj for request in cell.requests]
    if all(uj is not None for uj in figures):
        told["uj_per_token"] = round(sum(uj or 0 for uj in figures) / tokens)
        told["basis"] = sorted({request.energy.basis for request in cell.requests})
    return told


def _words(cell: CellOf) -> str:
    figures = _figures(cell)
    name = f"{cell.case} {cell.domain} x{cell.concurrency}" + (f" again {cell.repetition}" if cell.repetition else "")
    if cell.skipped is not None:
        return f"{name:32}skipped: {cell.skipped}"
    energy = ""
    if "uj_per_token" in figures:
        energy = f", {figures['uj_per_token'] / 1e6:.6f} J a token, {' and '.join(figures['basis'])}"
    return f"{name:32}{figures['tokens_per_s']:.2f} tokens/s, first after {figures['first_ms']:.1f} ms{energy}"
