"""Every published file, every edit of one and every pack gets the verdict and the digests that were published.

The corpus lies elsewhere, and without it there is nothing here; what the rules say is asked of our own candidates in
the other files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from mesh.errors import CandidateError
from mesh.runtime.candidate import Candidate
from mesh.runtime.descriptor import Descriptor
from mesh.runtime.header import ending, member_header, padding
from mesh.runtime.launching import launch_faults
from mesh.runtime.oci import Image
from mesh.runtime.packing import Packed, pack
from mesh.runtime.release import Release
from mesh.runtime.tree import DESCRIPTOR
from mesh.runtime.unpacking import unpack, verify
from tests.runtime.refusals import CASES, LARGE, check_case
from tests.runtime.trees import Tree, expected_pack, write_tree
from tests.support.corpora import corpus

CORPUS: Final = corpus("letsinfer")
EXPECTED: Final[dict[str, Any]] = json.loads((CORPUS / "expected.json").read_bytes())


def published(candidate: str) -> bytes:
    return (CORPUS / "schema6" / candidate / "runtime.json").read_bytes()


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
    value = json.loads(published(edit["base"]))
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


def tree_of(files: list[dict[str, Any]]) -> Tree:
    return {
        file["path"]: (
            (CORPUS / file["from"]).read_bytes() if "from" in file else file["utf8"].encode(),
            int(file["mode"], 8),
        )
        for file in files
    }


@pytest.mark.parametrize("expected", EXPECTED["packs"], ids=lambda pack: pack["name"])
def test_a_pack_has_the_published_digests(expected: dict[str, Any], tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", tree_of(expected["files"]))
    packed = pack(source, tmp_path / "out.letsinfer")
    assert packed.descriptor.model_dump() == expected["descriptor"]
    assert packed.descriptor.digest == expected["descriptor_sha256"]
    assert packed.archive_bytes == expected["archive_bytes"]
    assert packed.archive_sha256 == expected["archive_sha256"]
    assert hashlib.sha256((tmp_path / "out.letsinfer").read_bytes()).hexdigest() == expected["archive_sha256"]
    assert Image.of(packed).manifest_digest == expected["oci_manifest_sha256"]
    assert verify(tmp_path / "out.letsinfer") == packed
    unpack(tmp_path / "out.letsinfer", tmp_path / "out")
    for file in expected["descriptor"]["files"]:
        path = tmp_path / "out" / file["path"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"]
        assert path.stat().st_mode & 0o7777 == file["mode"]


@pytest.mark.parametrize("expected", EXPECTED["packs"], ids=lambda pack: pack["name"])
def test_what_our_own_packs_are_held_to_gives_the_published_digests(expected: dict[str, Any]) -> None:
    listed = {file["path"] for file in expected["descriptor"]["files"]}
    made = expected_pack({name: file for name, file in tree_of(expected["files"]).items() if name in listed})
    assert made.descriptor == expected["descriptor"]
    assert made.descriptor_sha256 == expected["descriptor_sha256"]
    assert (len(made.archive), made.archive_sha256) == (expected["archive_bytes"], expected["archive_sha256"])
    assert made.oci_manifest_sha256 == expected["oci_manifest_sha256"]


def test_the_published_pack_is_reproduced_as_far_as_its_members_are_known() -> None:
    golden = EXPECTED["published_golden"]
    descriptor = Descriptor.model_validate(golden["descriptor"])
    assert descriptor.digest == golden["descriptor_sha256"]
    told = descriptor.to_json()
    archive = member_header(DESCRIPTOR, len(told), 0o644) + told + bytes(padding(len(told)))
    for file in descriptor.files:
        archive += member_header(file.path, file.bytes, file.mode) + bytes(file.bytes + padding(file.bytes))
    archive += bytes(ending(len(archive)))
    assert len(archive) == golden["archive_bytes"]
    zeroed = golden["archive_sha256_with_every_member_body_except_the_descriptor_zero_filled"]
    assert hashlib.sha256(archive).hexdigest() == zeroed
    candidate = Candidate.from_json(published(golden["candidate"]))
    packed = Packed(candidate, descriptor, golden["archive_sha256"], golden["archive_bytes"])
    assert Image.of(packed).manifest_digest == golden["oci_manifest_sha256"]


REFUSALS: Final = {  # what the published cases are called here
    "symlink to a file": "link to a file",
    "symlink to a directory": "link to a folder",
    "dangling symlink": "link to nothing",
    "symlink with an ignored name (x.pyc)": "link that is left out",
    "symlink inside __pycache__": "link in a folder that is left out",
    "FIFO": "pipe",
    "benchmark.md at the top": "benchmark.md",
    "benchmark.md nested": "benchmark.md further down",
    "output inside the source": "into the source",
    "output already exists": "over another file",
    "empty directory only beside runtime.json": "empty folder",
    "hard link to runtime.json": "second name of a file",
    "runtime.json with a UTF-8 BOM": "byte order mark",
    "runtime.json with a duplicate key": "key twice",
    "10,000 files in all": "as many files as may be",
    "10,001 files in all": "one file more",
    "total one byte over 1 GiB": "one byte too many",
}


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(one, id=one["case"], marks=[pytest.mark.deep] if REFUSALS[one["case"]] in LARGE else [])
        for one in EXPECTED["pack_refusals"]
    ],
)
def test_a_tree_is_packed_or_refused_as_published(expected: dict[str, str], tmp_path: Path) -> None:
    folder = write_tree(
        tmp_path / "candidate",
        {"runtime.json": (published("llamacpp--qwen--qwen3-0.6b-gguf--macos-apple-silicon"), 0o644)},
    )
    case = REFUSALS[expected["case"]]
    # duplicate keys pass the published packer; two readers may see two candidates, so here they do not
    assert CASES[case] == (expected["verdict"] == "accepted" and case != "key twice")
    check_case(case, folder, tmp_path)
