"""A report of energy as a drawing: SVG without scripts, fonts or anything else from elsewhere.

One bar a group; where the groups are by day, one column a day, divided among the others. Every bar says in words what
it is, so that neither colour nor a mouse is needed, and the colours follow the reader's light or dark. A group in which
no serve has a figure has a word in the place of a bar: a bar of no length would be a claim.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from mesh.cli.console import counted, printable
from mesh.cli.energy_report import Group, Report
from mesh.schema.energy import BASES

WIDTH = 720
MAX_BARS = 40  # the rest is added up in one more
MAX_SERIES = 8
MAX_DAYS = 62
_LABEL_CHARS = 28
_LEFT, _RIGHT, _TOP, _ROW = 220, 110, 64, 26
_PLOT = WIDTH - _LEFT - _RIGHT
_DAY_LEFT, _DAY_HEIGHT = 70, 260
_UNITS = ((10**12, "MJ"), (10**9, "kJ"), (10**6, "J"), (10**3, "mJ"), (1, "µJ"))
OTHERS = "others"

# Of Okabe and Ito, which people who see colours otherwise can tell apart; dark enough on white, and lighter on black.
_LIGHT = ("#0072b2", "#b35806", "#00795a", "#8f3b76", "#6b6b00", "#3b3b98", "#a01c1c", "#4d4d4d", "#808080")
_DARK = ("#56b4e9", "#e69f00", "#35c9a0", "#e39bc7", "#f0e442", "#a8a8ff", "#ff8f80", "#cccccc", "#999999")

_STYLE = (
    "text{{font:13px system-ui,sans-serif;fill:#1a1a1a}}.t{{font-size:16px;font-weight:600}}.s{{fill:#555}}"
    ".g{{stroke:#ddd}}.p{{fill:#fff}}.b{{stroke:#fff;stroke-width:1}}{light}"
    "@media(prefers-color-scheme:dark){{text{{fill:#eee}}.s{{fill:#aaa}}.g{{stroke:#333}}.p{{fill:#16181c}}"
    ".b{{stroke:#16181c}}{dark}}}"
)


def svg(found: Report) -> bytes:
    """The report as an SVG document, UTF-8."""
    if "day" in found.by:
        body, height = _days(found)
    else:
        body, height = _bars(found)
    names = " and ".join(found.by)
    total = found.total
    without = total.serves - total.figures
    said = f"{counted(total.serves, 'serve')}, " + (_amount(total.uj) if total.figures else "no figure")
    if without:
        said += f"; {without} without a figure"
    palette = [
        "".join(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(colours)) for colours in (_LIGHT, _DARK)
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title desc">',
        f'<title id="title">Energy by {_text(names)}</title>',
        f'<desc id="desc">{_text(said)}. {_text(_in_words(found))}</desc>',
        f"<style>{_STYLE.format(light=palette[0], dark=palette[1])}</style>",
        f'<rect class="p" width="{WIDTH}" height="{height}"/>',
        f'<text class="t" x="16" y="26">Energy by {_text(names)}</text>',
        f'<text class="s" x="16" y="46">{_text(said)}</text>',
        *body,
        "</svg>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _bars(found: Report) -> tuple[list[str], int]:
    groups = _at_most(found.groups, MAX_BARS)
    height = _TOP + _ROW * max(1, len(groups)) + 34
    if not groups:
        return [f'<text x="16" y="{_TOP + 16}">no receipts</text>'], height
    top = max(group.uj for group in groups)
    body = []
    bottom = _TOP + _ROW * len(groups)
    for uj in _ticks(top):
        x = _LEFT + _scaled(uj, top, _PLOT)
        body.append(f'<line class="g" x1="{x}" x2="{x}" y1="{_TOP - 4}" y2="{bottom}"/>')
        body.append(f'<text class="s" x="{x}" y="{bottom + 18}" text-anchor="middle">{_amount(uj)}</text>')
    for number, group in enumerate(groups):
        y = _TOP + _ROW * number
        label = _label(group)
        body.append(f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{_text(_short(label))}</text>')
        if not group.figures:
            body.append(f'<text class="s" x="{_LEFT + 6}" y="{y + 16}">no figure<title>{_said(group)}</title></text>')
            continue
        width = _scaled(group.uj, top, _PLOT)
        body.append(
            f'<rect class="b c0" x="{_LEFT}" y="{y + 3}" width="{width}" height="{_ROW - 7}"><title>{_said(group)}'
            "</title></rect>"
        )
        end = _LEFT + width + 6
        body.append(f'<text x="{end}" y="{y + 16}">{_amount(group.uj)}</text>')
    return body, height


def _days(found: Report) -> tuple[list[str], int]:
    """A column a day, the latest `MAX_DAYS`, each divided among the groups of that day."""
    place = found.by.index("day")
    days = sorted({group.key[place] for group in found.groups})
    shown = days[-MAX_DAYS:]
    of_day: dict[str, dict[str, Group]] = {day: {} for day in shown}
    spent: dict[str, int] = {}
    for group in found.groups:
        day, series = group.key[place], _without(group.key, place)
        if day in of_day:
            of_day[day][series] = group
            spent[series] = spent.get(series, 0) + group.uj
    ranked = sorted(spent, key=lambda series: (-spent[series], series))
    colours = {series: min(number, MAX_SERIES) for number, series in enumerate(ranked)}
    legend = [*ranked[:MAX_SERIES], *([OTHERS] if len(ranked) > MAX_SERIES else [])]
    named = len(found.by) > 1
    height = _TOP + _DAY_HEIGHT + 40 + (_ROW * len(legend) if named else 0)
    if not shown:
        return [f'<text x="16" y="{_TOP + 16}">no receipts</text>'], height
    bottom = _TOP + _DAY_HEIGHT
    top = max(sum(group.uj for group in groups.values()) for groups in of_day.values())
    body = []
    for uj in _ticks(top):
        y = bottom - _scaled(uj, top, _DAY_HEIGHT)
        body.append(f'<line class="g" x1="{_DAY_LEFT}" x2="{WIDTH - 16}" y1="{y}" y2="{y}"/>')
        body.append(f'<text class="s" x="{_DAY_LEFT - 6}" y="{y + 4}" text-anchor="end">{_amount(uj)}</text>')
    step = Decimal(WIDTH - 16 - _DAY_LEFT) / len(shown)
    every = -(-len(shown) // 8)  # dates that have room beside one another
    for number, (day, groups) in enumerate(of_day.items()):
        x, y = _DAY_LEFT + step * number, Decimal(bottom)
        for series in sorted(groups, key=lambda series: (colours[series], series)):
            group = groups[series]
            if not group.figures:
                continue
            tall = _scaled(group.uj, top, _DAY_HEIGHT)
            y -= tall
            body.append(
                f'<rect class="b c{colours[series]}" x="{_at(x + step / 10)}" y="{y}" width="{_at(step * 8 / 10)}" '
                f'height="{tall}"><title>{_said(group)}</title></rect>'
            )
        middle = _at(x + step / 2)
        if not any(group.figures for group in groups.values()):
            body.append(f'<text class="s" x="{middle}" y="{bottom - 6}" text-anchor="middle">–'
                        f"<title>{_text(day)}: no figure</title></text>")  # fmt: skip
        if number % every == 0:
            body.append(f'<text class="s" x="{middle}" y="{bottom + 18}" text-anchor="middle">{_text(day)}</text>')
    for number, series in enumerate(legend if named else ()):
        top_of = bottom + 34 + _ROW * number
        body.append(f'<rect class="b c{number}" x="{_DAY_LEFT}" y="{top_of}" width="16" height="16"/>')
        amount = spent.get(series, sum(spent[one] for one in ranked[MAX_SERIES:]))
        body.append(
            f'<text x="{_DAY_LEFT + 24}" y="{top_of + 13}">{_text(_short(series, 60))}: {_amount(amount)}</text>'
        )
    return body, height


def _at_most(groups: Sequence[Group], most: int) -> list[Group]:
    """Those that spent most, and the others together."""
    ranked = sorted(groups, key=lambda group: (-group.uj, group.key))
    if len(ranked) <= most:
        return ranked
    rest = Group((f"{len(ranked) - most + 1} {OTHERS}",))
    for group in ranked[most - 1 :]:
        rest.serves += group.serves
        rest.uj += group.uj
        rest.bases += group.bases
    return [*ranked[: most - 1], rest]


def _ticks(top_uj: int) -> Iterator[int]:
    """Round amounts of 1, 2 or 5 times a power of ten, at most six of them, from the first one up."""
    step = 1
    while top_uj // step > 6:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    yield from range(step, top_uj + 1, step)


def _scaled(uj: int, top_uj: int, length: int) -> Decimal:
    return _at(Decimal(uj) * length / max(1, top_uj))


def _at(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.01"))


def _amount(uj: int) -> str:
    for scale, unit in _UNITS:
        if uj >= scale:
            return f"{(Decimal(uj) / scale).quantize(Decimal('0.001')).normalize():f} {unit}"
    return "0 µJ"


def _label(group: Group) -> str:
    return ", ".join(part or "none" for part in group.key)


def _without(key: Sequence[str], place: int) -> str:
    return ", ".join(part or "none" for number, part in enumerate(key) if number != place) or "all"


def _said(group: Group) -> str:
    bases: Mapping[str, int] = group.bases
    how = ", ".join(f"{bases[basis]} {basis}" for basis in BASES if bases.get(basis))
    amount = _amount(group.uj) if group.figures else "no figure"
    return _text(f"{_label(group)}: {amount} of {counted(group.serves, 'serve')} ({how})")


def _in_words(found: Report) -> str:
    """For those who do not see it; long reports have a table for that."""
    return "; ".join(html.unescape(_said(group)) for group in _at_most(found.groups, MAX_BARS))


def _short(text: str, most: int = _LABEL_CHARS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> str:
    """Names come from others: nothing in them is markup, and nothing turns the writing around."""
    return html.escape(printable(text))
