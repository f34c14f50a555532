"""What is published beside a candidate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mesh.errors import CandidateError
from mesh.runtime.release import Release, release_faults
from tests.runtime.candidates import release


def released(**changes: Any) -> dict[str, Any]:
    return {**release(), **changes}


def test_provenance_is_set_if_and_only_if_there_is_a_consensus() -> None:
    qualified = json.dumps(release(qualified=True)).encode()
    assert Release.from_json(qualified, consensus=True).provenance is not None
    with pytest.raises(CandidateError, match=r"provenance: expected null, as there is no benchmark\.consensus"):
        Release.from_json(qualified, consensus=False)
    with pytest.raises(CandidateError, match="provenance: expected to be set"):
        Release.from_json(json.dumps(released()).encode(), consensus=True)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"schema_version": 1}, "schema_version"),
        ({"extra": 1}, "extra"),
        ({"authors": []}, "authors"),
        ({"authors": [{"github_login": "a", "github_id": 1, "github_type": "Bot"}]}, "authors[0].github_type"),
        ({"authors": [{"github_login": "-a", "github_id": 1, "github_type": "User"}]}, "authors[0].github_login"),
        ({"authors": [{"github_login": "a", "github_id": 0, "github_type": "User"}]}, "authors[0].github_id"),
        ({"authors": [{"github_login": n, "github_id": 1, "github_type": "User"} for n in "ab"]}, "authors[1].github"),
        ({"authors": [{"github_login": "a", "github_id": n, "github_type": "User"} for n in range(1, 34)]}, "authors"),
        ({"license": "no licence"}, "license"),
        ({"license": "x" * 128}, "license"),
        ({"provenance": {}}, "provenance.consensus_sha256"),
    ],
)
def test_a_fault_is_named_by_its_path(changes: dict[str, Any], path: str) -> None:
    assert release_faults(released()) == []
    found = release_faults(released(**changes))
    assert any(fault.path.startswith(path) for fault in found), found


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(CandidateError, match="expected an object"):
        Release.from_json(b"[]")
