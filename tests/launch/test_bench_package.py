"""Packages land whole or not at all, over nothing that is there, and what was changed since is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.errors import LaunchError, SchemaError, UsageError
from mesh.launch.bench_package import Package, load_package, packages_in, stem_of
from tests.launch.benches import landed

STEM = "2030-01-01_000000_first"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_package_is_one_stem_and_any_part_leads_to_it(tmp_path: Path) -> None:
    path = landed(tmp_path / "reports", STEM)
    suffixes = (".json", ".log", ".manifest.json", ".md", ".recipe.toml")
    assert names(path.parent) == [f"{STEM}{suffix}" for suffix in suffixes]
    package = load_package(path)
    for suffix in suffixes:
        assert load_package(path.parent / f"{STEM}{suffix}") == package
    assert package.chip == "img@dddddddddddd·rcp@aaaaaaaaaaaa·run@cccccccccccc"
    assert list(packages_in(path.parent)) == [package]


def test_package_of_that_stem_is_never_written_over(tmp_path: Path) -> None:
    for suffix in (".md", ".json", ".log", ".recipe.toml", ".manifest.json"):
        folder = tmp_path / suffix
        folder.mkdir()
        (folder / f"{STEM}{suffix}").write_text("mine")
        with pytest.raises(LaunchError, match="is there already, and is not written over"):
            landed(folder, STEM)
        assert names(folder) == [f"{STEM}{suffix}"]
        assert (folder / f"{STEM}{suffix}").read_text() == "mine"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(FileExistsError):
        landed(tmp_path / "reports", STEM)
    long = "l" * 300
    with pytest.raises(OSError, match="too long"):
        landed(tmp_path / "other", long)
    assert names(tmp_path / "other") == []


@pytest.mark.parametrize("suffix", [".json", ".md", ".log", ".recipe.toml"])
def test_part_that_was_changed_or_lost_is_named(tmp_path: Path, suffix: str) -> None:
    path = landed(tmp_path, STEM)
    part = tmp_path / f"{STEM}{suffix}"
    was = part.read_bytes()
    part.write_bytes(was + b" ")
    with pytest.raises(SchemaError, match=f"{STEM}{suffix}: damaged: sha256 is "):
        load_package(path)
    part.unlink()
    with pytest.raises(SchemaError, match=f"{STEM}{suffix}: missing, and its manifest names it"):
        load_package(path)


def test_folder_tells_of_each_package_whether_it_can_be_used(tmp_path: Path) -> None:
    landed(tmp_path, "2030-01-01_000000_a")
    (tmp_path / "2030-01-01_000000_b.json").write_text("{}")  # of a bench that was killed before its manifest
    landed(tmp_path, "2030-01-01_000000_c").write_text("{")
    (tmp_path / "notes.json").write_text("{}")
    good, lone, damaged = packages_in(tmp_path)
    assert isinstance(good, Package)
    assert "2030-01-01_000000_b.json: no manifest" in str(lone)
    assert "damaged: not valid json" in str(damaged)
    assert list(packages_in(tmp_path / "nowhere")) == []


def test_package_whose_files_were_renamed_or_exchanged_is_refused(tmp_path: Path) -> None:
    path = landed(tmp_path, STEM)
    moved = tmp_path / "2030-01-01_000000_other.manifest.json"
    path.rename(moved)
    with pytest.raises(SchemaError, match="a package whose files were renamed"):
        load_package(moved)
    with pytest.raises(SchemaError, match="run is not the one of its data"):
        load_package(landed(tmp_path, "2030-01-01_000000_b", run="another"))


@pytest.mark.parametrize("label", ["", "a/b", "..", "a b", "ä", "l" * 65])
def test_label_is_part_of_a_name(label: str) -> None:
    with pytest.raises(UsageError, match="label"):
        stem_of(label, "2030-01-01_000000")
    assert stem_of("a.b-c_1", "2030-01-01_000000") == "2030-01-01_000000_a.b-c_1"
