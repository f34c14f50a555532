"""The draw of an audit: fixed by head and seed alone, and even-handed."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import SchemaError
from mesh.replay.draw import draw, seed_of

HEAD, SEED = bytes(range(32)), bytes(32)
HEADS = st.binary(min_size=32, max_size=32)
SEEDS = st.binary(min_size=16, max_size=64)
SEQS = st.sets(st.integers(0, 2**63 - 1), max_size=60)


def test_draw_is_the_one_that_the_spec_works_out() -> None:
    assert draw(HEAD, SEED, range(100), 5) == [7, 60, 87, 96, 99]


def test_draw_is_the_lowest_ranks_of_the_formula() -> None:
    key = blake3(HEAD + SEED, derive_key_context="mesh/1 audit-draw").digest()
    ranked = sorted(range(1000), key=lambda seq: blake3(seq.to_bytes(8, "little"), key=key).digest())
    assert draw(HEAD, SEED, range(1000), 50) == sorted(ranked[:50])


@given(HEADS, SEEDS, SEQS, st.integers(1, 80))
def test_draw_is_of_what_is_there_and_depends_on_no_order(head: bytes, seed: bytes, seqs: set[int], size: int) -> None:
    drawn = draw(head, seed, sorted(seqs), size)
    assert set(drawn) <= seqs
    assert len(drawn) == min(size, len(seqs))
    assert drawn == sorted(drawn)
    shuffled = list(seqs)
    random.Random(1).shuffle(shuffled)
    assert draw(head, seed, shuffled, size) == drawn


@given(HEADS, SEEDS, SEQS, st.integers(1, 40), st.integers(0, 40))
def test_draw_of_more_holds_the_draw_of_less(head: bytes, seed: bytes, seqs: set[int], size: int, more: int) -> None:
    assert set(draw(head, seed, seqs, size)) <= set(draw(head, seed, seqs, size + more))


@given(HEADS, SEEDS, SEQS, st.integers(1, 40), st.data())
def test_what_is_withheld_changes_nothing_about_the_others(
    head: bytes, seed: bytes, seqs: set[int], size: int, data: st.DataObject
) -> None:
    """Withholding a receipt that was drawn brings in the next one, and moves no other."""
    drawn = draw(head, seed, seqs, size)
    if drawn:
        without = data.draw(st.sampled_from(drawn))
        assert set(drawn) - {without} <= set(draw(head, seed, seqs - {without}, size))


def test_every_receipt_is_drawn_about_as_often() -> None:
    counts = [0] * 20
    for number in range(2000):
        for seq in draw(HEAD, number.to_bytes(16, "big"), range(20), 5):
            counts[seq] += 1
    assert sum(counts) == 10_000
    assert min(counts) > 400  # 500 of each are expected; the standard deviation is under 20
    assert max(counts) < 600


def test_another_head_or_seed_is_another_draw() -> None:
    one = draw(HEAD, SEED, range(10_000), 20)
    assert draw(HEAD[::-1], SEED, range(10_000), 20) != one
    assert draw(HEAD, bytes(31) + b"\x01", range(10_000), 20) != one
    assert draw(HEAD, bytes(33), range(10_000), 20) != one


@pytest.mark.parametrize(
    "text", ["", "00" * 15, "00" * 65, "0" * 63, "zz" * 32, "0x" + "00" * 31, " " + "00" * 16, "é"]
)
def test_a_seed_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="16 to 64 bytes in hex"):
        seed_of(text)


def test_seeds_are_hex_in_either_case() -> None:
    assert seed_of("0aFF" * 8) == b"\x0a\xff" * 8
    assert len(seed_of("00" * 64)) == 64


def test_a_head_is_an_id() -> None:
    with pytest.raises(SchemaError, match="31 bytes"):
        draw(bytes(31), SEED, range(3), 1)
