from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from mesh.errors import NotFound
from mesh.ledger import LedgerReader
from mesh.schema.disclosure import Disclosure
from tests.support.stewards import KEY

YEAR_NS = 365 * 24 * 3600 * 10**9  # as the fixture keeps them


def answer_with(disclosure: Any) -> str:
    return json.dumps({"id": "x", "choices": [], "mesh": {"receipt_id": "b3:", "disclosure": disclosure}})


def packed(disclosure: Disclosure) -> str:
    return base64.urlsafe_b64encode(disclosure.to_cbor()).rstrip(b"=").decode()


def test_disclose_writes_what_the_caller_was_given(mesh, made, tmp_path: Path) -> None:
    path = tmp_path / "d.cbor"
    result = mesh("disclose", made.sealed[0].id.text, "--state", made.state, "--out", path)
    assert (result.code, result.out) == (0, "")
    assert result.err.endswith("d.cbor: it holds the prompt and the answer\n")
    assert Disclosure.from_bytes(path.read_bytes()) == made.disclosures[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert mesh("disclose", "0", "--state", made.state, "--out", path).code == 3  # never over anything


def test_disclose_leaves_out_what_it_is_told_to(mesh, made, tmp_path: Path) -> None:
    path = tmp_path / "d.cbor"
    result = mesh("disclose", "0", "--state", made.state, "--out", path, "--no-output", "--no-prompt", "--json")
    assert (result.json["output"], result.json["prompt"]) == (False, False)
    disclosure = Disclosure.from_bytes(path.read_bytes())
    assert (disclosure.output, disclosure.prompt) == (None, None)
    assert disclosure.payload == made.disclosures[0].payload
    bare = mesh("disclose", "0", "--state", made.state, "--out", tmp_path / "bare.cbor", "--no-output", "--no-prompt")
    assert bare.err.endswith("bare.cbor: it holds the prompt\n")  # its ids


def test_disclose_of_a_serve_that_was_not_kept(mesh, made, tmp_path: Path) -> None:
    argv = ("disclose", "2", "--state", made.state, "--out", tmp_path / "d.cbor")
    result = mesh(*argv)
    assert result.code == 10
    assert "not_kept" in result.err
    assert mesh(*argv, "--json").json["error"]["code"] == "not_kept"
    assert not (tmp_path / "d.cbor").exists()


def test_disclose_after_the_time_of_keeping(made) -> None:
    from mesh.steward.disclosing import kept_disclosure

    with LedgerReader.open(made.state / "ledger.sqlite") as reader:
        entry = next(reader.receipts())
        until_ns = made.sealed[0].value.ended_ns + YEAR_NS
        assert kept_disclosure(reader, entry, KEY, now_ns=until_ns - 1) == made.disclosures[0]
        with pytest.raises(NotFound, match="not_kept"):
            kept_disclosure(reader, entry, KEY, now_ns=until_ns)


def test_disclose_needs_the_key_of_the_ledger(mesh, served, tmp_path: Path) -> None:
    argv = ("disclose", "0", "--state", served.state, "--out", tmp_path / "d.cbor")
    key = served.state / "key"
    key.write_bytes(b"mesh-seed-1 " + b"02" * 32 + b"\n")
    result = mesh(*argv)
    assert result.code == 3
    assert "not the key of the ledger" in result.err
    key.unlink()
    assert mesh(*argv).code == 3


def test_disclose_from_a_saved_answer(mesh, made, tmp_path: Path) -> None:
    answer, path = tmp_path / "answer.json", tmp_path / "d.cbor"
    answer.write_text(answer_with(packed(made.disclosures[0])))
    assert mesh("disclose", "--from-answer", answer, "--out", path).code == 0
    assert Disclosure.from_bytes(path.read_bytes()) == made.disclosures[0]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "{",
        '{"choices": []}',
        '{"mesh": null}',
        "[" * 100_000,
        answer_with(None),
        answer_with("%%%"),
        answer_with("AAAA"),
        answer_with("ä"),
        answer_with("A"),
    ],
)
def test_disclose_refuses_an_answer_without_one(mesh, tmp_path: Path, content: str) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text(content)
    result = mesh("disclose", "--from-answer", answer, "--out", tmp_path / "d.cbor")
    assert (result.code, result.err.count("\n")) == (10, 1)
    assert not (tmp_path / "d.cbor").exists()


def test_disclose_wants_a_ledger_or_an_answer(mesh, made, tmp_path: Path) -> None:
    assert mesh("disclose", "--state", made.state, "--out", tmp_path / "d").code == 2
    assert mesh("disclose", "0", "--from-answer", "x", "--out", tmp_path / "d").code == 2
