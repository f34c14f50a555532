"""Sums over receipts: what was spent, on what, by whom and when, and what that comes to.

Figures of receipts are added as they are, in whole microjoules. What an operator knows and no receipt says is a factor:
it is applied once, here, to the sum, and what it gives has a name of its own:

    kwh            what the meters counted
    facility_kwh   kwh x PUE, where a PUE was given
    cost           price x facility_kwh, or x kwh where no PUE was given
    co2e_g         grid intensity x the same
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.schema.receipt import Receipt

KEYS = ("model", "caller", "day", "grant")
UJ_PER_KWH = 3_600_000_000_000
UJ_PER_J = 1_000_000
_PICO = 1_000_000  # picojoules in a microjoule: per-token figures are compared in whole ones
_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class Factors:
    """`price` per kWh, `pue` the facility's energy over the machines', `grid_g_per_kwh` grams of CO2e."""

    price: Decimal | None = None
    pue: Decimal | None = None
    grid_g_per_kwh: Decimal | None = None

    def applied(self, uj: int) -> dict[str, Decimal]:
        """The named amounts that a sum of microjoules comes to."""
        with localcontext() as context:
            context.prec = 40
            kwh = Decimal(uj) / UJ_PER_KWH
            amounts = {"kwh": kwh}
            if self.pue is not None:
                kwh = amounts["facility_kwh"] = kwh * self.pue
            if self.price is not None:
                amounts["cost"] = kwh * self.price
            if self.grid_g_per_kwh is not None:
                amounts["co2e_g"] = kwh * self.grid_g_per_kwh
            return {name: amount.quantize(Decimal(1).scaleb(-9), ROUND_HALF_EVEN) for name, amount in amounts.items()}


@dataclass(slots=True)
class Group:
    """The serves of one key. `uj` is over those with a figure; `token_uj` and `tokens` are over those that also have
    accepted tokens, and `each_pj` is picojoules a token of each of them."""

    key: tuple[str, ...]
    serves: int = 0
    bases: Counter[str] = field(default_factory=Counter)
    uj: int = 0
    token_uj: int = 0
    tokens: int = 0
    each_pj: list[int] = field(default_factory=list)

    def add(self, receipt: Receipt) -> None:
        energy, tokens = receipt.energy, receipt.outcome.tokens_accepted
        self.serves += 1
        self.bases[energy.basis] += 1
        if energy.uj is None:
            return
        self.uj += energy.uj
        if tokens:
            self.token_uj += energy.uj
            self.tokens += tokens
            self.each_pj.append(energy.uj * _PICO // tokens)

    @property
    def figures(self) -> int:
        """Serves that have one."""
        return self.serves - self.bases["unresolved"] - self.bases["absent"]

    def joules_per_token(self) -> Decimal | None:
        """Over all tokens together; None where there are none."""
        return None if not self.tokens else _joules(self.token_uj * _PICO // self.tokens)

    def spread(self) -> tuple[Decimal, Decimal, Decimal] | None:
        """The tenth, fiftieth and ninetieth of a hundred serves, by joules a token: the nearest that was there."""
        if not self.each_pj:
            return None
        ordered = sorted(self.each_pj)
        low, middle, high = (_joules(ordered[-(-len(ordered) * part // 100) - 1]) for part in (10, 50, 90))
        return low, middle, high


@dataclass(frozen=True, slots=True)
class Report:
    """Groups in the order of their keys, and all of them together."""

    by: tuple[str, ...]
    groups: list[Group]
    total: Group


def report(receipts: Iterable[tuple[Receipt, str]], by: Sequence[str]) -> Report:
    """Receipts with their callers, grouped by some of `KEYS`."""
    groups: dict[tuple[str, ...], Group] = {}
    total = Group(())
    for receipt, caller in receipts:
        keys = _keys(receipt, caller)
        key = tuple(keys[name] for name in by)
        groups.setdefault(key, Group(key)).add(receipt)
        total.add(receipt)
    return Report(tuple(by), [groups[key] for key in sorted(groups)], total)


def _keys(receipt: Receipt, caller: str) -> Mapping[str, str]:
    """`day` is the UTC day on which the serve ended."""
    return {
        "model": receipt.engine.recipe_id,
        "caller": caller,
        "day": datetime.fromtimestamp(receipt.ended_ns // _NS_PER_S, UTC).date().isoformat(),
        "grant": "" if receipt.grant_id is None else f"b3:{receipt.grant_id.hex()}",
    }


def _joules(pj: int) -> Decimal:
    return (Decimal(pj) / (_PICO * UJ_PER_J)).quantize(Decimal("0.000001"))
