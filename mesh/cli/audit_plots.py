"""The plots of an audit's page: SVG inside it, as wide as it is, every figure also in words beside or under it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mesh.cli.console import counted, printable

_LEAST = 0.8  # percent of a bar: what is there has to be seen
_HEIGHT, _TOP, _BOTTOM = 170, 18, 26  # of a histogram, in pixels
_GROUND = '<rect class="g-neutral" width="100%" height="100%"/>'
_PER_OCTAVE = 4  # bins of a ratio between one power of two and the next

PATTERNS = (
    '<svg class="patterns" aria-hidden="true"><defs>'
    + "".join(
        f'<pattern id="h-{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect class="g-{name}" width="6" height="6"/><line class="s-{name}" x1="0" x2="0" y2="6" stroke-width="5"/>'
        "</pattern>"
        for name in ("bad", "warn", "neutral")
    )
    + "</defs></svg>"
)


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of a bar: its name, the class of its colour, its size, and the size in words."""

    name: str
    colour: str
    size: int
    words: str


def text(said: object) -> str:
    """Names come from others: nothing in them is markup, and nothing turns the writing around."""
    return html.escape(printable(str(said)))


def bar(parts: Sequence[Part], *, whole: int | None = None) -> str:
    """Parts side by side. Where `whole` is more than their sum, the rest stays empty."""
    shown = [part for part in parts if part.size > 0]
    total = max(whole or 0, sum(part.size for part in shown))
    if not total:
        return f'<svg class="bar" role="img" aria-label="nothing">{_GROUND}</svg>'
    widths = [max(_LEAST, 100 * part.size / total) for part in shown]
    over = sum(widths) - 100
    if over > 0 and widths:  # what the small ones took more is taken from the largest
        widths[widths.index(max(widths))] -= over
    drawn = []
    at = 0.0
    for part, width in zip(shown, widths, strict=True):
        title = f"<title>{text(part.name)}: {text(part.words)}</title>"
        drawn.append(f'<rect class="f-{part.colour}" x="{at:.3f}%" width="{width:.3f}%" height="100%">{title}</rect>')
        at += width
    said = text("; ".join(f"{part.name}: {part.words}" for part in shown))
    ground = _GROUND if at < 100 else ""
    return f'<svg class="bar" role="img" aria-label="{said}">{ground}{"".join(drawn)}</svg>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Names with the classes of their colours."""
    keys = "".join(
        f'<span><svg aria-hidden="true"><rect class="f-{colour}" width="100%" height="100%"/></svg>{text(name)}</span>'
        for name, colour in entries
    )
    return f'<div class="legend">{keys}</div>'


def row(what: str, value: str, drawn: str, more: str = "") -> str:
    """A bar in a list, with its name and value above it. `what`, `value` and `more` are markup."""
    below = f'<span class="more">{more}</span>' if more else ""
    return f'<li><span class="what">{what}</span><span class="value">{value}</span>{drawn}{below}</li>'


def ratio_histogram(ratios: Mapping[str, Sequence[float]]) -> str:
    """How often the time of a replay was which share of its serve's, on a scale of powers of two, by method."""
    bins: dict[int, dict[str, int]] = {}
    for method in sorted(ratios):
        for ratio in ratios[method]:
            place = math.floor(math.log2(max(ratio, 2.0**-20)) * _PER_OCTAVE)
            counts = bins.setdefault(place, {})
            counts[method] = counts.get(method, 0) + 1
    low = min(-2 * _PER_OCTAVE, min(bins) // _PER_OCTAVE * _PER_OCTAVE)
    high = max(_PER_OCTAVE, (max(bins) // _PER_OCTAVE + 1) * _PER_OCTAVE)
    most = max(sum(counts.values()) for counts in bins.values())
    width = 100 / (high - low)
    floor = _TOP + _HEIGHT
    drawn = []
    for line in _round_steps(most):
        y = floor - _HEIGHT * line / most
        drawn.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="0" y="{y - 4:.1f}">{line}</text>')
    for place in sorted(bins):
        y = float(floor)
        for method, count in sorted(bins[place].items()):
            tall = max(1.5, _HEIGHT * count / most)
            y -= tall
            left, right = 2 ** (place / _PER_OCTAVE), 2 ** ((place + 1) / _PER_OCTAVE)
            said = f"{left:.3g} to {right:.3g} of the serve: {counted(count, 'replay')} by {method}"
            drawn.append(
                f'<rect class="f-{text(method)}" x="{(place - low) * width + width * 0.06:.3f}%" y="{y:.1f}" '
                f'width="{width * 0.88:.3f}%" height="{tall:.1f}" rx="1.5"><title>{text(said)}</title></rect>'
            )
    drawn.append(f'<line class="axis" x1="0" x2="100%" y1="{floor}" y2="{floor}"/>')
    every = max(1, -(-((high - low) // _PER_OCTAVE) // 8))  # labels that have room beside one another
    for octave in range(low // _PER_OCTAVE, high // _PER_OCTAVE + 1):
        x = (octave * _PER_OCTAVE - low) * width
        if octave == 0:
            drawn.append(f'<line class="mark" x1="{x:.3f}%" x2="{x:.3f}%" y1="{_TOP - 8}" y2="{floor}"/>')
        if octave % every == 0:
            anchor = "start" if x < 2 else "end" if x > 98 else "middle"
            name = str(2**octave) if octave >= 0 else f"1/{2**-octave}"
            drawn.append(f'<text x="{x:.3f}%" y="{floor + 17}" text-anchor="{anchor}">{name}</text>')
    said = f"{counted(sum(map(len, ratios.values())), 'replay')} by the time that each took, as a share of its serve's"
    return f'<svg class="plot" role="img" aria-label="{text(said)}">{"".join(drawn)}</svg>'


def _round_steps(most: int) -> list[int]:
    """At most four whole numbers up to `most`, round ones."""
    step = 1
    while most // step > 4:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return list(range(step, most + 1, step))
