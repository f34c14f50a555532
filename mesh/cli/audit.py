"""`mesh audit`: many receipts at once: whether they are whole, whether energy adds up, whether they are true."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import BLUEPRINT_FLAGS, ENGINE_FLAGS, add_engine_flags, kind_of, positive, spec_of, spelled
from mesh.cli.exits import NOT_RUN
from mesh.cli.newfile import check_new, write_new
from mesh.cli.replay import read_text as read_grammar
from mesh.cli.trust import add_trust_flag, read_trust
from mesh.errors import Invalid, LedgerCorrupt, SchemaError, StructureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh.cli.audit_journal import Journal
    from mesh.cli.audit_progress import Progress
    from mesh.cli.audit_replays import Replays
    from mesh.cli.audit_sources import AuditSource
    from mesh.cli.specs import EngineSpec
    from mesh.replay.census import Census
    from mesh.replay.judged import Judged, Judgements
    from mesh.replay.plan import Plan
    from mesh.replay.report import Report
    from mesh.schema.ids import ContentId

_DESCRIPTION = """Checks the receipts of ledgers, exports and gateways: envelopes, numbers, signed counts, and whether
energy adds up; and, with an engine, runs their serves again. Exit code 0: all good; 10: anything wrong, missing or
Diverged; 11: something could not be decided. MESH_API_KEY holds the credential for a gateway."""

# Replays of a GGUF model from which it pays to measure passes with more threads: about one long answer's worth of work.
_MANY = 16
_MOST_JOBS = 64
_MOST_THREADS = 8  # a pass over a small model gains nothing beyond


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("audit", help="check and replay many receipts, and report", description=_DESCRIPTION)
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a state directory or ledger, an export (.cborseq or a folder), receipt files, or a gateway's URL",
    )
    add_trust_flag(parser)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--complete", action="store_true", help="also refuse where a steward's first receipts are missing"
    )
    extent.add_argument(
        "--partial", action="store_true", help="these are some of the receipts: gaps are told, not refused"
    )
    which = parser.add_argument_group("what is replayed")
    which.add_argument("--sample", type=positive, metavar="N", help="N receipts of each steward, drawn by --seed (all)")
    which.add_argument(
        "--seed", metavar="HEX", help="a public value that nobody knew when the head was named, such as a beacon's"
    )
    which.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="ID",
        help="the steward's last receipt, b3:..., as named before the seed was there; may be given again for another",
    )
    which.add_argument("--each-model", action="store_true", help="draw N receipts of each model of each steward")
    which.add_argument(
        "--disclosures", action="append", default=[], type=Path, metavar="DIR",
        help="a folder of disclosures (names that hold `disclosure`); ledgers and gateways are asked too",
    )  # fmt: skip
    which.add_argument(
        "--grammar", action="append", default=[], type=Path, metavar="FILE", help="as `mesh replay` takes it"
    )
    which.add_argument("--config", type=Path, metavar="FILE", help="replay on the backends of a mesh.toml")
    which.add_argument("--jobs", type=positive, metavar="N", help="engines at once, each with the model loaded (1)")
    which.add_argument("--resume", type=Path, metavar="FILE", help="keep each verdict in FILE, and go on from it")
    which.add_argument(
        "--score",
        action="store_true",
        help="where a serve cannot be judged, say which share of its tokens this engine would choose: no verdict",
    )
    add_engine_flags(parser, required=False, behind_dashes=False)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the report as a page; must not exist")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.cli.audit_progress import Progress
    from mesh.cli.audit_sources import source_of
    from mesh.cli.audit_words import report_words
    from mesh.replay.draw import seed_of
    from mesh.replay.judged import Judgements
    from mesh.replay.plan import Asked, planned
    from mesh.replay.report import Report

    specs = _specs(args)
    _check_flags(args, specs)
    try:
        seed = None if args.seed is None else seed_of(args.seed)
    except Invalid as e:
        raise UsageError(f"--{e}") from None
    if args.html is not None:
        check_new(args.html)
    trust = read_trust(args.trust)
    credential = os.environ.get("MESH_API_KEY")
    with ExitStack() as held:
        sources = []
        for name in args.sources:
            source = source_of(name, credential=credential, complete=args.complete, partial=args.partial)
            held.callback(source.close)
            sources.append(source)
        journal = _journal(args.resume, held)
        progress = held.enter_context(Progress())
        census = take_census(sources, trust, progress)
        heads, named = _heads(args.head, journal)
        asked = Asked(args.sample, seed, heads, named, each_model=args.each_model)
        plan = planned(census, asked, "; ".join(map(_told, specs)) or None)
        judged = Judgements()
        if specs:
            _Replaying(args, sources, census, plan, judged, journal, progress).run(specs)
    report = Report(census, plan, judged)
    if args.json:
        emit(report.to_json())
    else:
        say(report_words(report))
    return report.exit_code if args.html is None or _page_written(args.html, report) else report.exit_code or NOT_RUN


def _page_written(path: Path, report: Report) -> bool:
    """Whether it could be. The report is told already: what was found in hours is not lost where a disk is full."""
    from mesh.cli.audit_page import page

    try:
        write_new(path, [page(report)])
    except OSError as e:
        note(f"mesh audit: {path}: {(e.strerror or str(e)).lower()}; the page was not written")
        return False
    return True


def _specs(args: argparse.Namespace) -> list[EngineSpec]:
    """What to replay on; nothing where no engine is named."""
    from dataclasses import replace

    from mesh.cli.specs import VllmSpec
    from mesh.cli.starting import check_files

    specs: list[EngineSpec] = []
    if args.config is not None:
        from mesh.cli.serve_plan import backend_spec
        from mesh.gateway.config import MeshConfig

        given = [flag for flag in (*ENGINE_FLAGS, *BLUEPRINT_FLAGS) if getattr(args, flag)]
        if given:
            raise UsageError(f"--config says which engines; {', '.join(map(spelled, given))} does not go with it")
        config = MeshConfig.load(args.config)
        specs = [backend_spec(backend, args.config.parent, config.blueprints) for backend in config.backend]
    elif kind_of(args) is not None:
        specs = [spec_of(args)]
    specs = [replace(spec, margins=True) if isinstance(spec, VllmSpec) else spec for spec in specs]
    for spec in specs:
        check_files(spec)
    return specs


def _check_flags(args: argparse.Namespace, specs: Sequence[EngineSpec]) -> None:
    if (args.sample is None) != (args.seed is None):
        raise UsageError("--sample and --seed come together: what is drawn must not be anybody's choice")
    if args.each_model and args.sample is None:
        raise UsageError("--each-model is about --sample")
    if (args.jobs or 1) > _MOST_JOBS:
        raise UsageError(f"--jobs {args.jobs}: at most {_MOST_JOBS} engines run at once")
    if specs:
        return
    given = [flag for flag in (*ENGINE_FLAGS, *BLUEPRINT_FLAGS) if getattr(args, flag)]
    given += [flag for flag in ("grammar", "jobs", "resume", "score") if getattr(args, flag)]
    if given:
        names = ", ".join(map(spelled, given))
        raise UsageError(f"{names}: nothing is replayed without an engine (--gguf, --vllm, --reference or --config)")


def _on_all_cores(spec: EngineSpec, count: int, jobs: int) -> EngineSpec:
    """With the threads that an auditor alone on this machine has for passes over `count` outputs, unless somebody said
    how many. They are used where they are measured to change no bit."""
    from dataclasses import replace

    from mesh.cli.specs import GgufSpec

    if not isinstance(spec, GgufSpec) or spec.check_threads is not None or count < _MANY:
        return spec
    threads = min(_cores() // jobs, _MOST_THREADS)
    return replace(spec, check_threads=threads) if threads > (spec.threads or 1) else spec


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _told(spec: EngineSpec) -> str:
    """What replays, for the report and the journal."""
    from mesh.cli.specs import GgufSpec, VllmSpec

    match spec:
        case GgufSpec():
            return f"gguf {spec.name or spec.path.name}"
        case VllmSpec():
            return f"vllm {spec.url or spec.weights}"
        case _:
            return f"the reference engine as {spec.name or 'reference'}"


def _journal(path: Path | None, held: ExitStack) -> Journal | None:
    if path is None:
        return None
    from mesh.cli.audit_journal import Journal

    journal = Journal.open(path)
    held.callback(journal.close)
    return journal


def _heads(given: Sequence[str], journal: Journal | None) -> tuple[tuple[ContentId, ...], bool]:
    """The heads up to which is replayed, and whether the auditor named them. A run that goes on takes those of the run
    that began: meanwhile the steward may have served more."""
    from mesh.schema.ids import ContentId

    try:
        named = tuple(ContentId.from_text(text) for text in given)
        begun = None if journal is None else journal.begun()
        if not named and begun is not None:
            return tuple(map(ContentId.from_text, begun.get("heads", []))), bool(begun.get("committed"))
    except Invalid as e:
        raise UsageError(f"--head: {e}") from None
    return named, bool(named)


def take_census(sources: Sequence[AuditSource], trust: Collection[bytes], progress: Progress) -> Census:
    """Check every envelope of every source. Raises OSError or LedgerError where one cannot be read."""
    from mesh.replay.census import Census

    census = Census(trust)
    with progress.counting("checking envelopes") as tick:
        for source in sources:
            census.open(source.about)
            try:
                for envelope, where, place in source.envelopes():
                    census.take(envelope, where, place)
                    tick()
            except StructureError as e:
                census.fault("envelope", e, source.about.label)
            except LedgerCorrupt as e:
                census.fault("ledger", e, source.about.label)
        census.finish()
    return census


@dataclass(frozen=True, slots=True)
class _Replaying:
    """The replays of one audit, with what is kept of them."""

    args: argparse.Namespace
    sources: Sequence[AuditSource]
    census: Census
    plan: Plan
    judged: Judgements
    journal: Journal | None
    progress: Progress

    def run(self, specs: Sequence[EngineSpec]) -> None:
        """Replay what was not replayed before."""
        from mesh.cli.audit_replays import Replays
        from mesh.cli.audit_sources import Disclosures
        from mesh.replay.plan import chosen

        left = chosen(self.census, self.plan)
        total = sum(map(len, left.values()))
        done = self._go_on(left)
        disclosures = Disclosures(self.args.disclosures, self.sources)
        for path, error in disclosures.broken:
            self.census.fault("disclosure", error, str(path))
        if done:
            note(f"{counted(done, 'receipt')} of {total} replayed before")
        if done < total:
            with self.progress.counting("replaying", total=total, done=done) as tick:

                def judged(one: Judged) -> None:
                    if self.journal is not None:
                        self.journal.add(one)
                    self._take(one)
                    tick()

                replays = Replays(
                    self.sources, disclosures, self.census.trust, self.census.groups, left, judged,
                    grammars=[read_grammar(path) for path in self.args.grammar], scoring=self.args.score,
                )  # fmt: skip
                self._run(replays, specs, total)

    def _take(self, one: Judged) -> None:
        self.judged.add(one)
        if one.disclosure_fault is not None:
            self.census.fault("disclosure", SchemaError(one.disclosure_fault), f"seq {one.seq}")

    def _run(self, replays: Replays, specs: Sequence[EngineSpec], total: int) -> None:
        try:
            jobs = self.args.jobs or 1
            asyncio.run(replays.run([_on_all_cores(spec, total - self.judged.count, jobs) for spec in specs], jobs))
        except KeyboardInterrupt:
            how = "nothing of it is kept" if self.journal is None else f"--resume {self.args.resume} goes on"
            note(f"stopped after {self.judged.count} of {counted(total, 'replay')}: {how}")
            raise

    def _go_on(self, left: dict[int, set[bytes]]) -> int:
        """Take what the journal has out of what is left; returns how many it has."""
        if self.journal is None:
            return 0
        plan = self.plan
        self.journal.begin(
            {
                "heads": [one.text for one in dict.fromkeys(stratum.head for stratum in plan.strata)],
                "committed": any(stratum.committed for stratum in plan.strata),
                "sample": plan.size, "seed": None if plan.seed is None else plan.seed.hex(),
                "each_model": self.args.each_model, "engine": plan.engine, "score": self.args.score,
            }
        )  # fmt: skip
        done = 0
        for one in self.journal.judged():
            for ids in left.values():
                if one.receipt_id in ids:
                    ids.remove(one.receipt_id)
                    self._take(one)
                    done += 1
                    break
        return done
