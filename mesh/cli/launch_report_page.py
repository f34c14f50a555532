"""The report of launches and benches as one page: HTML that holds everything it shows, runs nothing and loads
nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import mesh
from mesh.cli import lone_page
from mesh.cli.audit_plots import text
from mesh.cli.console import counted
from mesh.cli.launch_reports import Told
from mesh.cli.launch_tables import HEADINGS, RATES, UNKNOWN, drift_lines, facts, rows
from mesh.cli.words import utc
from mesh.launch.bench_package import Package

_STYLES = [Path(__file__).with_name(name) for name in ("audit.css", "launch_report.css")]
_LOOKS = {"up": "good", "starting": "good", "stale": "bad", "differs": "bad", "inconclusive": "warn", "open": "warn"}


def page(recipes: Sequence[Told], made_ns: int) -> bytes:
    """UTF-8."""
    benches = sum(len(one.packages) for one in recipes)
    parts = [_summary(recipes, benches), *(line for one in recipes for line in _recipe(one))]
    style = "".join(path.read_text() for path in _STYLES)
    top = "<header><strong>mesh launch report</strong></header>"
    made = f"Made at {utc(made_ns)} by mesh {mesh.__version__}"
    return lone_page.report("Launches and benches", style, top, parts, made)


def _summary(recipes: Sequence[Told], benches: int) -> str:
    heads = ("recipe", "model", "state", "launches", "benches", "latest bench", "where it comes from")
    lines = []
    for one in recipes:
        last = one.packages[-1] if one.packages else None
        came = UNKNOWN if last is None else _chip(one, last)
        when = "none" if last is None else utc(last.manifest.ended_ms * 10**6)[:16]
        cells = [f'<a href="#{_anchor(one)}">{text(one.name)}</a>', text(one.shown_model), _state(one),
                 str(one.launches), str(len(one.packages)), text(when), came]  # fmt: skip
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    caption = (
        f"{counted(len(recipes), 'recipe')}, {counted(benches, 'bench') if benches == 1 else f'{benches} benches'}"
    )
    return (
        f'<section class="card wide"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def _anchor(one: Told) -> str:
    return "recipe-" + one.name.encode().hex()


def _state(one: Told) -> str:
    return f'<span class="state {_LOOKS.get(one.state, "")}">{text(one.state)}</span>'


def _chip(one: Told, package: Package) -> str:
    changed = one.stale(package) or bool(package.manifest.drift)
    words = text(package.chip) + (" ⚠ changed" if changed else "")
    return f'<span class="chip{" warn" if changed else ""}">{words}</span>'


def _recipe(one: Told) -> Iterator[str]:
    yield f'<section id="{_anchor(one)}"><h2>{text(one.name)} {_state(one)}</h2>'
    about = [one.model, one.image]
    if one.launches:
        about.append(f"launched {one.launches} times" if one.launches != 1 else "launched once")
    if one.run is not None:
        about.append(
            f"run {one.run.id}" + (f", record {one.run.opened['record']}" if one.run.opened.get("record") else "")
        )
    if one.why:
        about.append(one.why)
    yield f'<p class="quiet">{text("; ".join(about))}</p>'
    if one.drift:
        yield _listed("drift", "What runs, or the recipe, is not what was launched:", one.drift)
    if one.unknown:
        yield f'<p class="quiet">{text("; ".join(one.unknown))}</p>'
    if one.fault is not None or one.damaged:
        yield _listed("drift", "Cannot be shown:", [*([one.fault] if one.fault else []), *one.damaged])
    if one.settings:
        told = [(each.name, f"{each.value or 'on'} ({each.origin})") for each in one.settings]
        pairs = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in told)
        words = "Settings in force, and where each comes from"
        yield f'<div class="card"><details><summary>{words}</summary><dl>{pairs}</dl></details></div>'
    for package in reversed(one.packages):
        yield _bench(one, package)
    if one.packages:
        yield f'<p class="quiet">{text(RATES)}</p>'
    else:
        yield '<p class="quiet">No bench of it was landed.</p>'
    yield "</section>"


def _listed(kind: str, words: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<div class="{kind}"><p>{text(words)}</p><ul>{items}</ul></div>'


def _bench(one: Told, package: Package) -> str:
    manifest = package.manifest
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in HEADINGS)
    lines = []
    for row in rows(package.data):
        cells = "".join(
            f'<td class="unknown">{UNKNOWN}</td>' if cell == UNKNOWN else f"<td>{text(cell)}</td>" for cell in row[1:]
        )
        lines.append(f'<tr><th scope="row">{text(row[0])}</th>{cells}</tr>')
    drift = drift_lines(manifest)
    if one.stale(package):
        drift = [*drift, "since the bench the recipe has changed, so another launch is another measurement"]
    pairs = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts(manifest, package.data))
    ended = text(utc(manifest.ended_ms * 10**6))
    clean = not manifest.drift and not manifest.unknown and not one.stale(package)
    told = f'<p class="quiet">Drift: {text(drift[0])}</p>' if clean else _listed("drift", "Drift:", drift)
    return (
        f'<div class="card"><h3>{text(manifest.label)}, {ended} {_chip(one, package)}</h3>'
        f'<div class="wide"><table class="figures"><caption>{text(counted(len(package.data.cells), "cell"))}, '
        f"{package.data.failed} without a whole measurement</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>{told}"
        f"<details><summary>Where it comes from</summary><dl>{pairs}</dl></details></div>"
    )
