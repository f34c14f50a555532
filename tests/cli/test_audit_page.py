"""The page of an audit: one file, nothing from elsewhere, nothing that runs, and names of others as text."""

from __future__ import annotations

import errno
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mesh.cli.audit_page import page
from mesh.cli.audit_plots import Part, bar, ratio_histogram
from mesh.cli.audit_words import percent, report_words
from mesh.replay.census import Census
from mesh.replay.draw import seed_of
from mesh.replay.judged import Judged, Judgements
from mesh.replay.plan import Asked, planned
from mesh.replay.report import Report
from mesh.replay.verdict import not_replayable
from mesh.schema.ids import steward_text
from tests.replay.test_judged import EACH, added
from tests.support.audits import ENGINE, KEY, books, census_of, checkpoint, energy, make_day, sequence

VOID = {"meta", "br", "rect", "line", "path", "circle"}
HOSTILE = "<script>alert(1)</script>\"'&\u202eevil"


class Checked(HTMLParser):
    """Fails where a tag is not closed in its place, runs something, or names something to be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "form", "a", "base")
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href", "xlink:href", "action", "srcset", "style")
            assert "://" not in (value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked(report: Report) -> str:
    """The texts of the report's page, after a look at all of it."""
    data = page(report).decode()
    parser = Checked()
    parser.feed(data)
    parser.close()
    assert parser.open == []
    style = data[data.index("<style>") : data.index("</style>")]
    assert "prefers-color-scheme: dark" in style
    assert "@import" not in style
    assert re.findall(r"url\(([^)]*)\)", style) == [
        one for one in re.findall(r"url\(([^)]*)\)", style) if one.startswith("#")
    ]
    assert "\u202e" not in data
    return " ".join(parser.texts)


def reported(census: Census, judged: Judgements | None = None, asked: Asked | None = None) -> Report:
    return Report(census, planned(census, asked or Asked(), "an engine"), judged or Judgements())


def test_a_page_says_all_that_was_found() -> None:
    made = sequence(
        4, changes={1: {"energy": energy({"lamp": 5})}, 2: {"outcome": {"finish": "cancelled", "counted_by": "none"}}}
    )
    census = census_of([checkpoint(made, [books("lamp", 10, idle=5)]), *made])
    said = checked(reported(census, added(EACH), Asked(2, seed_of("07" * 32))))
    for words in (
        "Something is wrong", "2 of 7", "Incomplete serves", "25.0 %", "Energy adds up", "1 of 1", "exact",
        "0.000010 J = 0.000005 J receipts + 0.000005 J idle", "Diverged: tokens_out is not true", "no-opening",
        "by decode", "A score, and no verdict", "75.0 %", "07" * 32, "What this does not show",
    ):  # fmt: skip
        assert words in said, words


@pytest.mark.parametrize(
    ("made", "judged", "headline"),
    [
        ([0, 1, 2], [], "Everything that was looked at is good"),
        ([0, 1, 2], [4], "Something could not be decided"),
        ([0, 2], [], "Something is wrong"),
        ([], [], "Something could not be decided"),
    ],
)
def test_the_headline_is_the_verdict(made: list[int], judged: list[int], headline: str) -> None:
    sealed = sequence(3)
    census = census_of([sealed[n] for n in made])
    assert headline in checked(reported(census, added([EACH[n] for n in judged])))


def test_names_of_others_are_text() -> None:
    made = sequence(
        2,
        changes={0: {"engine": ENGINE | {"recipe_id": HOSTILE}}, 1: {"energy": energy({HOSTILE: 5})}},
    )
    census = census_of([checkpoint(made, [books(HOSTILE, 6)]), *made], label=HOSTILE)
    hostile = Judged(made[0].value.steward, 0, made[0].id, HOSTILE, not_replayable(9, "engine-failed", detail=HOSTILE))
    said = checked(reported(census, added([hostile, *EACH]), Asked(2, seed_of("07" * 32), each_model=True)))
    assert "<script>alert(1)</script>" in said
    assert "\\u202e" in said


def test_many_of_everything_are_bounded() -> None:
    made = sequence(300, changes={seq: {"energy": energy({f"d{seq}": 1})} for seq in range(60)})
    census = census_of([checkpoint(made, [books(f"d{n:02}", 1) for n in range(60)]), *made[::2]])
    many = added([Judged(bytes(32), n, made[0].id, f"m{n}", not_replayable(4, "no-opening")) for n in range(300)])
    report = reported(census, many)
    assert len(page(report)) < 200_000
    assert "more" in checked(report)
    assert len(report_words(report).splitlines()) < 200


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 0, "0.0 %"), (0, 5, "0.0 %"), (5, 5, "100.0 %"), (1, 3, "33.3 %"), (1, 100_000, "under 0.1 %"),
        (99_999, 100_000, "over 99.9 %"), (1, 1000, "0.1 %"), (2, 3, "66.7 %"),
    ],
)  # fmt: skip
def test_a_share_is_never_rounded_to_none_or_all(part: int, whole: int, said: str) -> None:
    assert percent(part, whole) == said


def widths(drawn: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect class="f-[^"]*" x="[\d.]+%" width="([\d.]+)%"', drawn)]


def test_a_bar_shows_what_is_small_and_stays_as_long_as_it_is() -> None:
    drawn = bar(
        [Part("many", "verified", 99_999, "99,999"), Part("one", "diverged", 1, "1"), Part("none", "x", 0, "0")]
    )
    many, one = widths(drawn)
    assert one >= 0.5
    assert abs(many + one - 100) < 0.01
    assert "none" not in drawn
    assert sum(widths(bar([Part("half", "idle", 5, "5")], whole=10))) == 50
    assert widths(bar([])) == []


@pytest.mark.parametrize("ratios", [[0.3], [1e-9, 1e9], [1.0] * 500, [2.0**-n for n in range(12)]])
def test_a_histogram_holds_every_replay_within_its_frame(ratios: list[float]) -> None:
    drawn = ratio_histogram({"prefill": ratios, "decode": [0.5]})
    bars = re.findall(r'<rect class="f-\w+" x="([\d.]+)%" y="([\d.-]+)" width="([\d.]+)%" height="([\d.]+)"', drawn)
    assert sum(int(n) for n in re.findall(r": (\d+) repla(?:y|ys) by", drawn)) == len(ratios) + 1
    for x, y, width, tall in bars:
        assert float(x) + float(width) <= 100.001
        assert float(y) >= -2
        assert float(y) + float(tall) <= 190


def test_page_that_cannot_be_written_takes_no_report_with_it(
    mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, chunks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("mesh.cli.audit.write_new", full)
    day, trust = make_day(), steward_text(KEY.public)
    archive, file = day.write(tmp_path), tmp_path / "report.html"
    good = mesh("audit", archive, "--trust", trust, "--html", file)
    assert (good.code, good.out.splitlines()[0]) == (3, "audit: good")
    assert f"{file}: no space left on device; the page was not written" in good.err
    told = mesh("audit", archive, "--trust", trust, "--html", file, "--json")
    assert (told.code, told.json["verdict"]) == (3, "good")
    refused = mesh("audit", day.write(tmp_path, day.sealed[1:]), "--trust", trust, "--complete", "--html", file)
    assert refused.code == 10
