"""The report of an audit as one page: HTML that holds everything it shows, runs nothing and loads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import mesh
from mesh.cli import lone_page
from mesh.cli.audit_plots import PATTERNS, Part, bar, legend, ratio_histogram, row, text
from mesh.cli.audit_words import SUMS, VERDICTS, fault_word, incomplete_words, kinds, percent
from mesh.cli.console import counted
from mesh.cli.words import joules, utc, verdict_words
from mesh.replay.census import INCOMPLETE, AuditFault
from mesh.replay.conservation import EpochSum
from mesh.replay.judged import Judged, Judgements
from mesh.replay.plan import Plan
from mesh.replay.report import Report, spread
from mesh.schema.ids import steward_text

_STYLE = Path(__file__).with_name("audit.css")
_RANK = {"off": 0, "receipts-missing": 1, "exact": 2}  # what is wrong is among the first
LISTED = 50  # rows of a table, and of a plot, before the rest is only counted

_HEADLINES = {
    "good": ("Everything that was looked at is good", "✓"),
    "refused": ("Something is wrong", "✗"),
    "undecided": ("Something could not be decided", "?"),
}
_FINISHES = {
    "cancelled": "cancelled",
    "interrupted": "interrupted",
    "engine-error": "engine error",
    "refused": "refused",
}
_LOGO = (
    '<svg viewBox="0 0 32 32" aria-hidden="true">'
    '<path d="M8 8 24 8M8 8 8 24M24 8 24 24M8 24 24 24M8 8 24 24M24 8 8 24"/>'
    '<circle cx="8" cy="8" r="3.5"/><circle cx="24" cy="8" r="3.5"/><circle cx="8" cy="24" r="3.5"/>'
    '<circle cx="24" cy="24" r="3.5"/><circle class="hub" cx="16" cy="16" r="3.5"/></svg>'
)


def page(report: Report) -> bytes:
    """UTF-8."""
    parts = [*_verdict(report), *_tiles(report), *_wrong(report), *_replays(report), *_energy(report),
             *_stewards(report), *_scores(report.judged), *_draw(report.plan), *_limits()]  # fmt: skip
    names = ", ".join(given.source.label for given in report.census.sources)
    top = f"{PATTERNS}<header>{_LOGO}<div><strong>mesh audit</strong><br/>{text(names)}</div></header>"
    title = f"Audit: {_HEADLINES[report.word][0]}"
    return lone_page.report(title, _STYLE.read_text(), top, parts, f"Made by mesh {mesh.__version__}")


def _verdict(report: Report) -> Iterator[str]:
    headline, sign = _HEADLINES[report.word]
    census, judged = report.census, report.judged
    told = [f"{counted(census.good, 'receipt')} and {counted(census.checkpoints, 'checkpoint')} are well signed."]
    if census.refused:
        told.append(f"Wrong: {kinds(census.refused)}.")
    if census.undecided:
        told.append(f"Not decided: {kinds(census.undecided)}.")
    if judged.count:
        words = ", ".join(f"{judged.verdicts[word]} {name}" for word, name in VERDICTS.items() if judged.verdicts[word])
        told.append(f"Replayed: {words}.")
        if judged.reasons:
            told.append(f"Why not: {kinds(judged.reasons)}.")
    else:
        told.append("Nothing was replayed, so nothing is said about what ran.")
    said = text(" ".join(told))
    yield f'<section class="verdict {report.word}"><h1>{sign} {text(headline)}</h1><p>{said}</p></section>'


def _tiles(report: Report) -> Iterator[str]:
    census, judged = report.census, report.judged
    times = [ns for tally in census.tallies.values() for ns in (tally.first_ns, tally.last_ns) if ns is not None]
    tiles = [("Receipts", f"{census.good:,}", f"{utc(min(times))[:16]} to {utc(max(times))[:16]}" if times else "none")]
    if judged.count:
        verified = judged.verdicts["verified"]
        tiles.append(("Verified by replay", f"{verified:,} of {judged.count:,}", kinds(judged.methods) or "none"))
    if judged.serve_ns:
        ratio = judged.replay_ns / judged.serve_ns
        tiles.append(("Replay over serve", f"{ratio:.2f}", "of the time of the same serves"))
    exact = sum(one.result == "exact" for one in census.sums)
    if census.sums:
        tiles.append(("Energy adds up", f"{exact} of {len(census.sums)}", "epochs and domains, to the microjoule"))
    serves = sum(tally.serves for tally in census.tallies.values())
    incomplete = sum(tally.incomplete for tally in census.tallies.values())
    if serves:
        tiles.append(("Incomplete serves", percent(incomplete, serves), f"{incomplete:,} of {serves:,}"))
    drawn = "".join(
        f'<div class="tile"><dt>{text(name)}</dt><dd><strong>{text(value)}</strong><span>{text(more)}</span></dd></div>'
        for name, value, more in tiles
    )
    yield f'<dl class="tiles">{drawn}</dl>'


def _wrong(report: Report) -> Iterator[str]:
    census, judged = report.census, report.judged
    if census.refused:
        yield f"<h2>What is wrong</h2>{_faults(census.faults, census.refused.total())}"
    if judged.diverged:
        count = judged.verdicts["diverged"] + judged.verdicts["output-differs"]
        yield f"<h2>What is not true</h2>{_judged(judged.diverged, count)}"
    if census.undecided:
        yield f"<h2>What could not be checked</h2>{_faults(census.undecided_listed, census.undecided.total())}"


def _faults(faults: Sequence[AuditFault], count: int) -> str:
    rows = [(text(fault_word(one)), text(one.message), text(one.where)) for one in faults[:LISTED]]
    return _table(("what", "in words", "where"), rows, count)


def _judged(listed: Sequence[Judged], count: int) -> str:
    rows = [
        (
            str(one.seq),
            text(one.model),
            text(verdict_words(one.verdict)),
            f'<span class="id">{text(one.receipt_id)}</span>',
        )
        for one in listed[:LISTED]
    ]
    return _table(("seq", "model", "verdict", "receipt"), rows, count)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> str:
    head = "".join(f"<th>{text(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-label="{text(h)}">{cell}</td>' for h, cell in zip(headings, cells, strict=True))
        + "</tr>"
        for cells in rows
    )
    more = f'<p class="quiet">and {count - len(rows):,} more</p>' if count > len(rows) else ""
    table = f'<table class="stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="card"><div class="scroll">{table}</div>{more}</div>'


def _replays(report: Report) -> Iterator[str]:
    judged = report.judged
    if not judged.count:
        return
    yield '<h2>Replays</h2><div class="pair">'
    models = sorted(judged.models.items(), key=lambda item: (-item[1].total(), item[0]))
    shown = [("all receipts", judged.verdicts), *(models[:LISTED] if len(models) > 1 else [])]
    rows = [
        row(text(name), f"{counts.total():,}", bar(_verdict_parts(counts)), _verdict_words(counts))
        for name, counts in shown
    ]
    keys = [(name, word) for word, name in VERDICTS.items() if judged.verdicts[word]]
    yield f'<figure class="card"><h3>Verdicts</h3><ul class="bars">{"".join(rows)}</ul>{legend(keys)}</figure>'
    if judged.ratios:
        spreads = [(method, len(ratios), spread(ratios)) for method, ratios in sorted(judged.ratios.items())]
        words = "Below 1 the replay was faster: " + "; ".join(
            f"by {method} {middle:.3f} in the middle, {low:.3f} to {high:.3f} for eight of ten of {count:,}"
            for method, count, (low, middle, high) in spreads
        )
        keys = [(f"by {method}", method) for method, _, _ in spreads]
        yield (
            '<figure class="card"><h3>Time of a replay over that of its serve</h3>'
            f'{ratio_histogram(judged.ratios)}{legend(keys)}<p class="more">{text(words)}</p></figure>'
        )
    yield "</div>"
    if judged.undecided:
        items = "".join(
            f"<li><strong>{count:,}</strong> {text(reason)}</li>" for reason, count in judged.reasons.most_common()
        )
        listed = _judged(judged.undecided, judged.verdicts["not-replayable"])
        yield (
            f'<div class="card"><h3>Not replayable, by reason</h3><ul>{items}</ul></div>'
            f"<details><summary>One by one</summary>{listed}</details>"
        )


def _verdict_parts(counts: Counter[str]) -> list[Part]:
    return [Part(name, word, counts[word], f"{counts[word]:,}") for word, name in VERDICTS.items()]


def _verdict_words(counts: Counter[str]) -> str:
    return text(", ".join(f"{counts[word]:,} {name}" for word, name in VERDICTS.items() if counts[word]))


def _energy(report: Report) -> Iterator[str]:
    sums, uncovered = report.census.sums, report.census.uncovered()
    if not sums and not uncovered:
        return
    yield "<h2>Energy</h2>"
    if sums:
        ranked = sorted(sums, key=lambda one: _RANK[one.result])
        several = len({one.steward for one in sums}) > 1
        keys = [(name, name) for name in ("receipts", "idle", "unattributed", "open")]
        yield (
            '<figure class="card"><h3>Counted by the meter = receipts + idle + unattributed + open</h3>'
            f'<ul class="bars">{"".join(_sum_row(one, several) for one in ranked[:LISTED])}</ul>{legend(keys)}</figure>'
        )
        if len(sums) > LISTED:
            yield f'<p class="quiet">and {len(sums) - LISTED:,} more epochs and domains</p>'
    for steward, rest in sorted(uncovered.items()):
        yield (
            f'<p class="quiet">{counted(rest.receipts, "receipt")} of <span class="id">{steward_text(steward)}</span> '
            f"with {text(joules(rest.uj))} together come after the last checkpoint of their epoch that is at hand: "
            "nothing is said about their sum.</p>"
        )


def _sum_row(one: EpochSum, several: bool) -> str:
    sizes = [
        ("receipts", one.receipts_uj),
        ("idle", one.idle_uj),
        ("unattributed", one.unattributed_uj),
        ("open", one.open_uj),
    ]
    parts = [Part(name, name, size, joules(size)) for name, size in sizes if size is not None]
    kind = {"exact": "good", "off": "bad", "receipts-missing": "warn"}[one.result]
    off = f" by {one.difference_uj:+,} µJ" if one.difference_uj else ""
    of = f' of <span class="id">{steward_text(one.steward)[:16]}…</span>' if several else ""
    what = f'{text(one.domain)} <span class="quiet">epoch <span class="id">{one.epoch.hex()[:8]}</span>{of}</span>'
    said = " + ".join(f"{joules(size)} {name}" for name, size in sizes if size) or "nothing"
    more = (
        f"{joules(one.counted_uj)} = {said}; {counted(one.serves, 'receipt')}, {counted(one.checkpoints, 'checkpoint')}"
    )
    badge = f'<span class="badge {kind}">{text(SUMS[one.result] + off)}</span>'
    return row(what, badge, bar(parts, whole=one.counted_uj), text(more))


def _stewards(report: Report) -> Iterator[str]:
    rows = []
    seen: Counter[str] = Counter()
    for steward, holding, tally in report.stewards()[:LISTED]:
        seen += tally.finishes
        missing = sum(end - start + 1 for start, end in report.census.missing.get(steward, []))
        complete = tally.serves - tally.incomplete
        parts = [Part("came to their end", "complete", complete, f"{complete:,}")]
        parts += [Part(_FINISHES[one], one, tally.finishes[one], f"{tally.finishes[one]:,}") for one in INCOMPLETE]
        seqs = "no receipts" if holding.first is None else f"seq {holding.first:,} to {holding.last:,}"
        gaps = f", {missing:,} not at hand" if missing else ""
        rows.append(
            row(
                f'<span class="id">{steward_text(steward)}</span>', percent(tally.incomplete, tally.serves), bar(parts),
                text(f"incomplete {incomplete_words(tally)}; {seqs}{gaps}"),
            )
        )  # fmt: skip
    if rows:
        keys = [("came to their end", "complete"), *((_FINISHES[one], one) for one in INCOMPLETE if seen[one])]
        yield (
            '<h2>Serves that did not come to their end, by steward</h2><figure class="card">'
            f'<ul class="bars">{"".join(rows)}</ul>{legend(keys)}</figure>'
        )


def _scores(judged: Judgements) -> Iterator[str]:
    if not judged.scores:
        return
    rows = []
    for model, total in sorted(judged.scores.items()):
        other = total.tokens - total.matching
        parts = [
            Part("chosen too", "matching", total.matching, f"{total.matching:,}"),
            Part("not", "other", other, f"{other:,}"),
        ]
        more = f"{total.matching:,} of {total.tokens:,} tokens of {counted(total.receipts, 'receipt')}"
        if total.margins:
            low, middle, high = spread(total.margins)
            more += (
                f"; margins at {len(total.margins):,} mismatches {middle:.4f} in the middle, {low:.4f} to {high:.4f}"
            )
        rows.append(row(text(model), percent(total.matching, total.tokens), bar(parts), text(more)))
    yield (
        '<h2>A score, and no verdict</h2><figure class="card score"><p>Where a serve could not be judged bit for bit, '
        "this engine was asked at each position what it would choose after the same tokens. Other hardware and other "
        "company flip close calls, and so do slightly other weights: no share proves a serve, and none refutes one.</p>"
        f'<ul class="bars">{"".join(rows)}</ul></figure>'
    )


def _draw(plan: Plan) -> Iterator[str]:
    if not plan.strata:
        return
    facts = []
    if plan.size is not None and plan.seed is not None:
        facts += [("seed", f'<span class="id">{plan.seed.hex()}</span>'), ("of each", f"{plan.size:,} receipts")]
    if plan.engine is not None:
        facts.append(("replayed on", text(plan.engine)))
    yield f'<h2>What was to be replayed</h2><div class="card">{_facts(facts)}'
    for stratum in plan.strata[:LISTED]:
        how = "named before the seed" if stratum.committed else "the last at hand; nobody named it before"
        own = [
            ("steward", f'<span class="id">{steward_text(stratum.steward)}</span>'),
            *([] if stratum.model is None else [("model", text(stratum.model))]),
            ("head", f'<span class="id">{stratum.head}</span>, seq {stratum.head_seq:,}: {how}'),
        ]  # fmt: skip
        if plan.size is None:
            own.append(("replayed", f"all {stratum.population:,}"))
        else:
            own.append(
                ("drawn", f"{len(stratum.drawn):,} of {stratum.population:,}: seq {', '.join(map(str, stratum.drawn))}")
            )
        yield _facts(own)
    if plan.size is not None:
        yield (
            "<p>Drawn are the lowest <code>BLAKE3 keyed by k (u64le(seq))</code>, where k is <code>BLAKE3 derive-key "
            '"mesh/1 audit-draw" (head || seed)</code>. It shows something only if the head was named before anybody '
            "knew the seed: compare when both were published.</p>"
        )
    yield "</div>"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in facts)
    return f'<dl class="facts">{listed}</dl>' if listed else ""


def _limits() -> Iterator[str]:
    yield (
        '<h2>What this does not show</h2><div class="card"><ul>'
        "<li>That the meters told the truth: what adds up is what they said.</li>"
        "<li>That there were no other serves: one without a receipt leaves no trace in a sequence of receipts.</li>"
        "<li>Anything about receipts that were not drawn, beyond their signatures, places and sums.</li>"
        "<li>Anything about answers: a receipt commits to tokens, not to their truth.</li></ul></div>"
    )
