"""The report of an audit in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mesh.cli.console import counted
from mesh.cli.words import joules, table, utc, verdict_words
from mesh.replay.census import INCOMPLETE, AuditFault, Tally
from mesh.replay.conservation import EpochSum
from mesh.replay.judged import Judged, Judgements
from mesh.replay.plan import Plan
from mesh.replay.report import Report, spread
from mesh.schema.ids import steward_text

LISTED = 20  # of each kind, before it is only counted

WORDS = {"good": "good", "refused": "refused", "undecided": "cannot be decided"}
VERDICTS = {
    "verified": "Verified",
    "output-differs": "Verified, and another answer was disclosed",
    "diverged": "Diverged",
    "not-replayable": "NotReplayable",
}
SUMS = {"exact": "exact", "off": "does not add up", "receipts-missing": "not checked: receipts are missing"}


def report_words(report: Report) -> str:
    """Lines for people, the verdict first and what is wrong last."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    census = report.census
    yield f"audit: {WORDS[report.word]}"
    given = f", {counted(census.repeated, 'envelope')} given more than once" if census.repeated else ""
    yield (
        f"{counted(census.good, 'good receipt')} of {counted(len(census.tallies), 'steward')}, "
        f"{counted(census.checkpoints, 'checkpoint')}{given}"
    )
    for steward, holding, tally in report.stewards():
        yield ""
        yield steward_text(steward)
        yield _indented(table(_steward_rows(report, steward, len(holding), holding.first, holding.last, tally)))
    if census.sums:
        yield ""
        yield "energy, counted = receipts + idle + unattributed + open, in microjoules"
        several = len({one.steward for one in census.sums}) > 1
        yield from (sum_words(one, several=several) for one in census.sums[:LISTED])
        yield from _more(len(census.sums))
    yield from _replay_lines(report.plan, report.judged)
    yield from _fault_lines(report)


def _steward_rows(
    report: Report, steward: bytes, count: int, first: int | None, last: int | None, tally: Tally
) -> Iterator[tuple[str, str]]:
    if first is None:
        yield "receipts", "none at hand"
        return
    missing = report.census.missing.get(steward, [])
    lacking = sum(end - start + 1 for start, end in missing)
    gaps = f", {counted(lacking, 'other')} not at hand" if lacking else ""
    yield "receipts", f"{count}, seq {first} to {last}{gaps}"
    if tally.first_ns is not None and tally.last_ns is not None:
        yield "ended", f"{utc(tally.first_ns)} to {utc(tally.last_ns)}"
    yield "incomplete", incomplete_words(tally)
    uncovered = report.census.uncovered().get(steward)
    if uncovered is not None:
        what = f"{counted(uncovered.receipts, 'receipt')} with {joules(uncovered.uj)}"
        yield "not covered", f"{what} that no checkpoint at hand tells of"


def incomplete_words(tally: Tally) -> str:
    """Which share of the serves did not come to their end."""
    if not tally.serves:
        return "no serves"
    share = f"{tally.incomplete} of {tally.serves} ({percent(tally.incomplete, tally.serves)})"
    kinds = ", ".join(f"{tally.finishes[finish]} {finish}" for finish in INCOMPLETE if tally.finishes[finish])
    return f"{share}: {kinds}" if kinds else share


def percent(part: int, whole: int) -> str:
    """A share to a tenth of a percent; never 0 or 100 where it is not."""
    tenths = (2000 * part + whole) // (2 * whole) if whole else 0
    if part and not tenths:
        return "under 0.1 %"
    if part < whole and tenths == 1000:
        return "over 99.9 %"
    return f"{tenths // 10}.{tenths % 10} %"


def sum_words(one: EpochSum, *, several: bool = False) -> str:
    """`several`: there are sums of other stewards too."""
    receipts = "?" if one.receipts_uj is None else str(one.receipts_uj)
    off = f" by {one.difference_uj:+d}" if one.difference_uj else ""
    of = f"{steward_text(one.steward)[:16]}, " if several else ""
    return (
        f"  {of}epoch {one.epoch.hex()[:8]}, {one.domain}: {one.counted_uj} = {receipts} + {one.idle_uj} + "
        f"{one.unattributed_uj} + {one.open_uj}: {SUMS[one.result]}{off} ({counted(one.serves, 'receipt')})"
    )


def plan_words(plan: Plan) -> str:
    if plan.size is None:
        return f"all {counted(plan.chosen, 'receipt')}"
    population = sum(one.population for one in plan.strata)
    seed = "" if plan.seed is None else plan.seed.hex()
    return f"{plan.chosen} of {population} receipts, drawn by seed {seed}"


def _replay_lines(plan: Plan, judged: Judgements) -> Iterator[str]:
    if plan.engine is None and plan.size is None:
        yield ""
        yield "nothing was replayed: no engine was named"
        return
    yield ""
    yield f"to replay: {plan_words(plan)}" if plan.engine is None else f"replayed: {plan_words(plan)}, on {plan.engine}"
    for stratum in plan.strata:
        of = steward_text(stratum.steward) + ("" if stratum.model is None else f", {stratum.model}")
        how = "named before" if stratum.committed else "the last at hand, which nobody named before"
        yield f"  {of}: up to seq {stratum.head_seq}, head {stratum.head} ({how})"
        if plan.size is not None:
            yield f"  drawn: seq {', '.join(map(str, stratum.drawn))}"
    if plan.engine is None:
        return
    for word, name in VERDICTS.items():
        if judged.verdicts[word]:
            why = judged.methods if word == "verified" else judged.reasons if word == "not-replayable" else Counter()
            yield f"  {judged.verdicts[word]} {name}" + (f" ({kinds(why)})" if why else "")
    if judged.serve_ns:
        yield f"  took {judged.replay_ns / judged.serve_ns:.3f} of the time of the serves"
        for method, ratios in sorted(judged.ratios.items()):
            low, middle, high = spread(ratios)
            yield f"    by {method}: {middle:.3f} in the middle, {low:.3f} to {high:.3f} for eight of ten"
    for model, total in sorted(judged.scores.items()):
        if total.tokens:
            yield (
                f"  score, no verdict: {model}: this engine chooses {total.matching} of {total.tokens} tokens too "
                f"({percent(total.matching, total.tokens)}, {counted(total.receipts, 'receipt')})"
            )
    for one in judged.diverged[:LISTED]:
        yield f"  {judged_words(one)}"
    yield from _more(len(judged.diverged))


def kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{word} {count}" for word, count in counts.most_common())


def judged_words(one: Judged) -> str:
    return f"seq {one.seq}, {one.receipt_id}: {verdict_words(one.verdict)}"


def _fault_lines(report: Report) -> Iterator[str]:
    census = report.census
    for title, counts, faults in (
        ("wrong", census.refused, census.faults),
        ("cannot be decided", census.undecided, census.undecided_listed),
    ):
        if counts:
            yield ""
            yield f"{title}: {kinds(counts)}"
            yield from (f"  {one.where}: {fault_word(one)}: {one.message}" for one in faults[:LISTED])
            yield from _more(counts.total())


def fault_word(one: AuditFault) -> str:
    """What kind of fault: of an envelope, the step that it failed in."""
    return one.code if one.kind == "envelope" else one.kind


def _more(count: int) -> Iterator[str]:
    if count > LISTED:
        yield f"  and {count - LISTED} more"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
