"""What an audit holds of a steward's receipts says what is missing, forked, twice there or wrongly linked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import SequenceError
from mesh.replay import holding as module
from mesh.replay.holding import Held, Holding, Numbers
from mesh.schema.receipt import Receipt
from tests.support.audits import KEY, receipt, sequence


def held(*sealed, groups: int = 0) -> Holding:
    holding = Holding(KEY.public)
    for one in sealed:
        assert holding.add(one.value, one.id, groups)
    return holding


def test_a_whole_sequence_has_no_gap_and_no_fault() -> None:
    made = sequence(5)
    holding = held(*made)
    assert (len(holding), holding.first, holding.last, holding.head) == (5, 0, 4, made[4].id)
    assert list(holding.gaps(0, 5)) == []
    assert list(holding.gaps(0, 7)) == [(5, 6)]
    assert list(holding.faults()) == []
    assert holding.covers(0, 5)
    assert not holding.covers(0, 6)
    assert holding.seq_of(made[3].id) == 3
    assert holding.seq_of(bytes(32)) is None
    assert list(holding.upto(2)) == [Held(0, made[0].id, 0), Held(1, made[1].id, 0)]


SEQS = st.permutations(range(9))


@given(SEQS, st.sets(st.integers(0, 8)))
def test_order_does_not_matter_for_what_is_there(order: list[int], lost: set[int]) -> None:
    made = sequence(9)
    holding = Holding(KEY.public)
    for seq in order:
        if seq not in lost:
            assert holding.add(made[seq].value, made[seq].id, seq % 3)
    for seq in order:
        if seq not in lost:
            assert not holding.add(made[seq].value, made[seq].id, 0)
    there = sorted(set(range(9)) - lost)
    assert [one.seq for one in holding.upto(9)] == there
    assert [one.group for one in holding.upto(9)] == [seq % 3 for seq in there]
    assert [holding.id_at(seq) for seq in there] == [made[seq].id for seq in there]
    assert {n for first, last in holding.gaps(0, 9) for n in range(first, last + 1)} == lost
    assert list(holding.faults()) == []
    assert all(holding.covers(a, b) == all(n in there for n in range(a, b)) for a in range(9) for b in range(a, 10))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2)])
def test_a_fork_is_named_and_not_taken(order: tuple[int, ...]) -> None:
    made = sequence(4)
    holding = held(*(made[seq] for seq in order))
    other = receipt(2, made[1].id, max_tokens=5)
    with pytest.raises(SequenceError, match=r"^fork: .* two receipts with seq 2"):
        holding.add(other, other.id, 0)
    assert holding.id_at(2) == made[2].id
    assert len(holding) == 4


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_a_receipt_that_names_another_one_before_it_is_found_in_any_order(order: tuple[int, ...]) -> None:
    made = sequence(4)
    wrong = receipt(2, made[0].id)
    third = receipt(3, wrong.id)
    values: list[Receipt] = [made[0].value, made[1].value, wrong, third]
    holding, faults = Holding(KEY.public), []
    for seq in order:
        try:
            holding.add(values[seq], values[seq].id, 0)
        except SequenceError as e:
            faults.append(e)
    faults += holding.faults()
    assert len(faults) == 1
    assert str(faults[0]).startswith(f"prev: receipt {wrong.id}")
    assert made[1].id.text in str(faults[0])
    assert len(holding) == 4


@pytest.mark.parametrize("at_once", [1 << 17, 2])
def test_a_serve_with_two_receipts_is_found(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the serves are compared part by part."""
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    made = sequence(40, changes={33: {"serve_id": b"\x01" * 8 + (5).to_bytes(8, "big")}})
    (fault,) = held(*made).faults()
    assert "duplicate: serve 01010101-0101-0101-0000-000000000005" in str(fault)
    assert str(fault).endswith("two receipts, seq 5 and 33")


def test_a_number_far_away_costs_nothing() -> None:
    far = receipt(2**63 - 1, b"\x05" * 32)
    holding = held(*sequence(2))
    assert holding.add(far, far.id, 0)
    assert list(holding.gaps(0, 2**63)) == [(2, 2**63 - 2)]
    assert holding.last == 2**63 - 1


@given(st.lists(st.integers(0, 30)))
def test_numbers_remember_what_was_given(given: list[int]) -> None:
    numbers, seen = Numbers(), set()
    for number in given:
        assert numbers.add(number) == (number not in seen)
        seen.add(number)
        assert numbers.last == max(seen)


def test_ids_are_found_at_their_places_only() -> None:
    """Two ids side by side may hold a third across their border."""
    holding = Holding(KEY.public)
    first, second = bytes(16) + b"\xaa" * 16, b"\xbb" * 16 + bytes(16)
    for seq, receipt_id in enumerate((first, second)):
        value = receipt(seq, None if seq == 0 else first)
        holding.add(value, receipt_id, 0)
    assert holding.seq_of(b"\xaa" * 16 + b"\xbb" * 16) is None
    assert holding.seq_of(second) == 1


def test_a_long_sequence_takes_tens_of_bytes_a_receipt() -> None:
    holding = held(*sequence(50))
    (run,) = holding._runs
    assert len(run.ids) + len(run.serves) + run.groups.itemsize * len(run.groups) == 50 * 52
