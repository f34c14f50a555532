"""The drawing of a report: well-formed, in words too, and no bar for what has no figure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from mesh.cli.energy_plot import MAX_BARS, MAX_DAYS, svg
from mesh.cli.energy_report import Group, Report

NS = "{http://www.w3.org/2000/svg}"


def group(*key: str, uj: int | None = 10**6, serves: int = 1, basis: str = "measured") -> Group:
    return Group(key, serves, Counter({"absent" if uj is None else basis: serves}), uj or 0)


def drawn(by: tuple[str, ...], *groups: Group) -> ElementTree.Element:
    total = Group(())
    for one in groups:
        total.serves += one.serves
        total.uj += one.uj
        total.bases += one.bases
    return ElementTree.fromstring(svg(Report(by, list(groups), total)))


def bars(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """What each bar says of itself, and the bar."""
    return {said: bar for bar in picture.iter(f"{NS}rect") if (said := bar.findtext(f"{NS}title")) is not None}


def words(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{NS}text")]


def test_bars_are_as_long_as_what_was_spent_and_say_it() -> None:
    picture = drawn(("model",), group("a", uj=2_000_000), group("b", uj=500_000, serves=3, basis="modelled"))
    found = bars(picture)
    assert list(found) == ["a: 2 J of 1 serve (1 measured)", "b: 500 mJ of 3 serves (3 modelled)"]
    widths = [Decimal(bar.get("width") or "") for bar in found.values()]
    assert widths[0] == 4 * widths[1]
    assert {"a", "b", "2 J", "500 mJ", "Energy by model", "4 serves, 2.5 J"} <= set(words(picture))


def test_drawing_has_a_title_and_a_description_for_those_who_do_not_see_it() -> None:
    picture = drawn(("caller",), group("x"))
    assert (picture.get("role"), picture.get("aria-labelledby")) == ("img", "title desc")
    assert picture.findtext(f"{NS}title[@id='title']") == "Energy by caller"
    assert picture.findtext(f"{NS}desc[@id='desc']") == "1 serve, 1 J. x: 1 J of 1 serve (1 measured)"
    assert "prefers-color-scheme:dark" in (picture.findtext(f"{NS}style") or "")


def test_group_without_a_figure_has_a_word_and_no_bar() -> None:
    picture = drawn(("model",), group("a"), group("b", uj=None, serves=2))
    assert len(bars(picture)) == 1
    assert "no figure" in words(picture)
    assert "3 serves, 1 J; 2 without a figure" in words(picture)
    alone = drawn(("model",), group("b", uj=None))
    assert bars(alone) == {}
    assert "1 serve, no figure; 1 without a figure" in words(alone)


def test_names_of_others_are_no_markup_and_turn_nothing_around() -> None:
    name = '</text><script>alert("1")</script>&\u202egnp\x00\x1b[31m'
    for by, key in ((("model",), (name,)), (("model", "day"), (name, "2024-10-04"))):
        picture = drawn(by, group(*key))
        assert not list(picture.iter(f"{NS}script"))
        assert '</text><script>alert("1")</script>&\\u202egnp\\x00\\x1b[31m' in next(iter(bars(picture)))


def test_days_are_columns_that_add_up() -> None:
    picture = drawn(
        ("model", "day"), group("a", "2024-10-04", uj=3_000_000), group("a", "2024-10-05", uj=1_000_000),
        group("b", "2024-10-04", uj=1_000_000), group("b", "2024-10-06", uj=None),
    )  # fmt: skip
    found = bars(picture)
    assert {said.split(" of ")[0] for said in found} == {
        "a, 2024-10-04: 3 J", "a, 2024-10-05: 1 J", "b, 2024-10-04: 1 J"
    }  # fmt: skip
    heights = {said.split(":")[0]: Decimal(bar.get("height") or "") for said, bar in found.items()}
    assert heights["a, 2024-10-04"] == 3 * heights["b, 2024-10-04"]
    stacked = [found[said] for said in found if "2024-10-04" in said]
    low, high = (Decimal(bar.get("y") or "") for bar in stacked)
    assert low - high == heights["b, 2024-10-04"]  # one stands on the other
    assert {"a: 4 J", "b: 1 J", "–"} <= set(words(picture))


def test_many_groups_are_a_few_bars_that_hold_all() -> None:
    groups = [group(f"caller {number:03}", uj=number + 1) for number in range(200)]
    found = bars(drawn(("caller",), *groups))
    assert len(found) == MAX_BARS
    rest = sum(one.uj for one in groups) - sum(range(200, 200 - MAX_BARS + 1, -1))
    assert f"161 others: {Decimal(rest) / 1000} mJ of 161 serves (161 measured)" in found
    days = [group(f"m{number % 12}", f"2024-01-{number:03}") for number in range(100)]
    picture = drawn(("model", "day"), *days)
    assert len(bars(picture)) == MAX_DAYS
    assert any(word.startswith("others: ") for word in words(picture))


@pytest.mark.parametrize("by", [("model",), ("day",)])
def test_no_receipts_are_said(by: tuple[str, ...]) -> None:
    assert "no receipts" in words(drawn(by))


@pytest.mark.parametrize("uj", [0, 1, 7, 999, 10**6, 123_456_789, 2**53, 2**62])
def test_axis_has_a_few_round_amounts_within_the_bars(uj: int) -> None:
    picture = drawn(("model",), group("a", uj=uj))
    lines = [Decimal(line.get("x1") or "") for line in picture.iter(f"{NS}line")]
    (bar,) = bars(picture).values()
    end = Decimal(bar.get("x") or "") + Decimal(bar.get("width") or "")
    assert len(lines) <= 6
    assert all(line <= end for line in lines)
    assert (len(lines) > 0) == (uj > 0)


def test_command_writes_it_once_beside_the_table(mesh, made, tmp_path: Path) -> None:
    out = tmp_path / "energy.svg"
    told = mesh("receipts", "energy", "--state", made.state, "--by", "model,day", "--svg", out)
    assert told.code == 0
    assert "absent" in told.out
    assert "no figure" in (ElementTree.parse(out).getroot().findtext(f"{NS}desc") or "")
    again = mesh("receipts", "energy", "--state", made.state, "--svg", out)
    assert (again.code, "file exists" in again.err) == (3, True)
