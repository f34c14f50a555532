"""Whether receipts follow one another, told without the ledger."""

from __future__ import annotations

import random
import shutil

import pytest

from mesh.errors import SequenceError
from mesh.ledger import Ledger, LedgerReader, Position, check_sequence
from mesh.ledger.sequence import check_run
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, verify


def chain(maker, length: int, *, offset: int = 0):
    entries, prev = [], None
    for seq in range(length):
        receipt = maker.receipt(maker.serve_id(seq + offset), Position(seq, prev))
        entries.append((receipt, receipt.id))
        prev = receipt.id
    return entries


def test_sequence_in_any_order_is_accepted(maker):
    entries = chain(maker, 20)
    check_sequence([])
    check_sequence(entries)
    random.Random(1).shuffle(entries)
    check_sequence(iter(entries))


def test_sequences_of_several_stewards_are_independent(maker):
    check_sequence(chain(maker, 5) + chain(type(maker)(SigningKey(b"\x07" * 32)), 3))


def test_stretch_may_start_later_if_said_so(maker):
    entries = chain(maker, 9)
    check_sequence(entries[4:], first_seq=4)
    with pytest.raises(SequenceError, match=r"gap: of ed25519:.* seq 0 to 3 is missing"):
        check_sequence(entries[4:])
    with pytest.raises(SequenceError, match="start at seq 4, expected 5"):
        check_sequence(entries[4:], first_seq=5)


def test_gap_is_named(maker):
    entries = chain(maker, 9)
    with pytest.raises(SequenceError, match=r"gap: of ed25519:.* seq 3 is missing, expected 3, got 4"):
        check_sequence(entries[:3] + entries[4:])
    with pytest.raises(SequenceError, match="seq 3 to 6 is missing"):
        check_sequence(entries[:3] + entries[7:])


def test_wrong_prev_is_named(maker):
    entries = chain(maker, 5)
    other = maker.receipt(maker.serve_id(3), Position(3, b"\x09" * 32))
    with pytest.raises(SequenceError, match=r"prev: receipt b3:.* \(seq 3\) names b3:0909.*, expected b3:"):
        check_sequence([*entries[:3], (other, other.id)])


def test_duplicate_receipt_is_named(maker):
    entries = chain(maker, 5)
    with pytest.raises(SequenceError, match=r"duplicate: receipt b3:.* \(seq 2\) is there twice"):
        check_sequence([*entries, entries[2]])


def test_serve_with_two_receipts_is_named(maker):
    entries = chain(maker, 3)
    again = maker.receipt(entries[1][0].serve_id, Position(3, entries[2][1]))
    with pytest.raises(SequenceError, match=r"duplicate: serve .* has two receipts"):
        check_sequence([*entries, (again, again.id)])


def test_fork_is_named_before_anything_else(maker):
    entries = chain(maker, 5)
    fork = maker.receipt(maker.serve_id(77), Position(3, entries[2][1]))
    with pytest.raises(SequenceError, match=r"fork: ed25519:.* signed two receipts with seq 3, b3:.* and b3:"):
        check_sequence([*entries, entries[0], (fork, fork.id)])


def test_copied_state_directory_is_noticed_when_both_have_sealed(path, maker, tmp_path):
    maker.fill(path, 3)
    copy = tmp_path / "copy" / "ledger.db"
    shutil.copytree(path.parent, copy.parent)
    for each, number in ((path, 10), (copy, 20)):
        with Ledger.open(each, steward=maker.steward) as ledger:
            maker.serve(ledger, number)
            assert ledger.moved == (each == copy)
    entries = []
    for each in (path, copy):
        with LedgerReader.open(each) as reader:
            sealed = [verify(e.envelope, RECEIPT_TYPE, {maker.steward}) for e in reader.receipts()]
        check_sequence((s.value, s.id) for s in sealed)  # each alone is in order
        entries += [(s.value, s.id) for s in sealed]
    with pytest.raises(SequenceError, match=r"fork: .* with seq 3"):
        check_sequence(entries)


def counting(maker, entries, **changes):
    receipt, receipt_id = entries[-1]
    fields = {"at_ns": 0, "count": receipt.seq + 1, "domains": [], "head": receipt_id} | changes
    return Checkpoint.of(v="mesh/1", steward=receipt.steward, **fields)


def test_run_may_begin_anywhere_but_is_in_order(maker):
    entries = chain(maker, 6)
    for run in ([], entries, entries[:1], entries[3:]):
        check_run(run)
    for fault, run in (
        ("order", [entries[0], entries[2], entries[1]]),
        ("order", entries[::-1]),
        ("gap", [*entries[:2], *entries[3:]]),
        ("duplicate", [*entries[3:], entries[5]]),
        ("stewards", entries[:2] + chain(type(maker)(SigningKey(b"\x07" * 32)), 1)),
    ):
        with pytest.raises(SequenceError, match=f"^{fault}: "):
            check_run(run)


def test_run_reaches_what_a_checkpoint_counts_and_ends_there_as_it_says(maker):
    entries = chain(maker, 6)
    none = Checkpoint.of(v="mesh/1", steward=entries[0][0].steward, at_ns=0, count=0, domains=[])
    check_run(entries, [counting(maker, entries), counting(maker, entries[:2]), none])
    check_run(entries[3:], [counting(maker, entries[:2])])
    other = type(maker)(SigningKey(b"\x07" * 32))
    for fault, run, checkpoint in (
        ("counts 6 receipts", entries[:5], counting(maker, entries)),
        ("names", entries, counting(maker, entries, head=bytes(32))),
        ("names", entries, counting(maker, entries[:2], head=bytes(32))),
        ("stewards", entries, counting(other, chain(other, 1))),
    ):
        with pytest.raises(SequenceError, match=fault):
            check_run(run, [checkpoint])
