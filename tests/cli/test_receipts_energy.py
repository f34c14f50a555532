"""Sums over receipts."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.energy_report import Factors, Group, report
from mesh.meter.protocol import Domain, Reading
from mesh.schema.energy import Energy
from mesh.schema.receipt import Receipt

DAY_NS = 86_400 * 10**9


def receipt(made: Any, uj: int | None, tokens: int | None, *, model: str = "m", day: int = 0) -> Receipt:
    """One of a real ledger with its figure, count, model and day replaced."""
    fields = made.sealed[0].value.to_map()
    fields["engine"] |= {"recipe_id": model}
    fields["ended_ns"] = fields["started_ns"] = (20_000 + day) * DAY_NS
    if uj is None:
        energy = Energy.of(basis="absent", sources=[], reason="no-meter", span_ns=1)
    else:
        source = {"domain": "d", "method": "log", "uj": uj, "resolution_ns": 1}
        energy = Energy.of(basis="measured", sources=[source], uj=uj, span_ns=1, epoch=bytes(16))
    fields["energy"] = energy.to_map()
    fields["outcome"].pop("tokens_accepted")
    if tokens is not None:
        fields["outcome"]["tokens_accepted"] = tokens
    return Receipt.from_map(fields)


def test_sums_are_by_key_and_total(made) -> None:
    receipts = [
        (receipt(made, 3_000_000, 10, model="a"), "x"),
        (receipt(made, 1_000_000, 10, model="a", day=1), "y"),
        (receipt(made, 500_000, 1, model="b"), "x"),
        (receipt(made, None, 7, model="b"), "x"),
        (receipt(made, 40, None, model="b"), "y"),
        (receipt(made, 2, 0, model="b"), "y"),
    ]
    by_model = report(receipts, ["model"])
    assert [(group.key, group.serves, group.uj, group.tokens) for group in by_model.groups] == [
        (("a",), 2, 4_000_000, 20),
        (("b",), 4, 500_042, 1),  # the tokens of what has no figure are in no quotient
    ]
    assert (by_model.total.serves, by_model.total.uj) == (6, 4_500_042)
    assert by_model.groups[0].joules_per_token() == Decimal("0.2")
    assert by_model.groups[1].joules_per_token() == Decimal("0.5")
    both = report(receipts, ["caller", "day"])
    assert [group.key for group in both.groups] == [("x", "2024-10-04"), ("y", "2024-10-04"), ("y", "2024-10-05")]
    assert sum(group.uj for group in both.groups) == both.total.uj


def test_spread_is_that_of_the_serves(made) -> None:
    group = Group(())
    for joules in range(1, 101):
        group.add(receipt(made, joules * 1_000_000, 1))
    assert group.spread() == (Decimal(10), Decimal(50), Decimal(90))
    one = Group(())
    one.add(receipt(made, 1_000_000, 3))
    assert one.spread() == (Decimal("0.333333"),) * 3
    assert Group(()).spread() is None
    assert Group(()).joules_per_token() is None


def test_factors_are_applied_once_and_in_named_fields() -> None:  # EN-10
    kwh = 3_600_000_000_000
    assert Factors().applied(kwh) == {"kwh": 1}
    assert Factors(price=Decimal("0.30"), grid_g_per_kwh=Decimal(350)).applied(2 * kwh) == {
        "kwh": 2, "cost": Decimal("0.6"), "co2e_g": 700,
    }  # fmt: skip
    all_three = Factors(Decimal("0.30"), Decimal("1.5"), Decimal(350)).applied(kwh)
    assert all_three == {"kwh": 1, "facility_kwh": Decimal("1.5"), "cost": Decimal("0.45"), "co2e_g": 525}


class Moving:
    """A meter that counted a joule whenever it is looked at."""

    interval_ns = 10**9
    prompt = False

    def __init__(self) -> None:
        self._uj = 0

    def domains(self) -> Sequence[Domain]:
        return (Domain("d", "by-hand", 0, None, modelled=True),)

    def read(self) -> Sequence[Reading]:
        self._uj += 1_000_000
        return (Reading("d", time.monotonic_ns(), self._uj),)

    def close(self) -> None:
        pass


@pytest.fixture
def metered(tmp_path: Path, serve_into: Any) -> Path:
    asyncio.run(serve_into(tmp_path, 2, meters=[Moving()]))
    return tmp_path


def test_report_of_a_ledger_in_three_forms(mesh, metered: Path) -> None:
    flags = ("receipts", "energy", "--state", metered, "--price", "0.25", "--pue", "1.2")
    told = mesh(*flags, "--by", "model,caller", "--json").json
    assert told["factors"] == {"price_per_kwh": "0.25", "pue": "1.2"}
    (group,) = told["groups"]
    assert (group["model"], group["caller"], group["serves"]) == ("reference", "caller", 2)
    assert group["modelled"] == 2
    assert group["uj"] >= 2_000_000
    assert told["total"] == {name: value for name, value in group.items() if name not in ("model", "caller")}
    assert {"kwh", "facility_kwh", "cost"} <= group.keys()
    assert "co2e_g" not in group
    (line,) = csv.DictReader(io.StringIO(mesh(*flags, "--csv").out))
    assert (line["model"], line["serves"], line["uj"]) == ("reference", "2", str(group["uj"]))
    shown = mesh(*flags)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0].split()[:3] == ["model", "serves", "joules"]


def test_report_without_a_figure_shows_no_zero(mesh, made) -> None:
    shown = mesh("receipts", "energy", "--state", made.state)
    assert shown.out.splitlines()[-1] == "3 serves without a figure"
    row = shown.out.splitlines()[1].split()
    assert row == ["reference", "3", "3", "absent"]
    total = mesh("receipts", "energy", "--state", made.state, "--price", "1", "--json").json["total"]
    assert total == {"serves": 3, "measured": 0, "allocated": 0, "modelled": 0, "unresolved": 0, "absent": 3}


def test_report_of_an_empty_ledger(mesh, tmp_path: Path, serve_into: Any) -> None:
    asyncio.run(serve_into(tmp_path, 0))
    assert mesh("receipts", "energy", "--state", tmp_path).out == "no receipts\n"
    assert mesh("receipts", "energy", "--state", tmp_path, "--json").json["groups"] == []


@pytest.mark.parametrize(
    "flags",
    [
        ("--by", "weather"),
        ("--by", "model,model"),
        ("--by", ""),
        ("--price", "0"),
        ("--pue", "-1"),
        ("--pue", "0.99"),
        ("--grid", "nan"),
        ("--price", "x"),
        ("--csv", "--json"),
    ],
)
def test_report_refuses_what_means_nothing(mesh, made, flags: tuple[str, ...]) -> None:
    assert mesh("receipts", "energy", "--state", made.state, *flags).code == 2
