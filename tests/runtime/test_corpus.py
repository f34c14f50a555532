"""Every file of the corpus, and every edit of one, gets the verdict that the published reader gives it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from mesh.errors import CandidateError
from mesh.runtime.candidate import Candidate
from mesh.runtime.launching import launch_faults
from mesh.runtime.release import Release
from tests.runtime.conftest import CORPUS, EXPECTED, document


def verdict(read: Callable[[], object]) -> str:
    try:
        read()
    except CandidateError:
        return "refused"
    return "accepted"


@pytest.mark.parametrize("name", EXPECTED["runtime_json"])
def test_runtime_json_gets_its_verdict(name: str) -> None:
    expected, data = EXPECTED["runtime_json"][name], (CORPUS / name).read_bytes()
    assert len(data) == expected["bytes"]
    assert verdict(lambda: Candidate.from_json(data)) == expected["verdict"]
    if expected["verdict"] == "accepted":
        assert hashlib.sha256(data).hexdigest() == expected["sha256"]
        candidate = Candidate.from_json(data)
        assert candidate.engine.distribution.kind == expected["kind"]
        assert candidate.id == name.split("/")[1]


@pytest.mark.parametrize("name", [n for n, e in EXPECTED["runtime_json"].items() if e["verdict"] == "accepted"])
def test_contracts_have_their_digests(name: str) -> None:
    expected = EXPECTED["runtime_json"][name]
    digests = Candidate.from_json((CORPUS / name).read_bytes()).contract_digests
    assert digests == {kind: expected[kind] for kind in digests}
    assert len(digests) == 3


def test_schemas_of_the_past_are_refused_by_their_number_alone() -> None:
    for name, expected in EXPECTED["runtime_json"].items():
        if expected["verdict"] == "refused":
            with pytest.raises(CandidateError) as caught:
                Candidate.from_json((CORPUS / name).read_bytes())
            number = expected["reason"].split()[1]
            assert caught.value.faults == [{"path": "schema_version", "fault": f"expected 6, got {number}"}]


@pytest.mark.parametrize("name", EXPECTED["release_json"])
def test_release_json_gets_its_verdict(name: str) -> None:
    expected, data = EXPECTED["release_json"][name], (CORPUS / name).read_bytes()
    consensus = {"set": True, "null": False, None: None}[expected.get("provenance")]
    assert verdict(lambda: Release.from_json(data, consensus=consensus)) == expected["verdict"]


def edited(edit: dict[str, Any]) -> bytes:
    value = document(edit["base"])
    *parents, last = edit["path"].strip("/").split("/")
    at: Any = value
    for step in parents:
        at = at[int(step)] if isinstance(at, list) else at[step]
    key = int(last) if isinstance(at, list) else last
    if edit["op"] == "remove":
        del at[key]
    else:
        at[key] = edit["value"]
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "edit", EXPECTED["mutations"], ids=[f"{m['op']} {m['path']} {i}" for i, m in enumerate(EXPECTED["mutations"])]
)
def test_an_edited_file_gets_its_verdict_and_the_field_is_named(edit: dict[str, Any]) -> None:
    assert verdict(lambda: Candidate.from_json(edited(edit))) == edit["verdict"]
    if edit["verdict"] == "refused":
        with pytest.raises(CandidateError) as caught:
            Candidate.from_json(edited(edit))
        assert caught.value.faults
        assert all(fault["path"] for fault in caught.value.faults)


def test_the_stricter_reader_refuses_one_of_them_and_says_why() -> None:
    for name, expected in EXPECTED["runtime_json"].items():
        if expected["verdict"] != "accepted":
            continue
        found = [fault.path for fault in launch_faults(Candidate.from_json((CORPUS / name).read_bytes()))]
        refused = "newer Rust core parser" in expected.get("note", "")
        assert found == (
            ["target.platform", "container.min_gpu_free_gib", "container.runtime_min_gpu_free_gib"] if refused else []
        )
