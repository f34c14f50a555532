"""A census finds each fault by its name, whichever source it comes from, and nothing in what is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mesh.errors import Undecidable
from mesh.replay.census import LISTED_FAULTS, AuditFault, Census, Place, Source
from mesh.schema.envelope import Sealed, SigningKey, seal
from tests.support.audits import KEY, books, census_of, checkpoint, energy, receipt, sequence

OTHER = SigningKey(b"\x42" * 32)


def faults(census: Census) -> list[tuple[str, str, str]]:
    """Each with the first word of its message."""
    return [(one.kind, one.code, one.message.split(" ")[0].rstrip(":")) for one in census.faults]


def test_a_whole_archive_is_good() -> None:
    made = sequence(4, changes={1: {"outcome": {"finish": "cancelled", "counted_by": "none"}}})
    census = census_of([checkpoint(made), *made])
    assert (census.good, census.checkpoints, census.repeated, census.faults) == (4, 1, 0, [])
    assert not census.undecided
    (tally,) = census.tallies.values()
    assert (tally.serves, tally.incomplete) == (4, 1)
    assert dict(tally.models["m"]) == {"length": 3, "cancelled": 1}
    assert census.counted(KEY.public) == 4


Planted = Callable[[list[Sealed]], list[Sealed | bytes]]


def tampered(made: list[Sealed]) -> list[Sealed | bytes]:
    envelope = bytearray(made[1].envelope)
    envelope[-1] ^= 1
    return [checkpoint(made), made[0], bytes(envelope), *made[2:]]


def relinked(made: list[Sealed]) -> list[Sealed | bytes]:
    other = seal(receipt(2, made[0].id), KEY)
    return [made[0], made[1], other, seal(receipt(3, other.id), KEY)]


PLANTED: dict[str, tuple[Planted, list[tuple[str, str, str]]]] = {
    "gap": (lambda made: [made[0], made[1], made[3]], [("sequence", "sequence", "gap")]),
    "end withheld": (lambda made: [checkpoint(made), *made[:3]], [("sequence", "sequence", "gap")]),
    "duplicate": (lambda made: [*made[:2], made[1], *made[2:]], [("sequence", "sequence", "duplicate")]),
    "fork": (
        lambda made: [*made, seal(receipt(2, made[1].id, max_tokens=9), KEY)], [("sequence", "sequence", "fork")]
    ),
    "swapped": (lambda made: [made[0], made[2], made[1], made[3]], [("order", "sequence", "receipt")]),
    "relinked": (relinked, [("sequence", "sequence", "prev")]),
    "tampered": (tampered, [("envelope", "signature", "signature"), ("sequence", "sequence", "gap")]),
    "not an envelope": (lambda made: [b"\x00", *made], [("envelope", "structure", "envelope")]),
    "too long": (lambda made: [b"\x00" * 70_000, *made], [("envelope", "structure", "envelope")]),
    "wrong head": (lambda made: [checkpoint(made, head=made[2].id), *made], [("checkpoint", "sequence", "a")]),
    "count too high": (lambda made: [checkpoint(made, count=9), *made], [("sequence", "sequence", "gap")]),
    "count too low": (lambda made: [checkpoint(made, count=3), *made], [("checkpoint", "sequence", "a")]),
    "two heads": (
        lambda made: [checkpoint(made), checkpoint(made, head=made[0].id, at_ns=5), *made],
        [("checkpoint", "sequence", "fork")],
    ),
    "one serve twice": (
        lambda made: list(sequence(4, changes={3: {"serve_id": made[1].value.serve_id}})),
        [("sequence", "sequence", "duplicate")],
    ),
    "a microjoule": (
        lambda made: [checkpoint(made, [books("a", 7, idle=6)]), *made], [("energy", "sequence", "epoch")]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_each_fault_is_found_by_its_name_and_no_other(name: str) -> None:
    plant, expected = PLANTED[name]
    census = census_of(plant(sequence(4)))
    assert faults(census) == expected
    assert sum(census.refused.values()) == len(expected)


def test_a_stranger_is_undecided() -> None:
    census = census_of(sequence(2, key=OTHER))
    assert (census.good, census.faults) == (0, [])
    assert census.undecided == {"trust": 2}
    assert census.undecided_listed[0].where == "archive envelope 0"


def test_two_stewards_have_sequences_of_their_own() -> None:
    ours, theirs = sequence(3), sequence(3, key=OTHER)
    mixed = [one for pair in zip(ours, theirs, strict=True) for one in pair]
    census = census_of(mixed, keys=(KEY, OTHER))
    assert (census.good, census.faults) == (6, [])
    assert set(census.holdings) == {KEY.public, OTHER.public}
    assert census_of(mixed[:-1][::-1], keys=(KEY, OTHER), ordered=False).faults == []


def test_a_source_without_receipts_is_undecided() -> None:
    assert census_of([]).undecided == {Undecidable.code: 1}


def given(*sources: tuple[Source, list[Sealed]], places: list[Place] | None = None) -> Census:
    census = Census({KEY.public})
    for source, sealed in sources:
        census.open(source)
        for number, one in enumerate(sealed):
            census.take(one.envelope, f"{source.label} {number}", None if places is None else places[number])
    census.finish()
    return census


def test_what_two_sources_have_is_counted_once_and_no_fault() -> None:
    made = sequence(4)
    census = given((Source("ledger", whole=True, ordered=True), made), (Source("export", ordered=True), made[1:3]))
    assert (census.good, census.repeated, census.faults) == (4, 2, [])


def test_a_fork_between_two_sources_is_found() -> None:
    """Each of them is whole by itself."""
    made = sequence(3)
    other = [*made[:2], seal(receipt(2, made[1].id, max_tokens=9), KEY)]
    assert faults(given((Source("a"), made), (Source("b"), other))) == [("sequence", "sequence", "fork")]


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, []),
        ({"whole": True}, [("sequence", "sequence", "gap")]),
        ({"partial": True}, []),
    ],
)
def test_the_beginning_has_to_be_there_only_in_a_ledger(about: dict[str, bool], expected: list[Any]) -> None:
    census = given((Source("one", **about), sequence(4)[1:]))
    assert faults(census) == expected
    assert census.missing[KEY.public] == [(0, 0)]


def test_gaps_of_a_selection_are_told_unless_somebody_gave_all() -> None:
    made = sequence(5)
    census = given((Source("mine", partial=True), [made[0], made[2], made[4]]))
    assert (census.faults, census.missing[KEY.public]) == ([], [(1, 1), (3, 3)])
    both = given((Source("mine", partial=True), [made[4]]), (Source("all"), [made[0], made[2]]))
    assert faults(both) == [("sequence", "sequence", "gap")] * 2


@pytest.mark.parametrize("wrong", ["seq", "receipt_id", "serve_id"])
def test_a_ledger_that_keeps_a_receipt_under_another_name_is_found(wrong: str) -> None:
    made = sequence(2)
    places = [Place(one.value.seq, one.id, one.value.serve_id) for one in made]
    assert given((Source("ledger"), made), places=places).faults == []
    other: dict[str, Any] = {"seq": 7, "receipt_id": bytes(32), "serve_id": bytes(16)}
    fields = {"seq": 1, "receipt_id": made[1].id, "serve_id": made[1].value.serve_id} | {wrong: other[wrong]}
    census = given((Source("ledger"), made), places=[places[0], Place(**fields)])
    assert faults(census) == [("ledger", "ledger-corrupt", "kept")]


def test_an_exported_file_under_another_number_is_found() -> None:
    census = given((Source("export"), sequence(2)), places=[Place(1), Place(0)])
    assert [fault.message for fault in census.faults] == [
        "stands in the place of seq 1, and is signed for seq 0",
        "stands in the place of seq 0, and is signed for seq 1",
    ]


def test_a_million_faults_are_counted_and_some_are_listed() -> None:
    census = census_of([b"\x00"] * (LISTED_FAULTS + 50))
    assert census.refused["envelope"] == LISTED_FAULTS + 50
    assert len(census.faults) == LISTED_FAULTS
    assert census.faults[0] == AuditFault("envelope", "structure", "archive envelope 0", census.faults[0].message)


def test_groups_are_what_one_engine_can_replay() -> None:
    from tests.support.audits import ENGINE

    made = sequence(4, changes={1: {"engine": ENGINE | {"recipe_id": "other"}}, 2: {"energy": energy({"a": 1})}})
    census = census_of(made)
    assert [one.recipe_id for one in census.groups] == ["m", "other"]
    assert [held.group for held in census.holdings[KEY.public].upto(4)] == [0, 1, 0, 0]


@pytest.mark.deep
def test_a_census_of_many_holds_little_of_each() -> None:
    """Other stewards' mass goes through: a receipt leaves its id, its serve's id, its group and its shares."""
    import tracemalloc

    def held(count: int) -> int:
        envelopes = [
            one.envelope for one in sequence(count, changes={n: {"energy": energy({"a": n})} for n in range(count)})
        ]
        tracemalloc.start()
        try:
            census = Census({KEY.public})
            census.open(Source("many", whole=True, ordered=True))
            for envelope in envelopes:
                census.take(envelope, "many")
            census.finish()
            assert census.good == count
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    held(200)  # what is made once
    few, many = held(500), held(4500)
    assert (many - few) / 4000 < 150
