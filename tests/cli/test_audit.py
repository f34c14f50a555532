"""`mesh audit` on a day of the reference engine's serves: each fault is found, named, and decides the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.audit import _on_all_cores
from mesh.cli.specs import GgufSpec, ReferenceSpec
from mesh.replay.draw import draw
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import SigningKey, seal
from mesh.schema.ids import steward_text
from mesh.schema.receipt import Receipt
from mesh.schema.request import pack_ids
from tests.replay.sealing import Case
from tests.support.audits import KEY, Day, books, checkpoint, energy, honest_case, make_day, sequence

TRUST = steward_text(KEY.public)
OTHER = SigningKey(b"\x42" * 32)
SEED = "07" * 32


@pytest.fixture(scope="module")
def day() -> Day:
    return make_day()


@pytest.fixture
def audit(mesh, tmp_path: Path) -> Callable[..., Any]:
    """Runs `mesh audit` on a day as JSON, replaying all of it unless told otherwise."""

    def run(archive: Path, *flags: str | Path, engine: tuple[str, ...] = ("--reference",)) -> Any:
        more = ("--disclosures", archive.parent / "disclosures") if (archive.parent / "disclosures").exists() else ()
        result = mesh("audit", archive, "--trust", TRUST, *engine, *more, *flags, "--json")
        return result.code, result.json

    return run


def kinds(told: Any) -> list[str]:
    return [fault["kind"] for fault in told["faults"]]


def test_an_honest_day_is_good(audit, day: Day, tmp_path: Path) -> None:
    code, told = audit(day.write(tmp_path))
    assert (code, told["verdict"], told["faults"]) == (0, "good", [])
    assert told["replays"]["verdicts"] == {"verified": 8}
    assert told["disclosures"] == {"folder": 8}
    assert [one["result"] for one in told["energy"]] == ["exact"]
    (steward,) = told["stewards"]
    assert (steward["incomplete"], steward["head"]) == (0, day.sealed[-1].id.text)


def test_an_honest_day_in_words(mesh, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path)
    result = mesh("audit", archive, "--trust", TRUST, "--reference", "--disclosures", tmp_path / "disclosures")
    assert (result.code, result.err) == (0, "")
    for words in (
        "audit: good\n", "8 good receipts of 1 steward, 1 checkpoint", TRUST, "seq 0 to 7",
        "incomplete  0 of 8 (0.0 %)", "8528 = 8028 + 400 + 100 + 0: exact",
        "replayed: all 8 receipts, on the reference engine", "8 Verified (",
    ):  # fmt: skip
        assert words in result.out


def test_without_an_engine_nothing_is_replayed(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path)
    code, told = audit(archive, engine=())
    assert (code, told["replays"]["receipts"], told["plan"]["receipts"]) == (0, 0, 8)
    assert "engine" not in told["plan"]


# Faults of the sequence: from the day's envelopes, checkpoint first, to what is handed to the auditor.
Envelopes = Callable[[Day], list[Any]]


def tampered(day: Day) -> list[Any]:
    envelope = bytearray(day.sealed[3].envelope)
    envelope[200] ^= 1
    return [day.checkpoint, *day.sealed[:3], bytes(envelope), *day.sealed[4:]]


def forked(day: Day) -> list[Any]:
    fields = day.sealed[3].value.to_map() | {"ended_ns": 5}
    return [day.checkpoint, *day.sealed, seal(Receipt.of(**fields), KEY)]


def foreign(day: Day) -> list[Any]:
    return [day.checkpoint, *day.sealed, *sequence(1, key=OTHER)]


SEQUENCE: dict[str, tuple[Envelopes, int, list[str], str]] = {
    "gap": (
        lambda day: [day.checkpoint, *day.sealed[:3], *day.sealed[4:]], 10, ["sequence"], "gap: seq 3 is missing"
    ),
    "end withheld": (lambda day: [day.checkpoint, *day.sealed[:6]], 10, ["sequence"], "gap: seq 6 to 7 are missing"),
    "duplicate": (
        lambda day: [day.checkpoint, *day.sealed[:4], *day.sealed[3:]], 10, ["sequence"], "(seq 3) is there twice"
    ),
    "fork": (forked, 10, ["sequence"], "signed two receipts with seq 3"),
    "swapped": (
        lambda day: [day.checkpoint, *day.sealed[:3], day.sealed[4], day.sealed[3], *day.sealed[5:]],
        10, ["order"], "(seq 3) comes after seq 4",
    ),
    "checkpoint head": (
        lambda day: [checkpoint(day.sealed, day.totals, head=day.sealed[2].id), *day.sealed],
        10, ["checkpoint"], "as seq 7, got",
    ),
    "checkpoint count": (
        lambda day: [checkpoint(day.sealed, day.totals, count=9), *day.sealed],
        10, ["sequence"], "gap: seq 8 is missing",
    ),
    "tampered": (tampered, 10, ["envelope", "sequence"], "signature"),
    "foreign": (foreign, 11, ["envelope"], "is not in the trust set"),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCE)
def test_a_fault_of_the_sequence_is_named(audit, day: Day, tmp_path: Path, name: str) -> None:
    plant, expected, found, words = SEQUENCE[name]
    code, told = audit(day.write(tmp_path, plant(day)))
    assert (code, kinds(told)) == (expected, found)
    assert words in told["faults"][0]["message"]
    assert told["replays"]["verdicts"].keys() == {"verified"}


def test_one_microjoule_is_named(audit, day: Day, tmp_path: Path) -> None:
    """Everything else is in order: the steward signed another figure, and all that follows it."""
    honest = day.cases[3]
    lying = day.changed(3, honest.claiming(energy=energy({"lamp": 1004})))
    code, told = audit(lying.write(tmp_path))
    assert (code, kinds(told)) == (10, ["energy"])
    assert ": +1, in seq 0 to 7" in told["faults"][0]["message"]
    (one,) = told["energy"]
    assert (one["result"], one["difference_uj"]) == ("off", 1)


def short(day: Day) -> Case:
    return honest_case(3, committed=day.cases[3].output[:3])


# Faults of a serve: what is sealed, or what is disclosed of it.
SERVES: dict[str, tuple[Callable[[Day], Case], int, str, str]] = {
    "missing disclosure": (lambda day: day.cases[3], 11, "not-replayable", "no-opening"),
    "disclosure of another serve": (
        lambda day: Case(day.cases[3].receipt, day.cases[4].disclosure), 11, "not-replayable", "other-request"
    ),
    "changed answer": (
        lambda day: day.cases[3].disclosing(output=pack_ids([*day.cases[3].output[:-1], 5])),
        10, "verified", "differs",
    ),
    "other weights": (
        lambda day: day.cases[3].claiming(
            engine={"weights_digest": bytes(32)}, outcome={"weights_digest": bytes(32)}
        ),
        11, "not-replayable", "other-weights",
    ),
    "other engine": (
        lambda day: day.cases[3].claiming(engine={"backend_id": "reference/2/none/none/none/none"}),
        11, "not-replayable", "other-backend",
    ),
    "output cut short": (lambda day: short(day).claiming(outcome={"finish": "stop"}), 10, "diverged", ""),
    "other output": (
        lambda day: honest_case(3, committed=[*day.cases[3].output[:-1], 9]), 10, "diverged", ""
    ),
    "inflated count": (
        lambda day: day.cases[3].claiming(outcome={"tokens_in": 99}), 10, "diverged", "tokens_in"
    ),
    "inflated delivery": (
        lambda day: day.cases[3].claiming(outcome={"tokens_delivered": 7}), 10, "diverged", "tokens_delivered"
    ),
    "interrupted": (
        lambda day: day.cases[3].claiming(outcome={"finish": "interrupted"}), 11, "not-replayable", "incomplete-serve"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVES)
def test_a_fault_of_a_serve_is_named(audit, day: Day, tmp_path: Path, name: str) -> None:
    plant, expected, kind, word = SERVES[name]
    case = plant(day)
    lying = day.changed(3, case.claiming(energy=day.cases[3].receipt.energy.to_map()))
    archive = lying.write(tmp_path)
    disclosure = tmp_path / "disclosures" / "3.disclosure.cbor"
    if name == "missing disclosure":
        disclosure.unlink()
    elif name == "disclosure of another serve":  # under the name of this one
        other = day.cases[4].disclosure.to_map() | {"serve_id": day.cases[3].disclosure.serve_id}
        disclosure.write_bytes(Disclosure.from_map(other).to_cbor())
    code, told = audit(archive)
    assert (code, told["faults"]) == (expected, [])
    listed = told["replays"]["diverged"] + told["replays"]["not_replayable"]
    assert [(one["seq"], one["verdict"]) for one in listed] == [(3, kind)]
    assert word in (listed[0].get("reason"), listed[0].get("field"), listed[0].get("output"), "")
    assert told["replays"]["verdicts"]["verified"] == 7
    assert told["stewards"][0]["incomplete"] == (1 if name == "interrupted" else 0)


def test_a_disclosure_that_is_none_is_named(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path)
    (tmp_path / "disclosures" / "3.disclosure.cbor").write_bytes(b"\xff")
    (tmp_path / "disclosures" / "notes.txt").write_bytes(b"\xff")  # not called one
    code, told = audit(archive)
    assert (code, kinds(told)) == (10, ["disclosure"])
    assert told["faults"][0]["source"].endswith("3.disclosure.cbor")
    assert told["disclosures"] == {"folder": 7, "none-given": 1}


def test_a_sample_is_what_the_public_seed_draws(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path)
    head = day.sealed[-1].id
    code, told = audit(archive, "--sample", "3", "--seed", SEED, "--head", head.text)
    drawn = draw(head, bytes.fromhex(SEED), range(8), 3)
    (stratum,) = told["plan"]["strata"]
    assert (code, stratum["drawn"], stratum["committed"]) == (0, drawn, True)
    assert told["replays"]["receipts"] == 3
    code, told = audit(archive, "--sample", "3", "--seed", SEED, engine=())
    assert (code, told["plan"]["strata"][0]["drawn"], told["plan"]["strata"][0]["committed"]) == (0, drawn, False)
    assert told["replays"]["receipts"] == 0


def test_a_head_that_the_steward_dropped_is_named(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path)
    gone = day.changed(7, honest_case(99)).sealed[-1].id
    code, told = audit(archive, "--sample", "3", "--seed", SEED, "--head", gone.text)
    assert (code, kinds(told)) == (10, ["head"])


def test_a_selection_is_audited_without_its_gaps(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path, [day.checkpoint, day.sealed[2], day.sealed[6]])
    code, told = audit(archive, "--partial")
    assert (code, told["faults"]) == (0, [])
    assert [one["result"] for one in told["energy"]] == ["receipts-missing"]
    assert audit(archive)[0] == 10


def test_a_late_beginning_is_refused_where_everything_is_wanted(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path, day.sealed[2:])
    assert audit(archive)[0] == 0
    code, told = audit(archive, "--complete")
    assert (code, kinds(told)) == (10, ["sequence"])


def test_two_models_are_replayed_on_the_backends_of_a_config(audit, day: Day, tmp_path: Path) -> None:
    other = day.changed(5, day.cases[5].claiming(engine={"recipe_id": "other"}))
    third = other.changed(6, other.cases[6].claiming(engine={"recipe_id": "third"}))
    archive = third.write(tmp_path)
    config = tmp_path / "mesh.toml"
    config.write_text("".join(f'[[backend]]\nkind = "reference"\nname = "{name}"\n' for name in ("reference", "other")))
    for jobs in ("1", "2", "5"):
        code, told = audit(archive, "--config", config, "--jobs", jobs, engine=())
        assert code == 11
        assert told["replays"]["verdicts"] == {"verified": 7, "not-replayable": 1}
        assert [(one["seq"], one["reason"]) for one in told["replays"]["not_replayable"]] == [(6, "other-recipe")]
        assert told["replays"]["models"]["other"] == {"verified": 1}


def test_a_state_directory_discloses_what_it_keeps(mesh, made, trusted) -> None:
    result = mesh("audit", made.state, "--trust", trusted, "--reference", "--json")
    told = result.json
    assert (result.code, told["replays"]["verdicts"]) == (11, {"verified": 2, "not-replayable": 1})
    assert told["disclosures"] == {"ledger": 2, "not_kept": 1}
    assert told["checkpoints"] == 4


def test_a_ledger_and_its_export_say_the_same(mesh, made, trusted, tmp_path: Path) -> None:
    for out in (tmp_path / "all", tmp_path / "all.cborseq"):
        assert mesh("receipts", "export", "--all", "--state", made.state, "--out", out).code == 0
    names = (made.state, made.state / "ledger.sqlite", tmp_path / "all", tmp_path / "all.cborseq")
    each = []
    for name in names:
        result = mesh("audit", name, "--trust", trusted, "--json")
        assert result.code == 0
        each.append({key: value for key, value in result.json.items() if key != "sources"})
    assert all(one == each[0] for one in each)
    result = mesh("audit", *names, "--trust", trusted, "--json")
    assert (result.code, result.json["repeated"], result.json["receipts"]) == (0, 21, 3)


def test_an_exported_file_under_another_name_is_found(mesh, made, trusted, tmp_path: Path) -> None:
    out = tmp_path / "all"
    assert mesh("receipts", "export", "--all", "--state", made.state, "--out", out).code == 0
    zero, one = out / "receipt-000000000000.cbor", out / "receipt-000000000001.cbor"
    shutil.move(zero, tmp_path / "kept")
    shutil.move(one, zero)
    shutil.move(tmp_path / "kept", one)
    result = mesh("audit", out, "--trust", trusted, "--json")
    assert (result.code, kinds(result.json)) == (10, ["order", "order"])


def test_a_ledger_beside_a_gateway_at_work(mesh, serve_into, tmp_path: Path, trusted) -> None:
    from tests.support.stewards import PROMPT, Client, request, running

    async def main() -> None:
        from mesh.engine.reference import ReferenceEngine

        async with running(tmp_path) as steward:
            admitted = await steward.admit(request(), [ReferenceEngine()], caller="caller")
            await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id())
            result = await asyncio.to_thread(mesh, "audit", tmp_path, "--trust", trusted, "--json")
            assert (result.code, result.json["receipts"]) == (0, 1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sample", "3"), "--sample and --seed come together"),
        (("--seed", SEED), "--sample and --seed come together"),
        (("--sample", "0", "--seed", SEED), "'0' is not a positive"),
        (("--sample", "3", "--seed", "00"), "--seed: expected 16 to 64 bytes"),
        (("--each-model",), "--each-model is about --sample"),
        (("--head", "b3:00"), "--head"),
        (("--complete", "--partial"), "--partial"),
        (("--jobs", "2"), "--jobs: nothing is replayed"),
        (("--reference", "--jobs", "65"), "--jobs 65: at most 64 engines run at once"),
        (("--resume", "j", "--score"), "--resume, --score: nothing is replayed"),
        (("--slots", "2"), "--slots: nothing is replayed"),
        (("--config", "c.toml", "--reference"), "--reference does not go with it"),
    ],
)
def test_flags_that_do_not_go_together(mesh, day: Day, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    result = mesh("audit", day.write(tmp_path), "--trust", TRUST, *flags)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_sources_that_cannot_be_read_twice_are_refused(mesh, tmp_path: Path) -> None:
    assert mesh("audit", "-", "--trust", TRUST).code == 2
    os.mkfifo(tmp_path / "pipe")
    assert mesh("audit", tmp_path / "pipe", "--trust", TRUST).code == 2
    assert mesh("audit", tmp_path / "none.cborseq", "--trust", TRUST).code == 3


def test_a_broken_archive_is_audited_up_to_where_it_breaks(audit, day: Day, tmp_path: Path) -> None:
    archive = day.write(tmp_path)
    archive.write_bytes(archive.read_bytes()[:-10])
    code, told = audit(archive)
    assert (code, kinds(told), told["receipts"]) == (10, ["envelope", "sequence"], 7)
    assert str(archive) not in told["faults"][0]["message"]


def test_a_copy_under_a_broken_signature_does_not_stand_in_for_the_receipt(audit, day: Day, tmp_path: Path) -> None:
    broken = bytearray(day.sealed[3].envelope)
    broken[-1] ^= 1
    code, told = audit(day.write(tmp_path, [bytes(broken), day.checkpoint, *day.sealed]))
    assert (code, kinds(told), told["replays"]["verdicts"]) == (10, ["envelope"], {"verified": 8})


def test_books_that_are_a_lie_are_named(audit, day: Day, tmp_path: Path) -> None:
    false = [books("lamp", 8529, first=77, idle=400, unattributed=100)]
    code, told = audit(day.write(tmp_path, [checkpoint(day.sealed, false), *day.sealed]))
    assert (code, kinds(told)) == (10, ["energy"])


def test_the_page_is_written_once(mesh, day: Day, tmp_path: Path) -> None:
    archive, page = day.write(tmp_path), tmp_path / "report.html"
    assert mesh("audit", archive, "--trust", TRUST, "--html", page).code == 0
    assert page.read_bytes().startswith(b"<!doctype html>")
    before = page.read_bytes()
    assert mesh("audit", archive, "--trust", TRUST, "--html", page).code == 3
    assert page.read_bytes() == before


def test_json_is_one_object_also_with_a_fault(mesh, day: Day, tmp_path: Path) -> None:
    result = mesh("audit", day.write(tmp_path, day.sealed[::-1]), "--trust", TRUST, "--json")
    assert json.loads(result.out)["verdict"] == "refused"


@pytest.mark.parametrize(
    ("given", "count", "jobs", "threads"),
    [({}, 16, 1, 4), ({}, 16, 2, 2), ({}, 16, 4, None), ({}, 15, 1, None), ({"check_threads": 1}, 99, 1, 1),
     ({"threads": 4}, 99, 1, None)],
)  # fmt: skip
def test_many_replays_of_a_gguf_model_are_tried_on_all_cores(monkeypatch, given, count, jobs, threads) -> None:
    monkeypatch.setattr("mesh.cli.audit._cores", lambda: 4)
    spec = GgufSpec(Path("m"), **given)
    assert _on_all_cores(spec, count, jobs) == replace(spec, check_threads=threads)


def test_other_engines_are_left_as_they_are() -> None:
    assert _on_all_cores(ReferenceSpec(), 99, 1) == ReferenceSpec()
