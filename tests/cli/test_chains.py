from __future__ import annotations

import pytest

from mesh.cli.chains import Chains, Gap
from mesh.errors import SequenceError
from mesh.schema.checkpoint import Checkpoint
from tests.support.stewards import KEY


def checkpoint(count: int, head: bytes | None) -> Checkpoint:
    return Checkpoint.of(v="mesh/1", steward=KEY.public, at_ns=0, count=count, domains=[], head=head)


def test_chains_hold_each_receipt_once(made) -> None:
    chains = Chains()
    assert [chains.add(sealed.value, sealed.id) for sealed in (*made.sealed, made.sealed[1])] == [
        True,
        True,
        True,
        False,
    ]
    chains.check_links()
    assert list(chains.gaps()) == []
    assert chains.extent() == {KEY.public: (3, 0, 2)}


def test_chains_name_every_gap_up_to_what_a_checkpoint_counts(made) -> None:
    chains = Chains()
    chains.add(made.sealed[1].value, made.sealed[1].id)
    chains.add_checkpoint(checkpoint(5, bytes(32)))
    chains.add_checkpoint(checkpoint(0, None))
    gaps = list(chains.gaps())
    assert gaps == [Gap(KEY.public, 0, 0), Gap(KEY.public, 2, 4)]
    assert [str(gap).split(" of ")[0] for gap in gaps] == ["seq 0 is missing", "seq 2 to 4 are missing"]


def test_chains_know_what_is_missing_from_a_checkpoint_alone() -> None:
    chains = Chains()
    chains.add_checkpoint(checkpoint(2, bytes(32)))
    assert list(chains.gaps()) == [Gap(KEY.public, 0, 1)]


def test_chains_refuse_two_checkpoints_that_fork() -> None:
    chains = Chains()
    chains.add_checkpoint(checkpoint(2, bytes(32)))
    chains.add_checkpoint(checkpoint(2, bytes(32)))
    with pytest.raises(SequenceError, match="fork"):
        chains.add_checkpoint(checkpoint(2, b"\x01" * 32))


def test_chains_accept_a_checkpoint_older_than_the_receipts(made) -> None:
    chains = Chains()
    chains.add_checkpoint(checkpoint(1, made.sealed[0].id))
    for sealed in made.sealed:
        chains.add(sealed.value, sealed.id)
    chains.check_links()
    assert list(chains.gaps()) == []
