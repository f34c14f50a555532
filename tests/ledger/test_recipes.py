from __future__ import annotations

import sqlite3

import pytest

from mesh.errors import LedgerCorrupt, RecipeNotCertified
from mesh.ledger import Ledger
from mesh.ledger.format import STEPS, connect, migrate
from mesh.ledger.reader import LedgerReader
from mesh.ledger.recipes import status_of
from tests.identity.identities import OTHER, evidence, identity

WORDS = {"route_session_id": "session-2", "certified_at_ns": 2**63 - 1}


def test_recipes_are_there_after_a_restart(path, maker):
    dark, proven = identity(recipe__kv_dtype="f16"), identity()
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.reader.registry().known == ()
        assert ledger.register_recipe(dark).result().status == "dark"
        assert ledger.register_recipe(proven.fingerprint).result().status == "dark"
        status = ledger.certify_recipe(proven, evidence(**WORDS)).result()
        assert status.evidence == evidence(**WORDS)
    with LedgerReader.open(path) as reader:
        registry = reader.registry()
    assert registry.status(dark).status == "dark"
    assert registry.status(proven) == status
    assert registry.status(identity(artifact__content_digest=OTHER)).status == "unknown"
    assert len(registry.known) == 2
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.reader.registry().known == registry.known


def test_a_certified_recipe_that_is_registered_again_stays_certified(ledger):
    status = ledger.certify_recipe(identity(), evidence()).result()
    assert ledger.register_recipe(identity(recipe__recipe_id="renamed")).result() == status
    assert ledger.reader.registry().known == (status,)


def test_newer_evidence_takes_the_place_of_older(ledger):
    ledger.certify_recipe(identity(), evidence()).result()
    ledger.certify_recipe(identity(), evidence(**WORDS)).result()
    assert [one.evidence for one in ledger.reader.registry().known] == [evidence(**WORDS)]


def test_evidence_that_certifies_nothing_changes_nothing(ledger):
    ledger.register_recipe(identity()).result()
    for changes in ({"synthetic": True}, {"layer_count": 3, "shard_ranges": ((0, 2), (2, 3))}):
        with pytest.raises(RecipeNotCertified):
            ledger.certify_recipe(identity(), evidence(**changes))
    assert ledger.reader.registry().status(identity()).status == "dark"


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("labels", "nonsense", "labels: not JSON"),
        ("labels", "[]", "a list, expected an object"),
        ("evidence", "{}", "missing"),
        ("evidence", '"x"', "expected an object"),
        ("labels", b"\xff", "of another kind"),
        ("evidence", b"\xff", "of another kind"),
        ("labels", '{"model_artifact_digest": "' + "0" * 64 + '"}', "missing"),
    ],
)
def test_a_row_that_somebody_changed_is_refused(ledger, path, column, value, fault):
    ledger.certify_recipe(identity(), evidence()).result()
    db = sqlite3.connect(path)
    db.execute(f"UPDATE recipes SET {column} = ?", (value,))
    db.commit()
    db.close()
    with pytest.raises(LedgerCorrupt, match=fault):
        ledger.reader.registry()


@pytest.mark.parametrize("column", range(3))
def test_a_damaged_row_without_its_columns_is_refused(ledger, column):
    ledger.certify_recipe(identity(), evidence()).result()
    row = [bytes(32), bytes(32), "{}", None]
    row[column] = None
    with pytest.raises(LedgerCorrupt, match="of another kind, expected two digests and labels"):
        status_of(tuple(row))


def test_kept_evidence_is_held_to_the_rules_again(ledger, path):
    ledger.certify_recipe(identity(), evidence()).result()
    db = sqlite3.connect(path)
    db.execute("UPDATE recipes SET evidence = replace(evidence, '\"synthetic\": false', '\"synthetic\": true')")
    db.commit()
    db.close()
    with pytest.raises(LedgerCorrupt, match="its evidence certifies nothing: a synthetic worker"):
        ledger.reader.registry()


@pytest.mark.parametrize("version", [1, 2])
def test_a_ledger_of_an_older_format_learns_recipes(path, maker, version):
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    db = connect(path, mode="rw")
    migrate(db, 0, steps=STEPS[:version])
    db.execute("INSERT INTO meta VALUES (1, ?, 0, NULL, 0, NULL)", (maker.steward,))
    db.close()
    with LedgerReader.open(path) as reader:
        assert reader.registry().known == ()
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.register_recipe(identity()).result().status == "dark"
        assert len(ledger.reader.registry().known) == 1
