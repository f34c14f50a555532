"""Energy adds up to the microjoule, or the audit says where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.replay.census import Census
from tests.support.audits import EPOCH, KEY, books, census_of, checkpoint, energy, sequence

LATER = b"\x0f" * 16


def with_shares(*shares: dict[str, int], epochs: dict[int, bytes] | None = None) -> list[Any]:
    """Receipts with these shares, of one epoch unless said otherwise."""
    return sequence(
        len(shares),
        changes={seq: {"energy": energy(one, (epochs or {}).get(seq, EPOCH))} for seq, one in enumerate(shares)},
    )


def messages(census: Census) -> list[str]:
    return [fault.message for fault in census.faults]


def test_what_adds_up_is_exact() -> None:
    made = with_shares({"a": 5, "b": 7}, {}, {"a": 1})
    census = census_of(
        [checkpoint(made, [books("a", 10, idle=3, held=1), books("b", 9, first=4, unattributed=2)]), *made]
    )
    assert census.faults == []
    a, b = census.sums
    assert (a.domain, a.result, a.serves, a.receipts_uj, a.counted_uj) == ("a", "exact", 2, 6, 10)
    assert (b.domain, b.result, b.serves, b.receipts_uj, b.counted_uj) == ("b", "exact", 1, 7, 9)
    assert census.uncovered() == {}


@pytest.mark.parametrize("lie", [-1, 1])
def test_one_microjoule_is_found_and_placed(lie: int) -> None:
    """Between the last checkpoint that was right and the first that is not."""
    made = with_shares({"a": 5}, {"a": 5}, {"a": 5 + lie}, {"a": 5})
    early, late = checkpoint(made[:2], [books("a", 10)]), checkpoint(made, [books("a", 20)], at_ns=10**18 + 1)
    census = census_of([early, late, *made])
    (message,) = messages(census)
    assert message == (
        f"epoch {EPOCH.hex()}, a: receipts {20 + lie} + idle 0 + unattributed 0 + open 0 = {20 + lie} "
        f"microjoules, the meter counted 20: {lie:+d}, in seq 2 to 3 or in the books of the checkpoint that counts 4"
    )
    (one,) = census.sums
    assert (one.result, one.difference_uj, one.checkpoints) == ("off", lie, 2)


@pytest.mark.parametrize("field", ["last_uj", "idle_uj", "unattributed_uj", "open_uj"])
def test_books_that_are_off_by_one_are_found(field: str) -> None:
    made = with_shares({"a": 5})
    row = books("a", 9, first=2, idle=2, unattributed=1, held=1)
    assert census_of([checkpoint(made, [row]), *made]).faults == []
    (message,) = messages(census_of([checkpoint(made, [row | {field: row[field] + 1}]), *made]))
    assert "in seq 0 or in the books of the checkpoint that counts 1" in message


def test_books_before_any_receipt_have_to_add_up_too() -> None:
    (message,) = messages(census_of([checkpoint([], [books("a", 3, idle=2)])]))
    assert message.endswith("counted 3: -1, in the books of the checkpoint that counts 0")


def test_missing_receipts_decide_nothing_about_the_sum() -> None:
    made = with_shares({"a": 5}, {"a": 5}, {"a": 5})
    census = census_of([checkpoint(made, [books("a", 15)]), made[0], made[2]])
    (one,) = census.sums
    assert (one.result, one.receipts_uj, one.difference_uj) == ("receipts-missing", None, None)
    assert [fault.kind for fault in census.faults] == ["sequence"]  # the gap is the fault


def test_receipts_before_the_epoch_need_not_be_there() -> None:
    made = with_shares({"a": 5}, {"b": 1}, {"a": 5}, epochs={0: LATER, 1: LATER})
    census = census_of([checkpoint(made, [books("a", 5)], epoch_seq=2), made[2]])
    assert [one.result for one in census.sums] == ["exact"]
    assert census.faults == []


def test_a_receipt_before_its_epoch_is_a_fault() -> None:
    made = with_shares({"a": 5}, {"a": 5})
    (message,) = messages(census_of([checkpoint(made, [books("a", 10)], epoch_seq=1), *made]))
    assert message == f"epoch {EPOCH.hex()}, a: seq 0 has a share in it, and it begins with seq 1"


def test_a_domain_that_the_books_do_not_have_is_a_fault() -> None:
    made = with_shares({"a": 5, "b": 1})
    (message,) = messages(census_of([checkpoint(made, [books("a", 5)]), *made]))
    assert message == (
        f"epoch {EPOCH.hex()}: seq 0 has a share of b, of which the checkpoint that counts 1 does not tell"
    )


def test_a_counter_that_ends_below_its_beginning_is_a_fault() -> None:
    made = with_shares({})
    row = books("a", 0, first=5) | {"last_uj": 3}
    assert any("below its beginning" in one for one in messages(census_of([checkpoint(made, [row]), *made])))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (books("a", 9, first=1, idle=4), "begins a at 1, the one before at 0"),
        (books("b", 5), "leaves out a, which the one before has"),
        (books("a", 7, idle=2), "has idle_uj 2 for a, the one before 3: it only grows"),
        (books("a", 7, idle=3) | {"last_uj": 4}, "has last_uj 4 for a, the one before 8: it only grows"),
    ],
)
def test_checkpoints_of_one_epoch_are_held_against_each_other(second: Any, said: str) -> None:
    made = with_shares({"a": 5}, {})
    first = checkpoint(made[:1], [books("a", 8, idle=3)])
    later = checkpoint(made, [second], at_ns=10**18 + 1)
    assert any(said in one for one in messages(census_of([first, later, *made])))


def test_what_no_checkpoint_covers_is_told_and_no_fault() -> None:
    made = with_shares({"a": 5}, {"a": 6, "b": 1}, {"a": 2}, {"a": 1}, epochs={2: LATER, 3: b"\x01" * 16})
    census = census_of([checkpoint(made[:1], [books("a", 5)]), *made])
    assert census.faults == []
    (rest,) = census.uncovered().values()
    assert (rest.receipts, rest.uj) == (3, 10)


def test_a_receipt_without_an_epoch_is_not_covered() -> None:
    made = sequence(2, changes={1: {"energy": energy({"a": 9}, None)}})
    census = census_of([checkpoint(made), *made])
    assert census.uncovered()[KEY.public].uj == 9
    assert census.faults == []


DOMAINS = ("cpu", "gpu")


@st.composite
def metered(draw: st.DrawFn) -> tuple[list[dict[str, int]], list[int], dict[str, list[tuple[int, int, int]]]]:
    """Shares of receipts; where checkpoints come; and per domain what was idle, nobody's and open at each of them."""
    shares = draw(st.lists(st.dictionaries(st.sampled_from(DOMAINS), st.integers(0, 2**40), max_size=2), max_size=12))
    counts = sorted(draw(st.sets(st.integers(0, len(shares)), min_size=1, max_size=4)))
    small = st.integers(0, 2**30)
    rest = {name: [draw(st.tuples(small, small, small)) for _ in counts] for name in DOMAINS}
    return shares, counts, rest


@given(metered(), st.data())
def test_honest_books_are_exact_in_any_order_and_one_lie_is_found(
    made: tuple[list[dict[str, int]], list[int], dict[str, list[tuple[int, int, int]]]], data: st.DataObject
) -> None:
    shares, counts, rest = made
    sealed = with_shares(*shares)
    checkpoints = []
    for number, count in enumerate(counts):
        rows = []
        for name in DOMAINS:
            receipts = sum(one.get(name, 0) for one in shares[:count])
            idle = sum(one[0] for one in rest[name][: number + 1])
            nobody = sum(one[1] for one in rest[name][: number + 1])
            held = rest[name][-1][2] if number == len(counts) - 1 else 0
            rows.append(
                books(name, receipts + idle + nobody + held, first=7, idle=idle, unattributed=nobody, held=held)
            )
        checkpoints.append(checkpoint(sealed[:count], rows, at_ns=10**18 + number))
    everything = [*checkpoints, *sealed]
    shuffled = data.draw(st.permutations(everything))
    census = census_of(shuffled, ordered=False)
    assert census.faults == []
    assert [one.result for one in census.sums] == ["exact"] * len(DOMAINS)
    assert census.sums == census_of(everything).sums

    metered_ones = [seq for seq, one in enumerate(shares[: counts[-1]]) if one]
    if metered_ones:
        seq = data.draw(st.sampled_from(metered_ones))
        name = data.draw(st.sampled_from(sorted(shares[seq])))
        lying = [*shares[:seq], shares[seq] | {name: shares[seq][name] + 1}, *shares[seq + 1 :]]
        told = with_shares(*lying)
        heads = [
            checkpoint(told[:count], _rows(one), at_ns=10**18 + number)
            for number, (count, one) in enumerate(zip(counts, checkpoints, strict=True))
        ]
        (fault,) = census_of([*heads, *told]).faults
        assert fault.kind == "energy"
        assert f", {name}: " in fault.message
        assert ": +1, " in fault.message


def _rows(sealed: Any) -> list[Any]:
    rows: list[Any] = sealed.value.to_map()["domains"]
    return rows
