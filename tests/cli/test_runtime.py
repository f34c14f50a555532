"""`mesh runtime`: what it says of candidates and packs, and its exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from mesh.cli import progress
from mesh.cli.progress import following
from tests.runtime.candidates import MACOS, PARALLEL, VLLM, document, release, runtime_json
from tests.runtime.trees import TREES, expected_pack, write_tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return published(tmp_path / PARALLEL)


def published(folder: Path, candidate: str = PARALLEL) -> Path:
    """A candidate as a catalogue takes it; that of macOS says that a consensus is beside it."""
    folder.mkdir()
    (folder / "runtime.json").write_bytes(runtime_json(candidate))
    (folder / "release.json").write_text(json.dumps(release(qualified=candidate == MACOS)))
    return folder


def test_validate_says_what_is_good(mesh, folder: Path) -> None:
    result = mesh("runtime", "validate", folder)
    assert (result.code, result.out) == (0, f"good: {PARALLEL} 0.9.1-rc.4\n")
    told = mesh("runtime", "validate", folder, "--json").json
    assert told["valid"]
    assert told["candidate"]["id"] == PARALLEL
    assert told["faults"] == told["would_not_launch"] == told["publication"] == []
    assert mesh("runtime", "validate", folder / "release.json").code == 0


def test_validate_names_every_fault_or_the_first(mesh, tmp_path: Path) -> None:
    value = document()
    value["extra"] = 1
    value["target"]["accelerator"]["count"] = 0
    value["cache"]["persistent"] = True
    path = tmp_path / "runtime.json"
    path.write_text(json.dumps(value))
    result = mesh("runtime", "validate", path)
    assert result.code == 10
    assert [line.split(": ")[:2] for line in result.out.splitlines()] == [
        ["runtime.json", "extra"],
        ["runtime.json", "target.accelerator.count"],
        ["runtime.json", "cache.replay_output_policy"],
    ]
    first = mesh("runtime", "validate", path, "--first", "--json")
    assert (first.code, first.json["valid"]) == (10, False)
    assert first.json["faults"] == [{"file": "runtime.json", "path": "extra", "fault": "unknown field"}]
    path.write_bytes(b"{")
    assert mesh("runtime", "validate", path).out.startswith("runtime.json: not JSON at line 1")


def test_validate_tells_apart_what_would_not_launch(mesh, tmp_path: Path) -> None:
    value = document(VLLM)
    value["target"]["platform"] = "linux/amd64"
    value["container"]["extra"] = 1
    path = tmp_path / "runtime.json"
    path.write_text(json.dumps(value))
    result = mesh("runtime", "validate", path)
    assert result.code == 0
    assert result.out.splitlines()[0].startswith("would not launch: runtime.json: target.platform: expected one of")
    assert result.out.splitlines()[-1].startswith("good: ")
    refused = mesh("runtime", "validate", path, "--launch", "--first", "--json")
    assert (refused.code, refused.json["valid"], len(refused.json["would_not_launch"])) == (10, False, 1)


def test_validate_looks_at_the_folder_too(mesh, folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "other")
    (moved / "link").symlink_to("runtime.json")
    (moved / "benchmark.consensus.json").write_text("{}")
    told = mesh("runtime", "validate", moved, "--json")
    assert told.code == 10
    assert [fault["fault"] for fault in told.json["faults"]] == [
        "member 'link': a symbolic link, expected a regular file"
    ]
    assert [fault["path"] for fault in told.json["publication"]] == ["id", "provenance"]
    (moved / "release.json").unlink()
    assert "could not be published: release.json: missing" in mesh("runtime", "validate", moved).out
    (moved / "runtime.json").unlink()
    assert mesh("runtime", "validate", moved).code == 3


def test_pack_verify_unpack_and_oci_agree(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = expected_pack(TREES["sizes and modes"])
    source = write_tree(tmp_path / PARALLEL, TREES["sizes and modes"])
    packed = mesh("runtime", "pack", source, "--json")
    assert packed.code == 0
    assert packed.json["archive_digest"] == f"sha256:{expected.archive_sha256}"
    assert packed.json["runtime_digest"] == f"sha256:{expected.descriptor_sha256}"
    path = Path(packed.json["path"])
    assert path.name == f"{PARALLEL}-0.9.1-rc.4.letsinfer"
    assert mesh("runtime", "pack", source).code == 3  # it is there already

    verified = mesh("runtime", "verify", path, "--digest", packed.json["archive_digest"])
    assert verified.code == 0
    assert f"archive digest  sha256:{expected.archive_sha256}" in verified.out
    assert mesh("runtime", "verify", path, "--digest", "0" * 64).code == 10

    layout = tmp_path / "layout"
    described = mesh("runtime", "oci", path, "--out", layout, "--json")
    assert described.json["manifest_digest"] == f"sha256:{expected.oci_manifest_sha256}"
    for blob in (layout / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    index = json.loads((layout / "index.json").read_bytes())
    manifest = json.loads((layout / "blobs" / "sha256" / expected.oci_manifest_sha256).read_bytes())
    assert index["manifests"][0]["digest"] == described.json["manifest_digest"]
    assert {manifest["config"]["digest"], manifest["layers"][0]["digest"], described.json["manifest_digest"]} == {
        f"sha256:{blob.name}" for blob in (layout / "blobs" / "sha256").iterdir()
    }
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    other = mesh("runtime", "oci", path, "--out", tmp_path / "other", "--source", "https://example.invalid", "--json")
    assert other.json["manifest_digest"] != described.json["manifest_digest"]
    assert mesh("runtime", "oci", path, "--out", layout).code == 3

    out = mesh("runtime", "unpack", path, "--out", tmp_path / "out", "--json")
    assert out.json["candidate"]["id"] == PARALLEL
    assert mesh("runtime", "unpack", path, "--out", tmp_path / "out").code == 3
    path.write_bytes(path.read_bytes()[:-1])
    assert mesh("runtime", "verify", path).code == 10


def test_index_is_made_from_the_folders_and_checked(mesh, tmp_path: Path) -> None:
    for name in (PARALLEL, MACOS):
        published(tmp_path / name, name)
    (tmp_path / MACOS / "benchmark.consensus.json").write_text("{}")  # its release names one
    (tmp_path / "no candidate").mkdir()
    (tmp_path / "README.md").write_text("a file")
    assert mesh("runtime", "index", tmp_path, "--check").code == 3
    assert mesh("runtime", "index", tmp_path).code == 0
    made = json.loads((tmp_path / "manifest.json").read_bytes())
    assert [each["id"] for each in made["runtimes"]] == [MACOS, PARALLEL]
    assert (tmp_path / "manifest.json").read_text().startswith('{\n  "runtimes": [\n    {\n      "')
    assert mesh("runtime", "index", tmp_path, "--check", "--json").json["state"] == "current"

    (tmp_path / "manifest.json").write_bytes((tmp_path / "manifest.json").read_bytes().replace(b"4.5.6", b"4.5.7"))
    edited = mesh("runtime", "index", tmp_path, "--check")
    assert (edited.code, edited.err) == (
        10,
        f"mesh runtime: manifest.json: {MACOS}: version is not what the folder gives\n",
    )
    for text, why in ((b"[", "not one that was generated"), (b'{"runtimes": []}', f"{MACOS}: not listed")):
        (tmp_path / "manifest.json").write_bytes(text)
        assert why in mesh("runtime", "index", tmp_path, "--check").err
    mesh("runtime", "index", tmp_path)
    (tmp_path / PARALLEL / "new.txt").write_text("more")
    assert f"{PARALLEL}: bytes is not what" in mesh("runtime", "index", tmp_path, "--check").err
    shutil.rmtree(tmp_path / PARALLEL)
    assert "there is no such candidate" in mesh("runtime", "index", tmp_path, "--check").err


def test_index_reads_a_document_to_its_end(mesh, tmp_path: Path) -> None:
    published(tmp_path / MACOS, MACOS)
    (tmp_path / MACOS / "benchmark.consensus.json").write_text("{}")  # its release names one
    for name in ("runtime.json", "release.json"):
        path = tmp_path / MACOS / name
        path.write_bytes(path.read_bytes().replace(b"{", b"{" + b" " * 600_000, 1))
    assert mesh("runtime", "index", tmp_path).code == 0


@pytest.mark.parametrize(
    "listed", [[{"id": 1}], [{"id": None}], ["id"], [{"id": "x"}, {"id": 2}], [[["id", "x"]]], {"id": "x"}, 1]
)
def test_a_manifest_that_nothing_generated_is_not_current(mesh, tmp_path: Path, listed: object) -> None:
    published(tmp_path / PARALLEL)
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 1, "runtimes": listed}))
    checked = mesh("runtime", "index", tmp_path, "--check")
    assert (checked.code, checked.err[:27]) == (10, "mesh runtime: manifest.json")


def test_index_tells_all_that_is_wrong(mesh, tmp_path: Path) -> None:
    published(tmp_path / "misnamed")
    published(tmp_path / MACOS, MACOS)  # provenance without a consensus
    published(tmp_path / "piped")
    (tmp_path / "piped" / "release.json").unlink()
    os.mkfifo(tmp_path / "piped" / "release.json")
    (tmp_path / VLLM).mkdir()
    (tmp_path / VLLM / "runtime.json").write_bytes(runtime_json(VLLM))
    result = mesh("runtime", "index", tmp_path)
    assert result.code == 10
    for expected in ("id: expected the folder's name", "provenance: expected null", "no release.json"):
        assert expected in result.err
    assert not (tmp_path / "manifest.json").exists()


def test_validate_looks_into_a_pack(mesh, folder: Path, tmp_path: Path) -> None:
    pack = tmp_path / "p"
    mesh("runtime", "pack", folder, "--out", pack)
    assert mesh("runtime", "validate", pack).out == f"good: {PARALLEL} 0.9.1-rc.4\n"
    pack.write_bytes(pack.read_bytes()[:-1])
    assert mesh("runtime", "validate", pack).out == "pack: cut off in its end\n"
    (tmp_path / "x.letsinfer").write_bytes(b"{}")
    refused = mesh("runtime", "validate", tmp_path / "x.letsinfer", "--json")
    assert (refused.code, refused.json["faults"][0]["fault"]) == (
        10,
        "pack: cut off in member 'letsinfer-runtime.json'",
    )


def test_validate_tells_what_is_no_file(mesh, folder: Path) -> None:
    (folder / "release.json").unlink()
    os.mkfifo(folder / "release.json")
    assert mesh("runtime", "validate", folder).out.splitlines() == [
        "could not be published: release.json: not a regular file",
        f"good: {PARALLEL} 0.9.1-rc.4",
    ]
    (folder / "runtime.json").unlink()
    os.mkfifo(folder / "runtime.json")
    refused = mesh("runtime", "validate", folder)
    assert (refused.code, refused.out) == (10, "runtime.json: not a regular file\n")


def test_what_cannot_be_meant_is_wrong_usage(mesh, folder: Path, tmp_path: Path, monkeypatch) -> None:
    pack = tmp_path / "p"
    mesh("runtime", "pack", folder, "--out", pack)
    assert "expected 64 lower-case hex digits" in mesh("runtime", "verify", pack, "--digest", "sha256:FF").err
    for source in ("", "\udcff", "a\nb"):
        assert "--source: expected text" in mesh("runtime", "oci", pack, "--out", "o", "--source", source).err
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for here in (".", "", tmp_path / "here"):
        assert "--out is the folder that this runs in" in mesh("runtime", "unpack", pack, "--out", here).err
    assert mesh("runtime", "pack", folder, "--out", "").code == 3
    assert mesh("runtime", "oci", pack, "--out", "no/such").err == "mesh runtime: no: not a directory\n"
    assert not list((tmp_path / "here").iterdir())


def test_long_work_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    total = 4 * progress.LONG_BYTES
    with following("packing") as done:
        for part in range(9):
            done(part * total // 8, total)
    assert capsys.readouterr().err.splitlines() == [f"packing: {n} % of 256 MiB" for n in (25, 50, 75, 100)]
    with following("packing") as done:
        done(1, 1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with following("packing") as done:
        done(total // 2, total)
        done(total, total)
