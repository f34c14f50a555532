"""Packs have the bytes that the rules give, whoever packs; what cannot be packed is refused and leaves nothing."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import PackError
from mesh.runtime.archive import read_pack
from mesh.runtime.candidate import Candidate
from mesh.runtime.descriptor import Descriptor, PackedFile
from mesh.runtime.document import canonical
from mesh.runtime.header import member_header
from mesh.runtime.oci import Image
from mesh.runtime.packing import pack
from mesh.runtime.tree import DESCRIPTOR
from mesh.runtime.unpacking import unpack, verify
from tests.runtime.candidates import MACOS, runtime_json
from tests.runtime.refusals import CASES, LARGE, check_case
from tests.runtime.trees import TREES, expected_pack, write_tree
from tests.support.examples import examples


@pytest.mark.parametrize("name", TREES)
def test_a_pack_has_the_bytes_that_the_rules_give(name: str, tmp_path: Path) -> None:
    expected = expected_pack(TREES[name])
    packed = pack(write_tree(tmp_path / "source", TREES[name]), tmp_path / "out.letsinfer")
    assert packed.descriptor.model_dump() == expected.descriptor
    assert packed.descriptor.digest == expected.descriptor_sha256
    assert (tmp_path / "out.letsinfer").read_bytes() == expected.archive
    assert (packed.archive_bytes, packed.archive_sha256) == (len(expected.archive), expected.archive_sha256)
    assert Image.of(packed).manifest == expected.oci_manifest
    assert Image.of(packed).manifest_digest == expected.oci_manifest_sha256
    assert verify(tmp_path / "out.letsinfer") == packed


def case_tree(root: Path, order: list[str]) -> Path:
    """The tree of case AR-01, its files made in `order`."""
    files = {"b.txt": (b"2\n", 0o644), "a.txt": (b"hello\n", 0o644), "run.sh": (b"#!\n", 0o755)}
    files |= {"runtime.json": (runtime_json(MACOS), 0o644), "deep/er/ü.dat": (b"", 0o600)}
    (root / "dir").mkdir(parents=True)
    for name in order:
        data, mode = files[name]
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        (root / name).chmod(mode)
    os.link(root / "a.txt", root / "hard.txt")
    return root


NAMES = ["b.txt", "a.txt", "run.sh", "runtime.json", "deep/er/ü.dat"]


def test_ar_01_the_same_tree_gives_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    rng = random.Random(1)
    digests = set()
    for n in range(4):
        order = rng.sample(NAMES, len(NAMES))
        before = os.umask((0o077, 0o022, 0o000, 0o027)[n])
        try:
            source = case_tree(tmp_path / f"place {n}" / ("x" * n + "é"), order)
            for path in source.rglob("*"):
                os.utime(path, ns=(n * 10**9 + 123_456_789, n * 10**12 + 1))
            if os.geteuid() == 0:
                for path in source.rglob("*"):
                    os.chown(path, 1000 + n, 2000 + n)
            packed = pack(source, tmp_path / f"{n}.letsinfer")
        finally:
            os.umask(before)
        digests.add((packed.archive_sha256, packed.descriptor.digest))
    assert len(digests) == 1
    unpack(tmp_path / "0.letsinfer", tmp_path / "again")
    again = pack(tmp_path / "again", tmp_path / "again.letsinfer")
    assert {(again.archive_sha256, again.descriptor.digest)} == digests
    assert (tmp_path / "again" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "again" / "deep" / "er" / "ü.dat").stat().st_mode & 0o777 == 0o644


def test_what_was_unpacked_is_what_was_packed(tmp_path: Path) -> None:
    for name, tree in TREES.items():
        pack(write_tree(tmp_path / name, tree), tmp_path / f"{name}.letsinfer")
        target = tmp_path / f"{name}-out"
        before = os.umask(0o077)
        try:
            unpack(tmp_path / f"{name}.letsinfer", target)
        finally:
            os.umask(before)
        found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        files = expected_pack(tree).descriptor["files"]
        assert found == {file["path"] for file in files}
        for file in files:
            path = target / file["path"]
            assert path.read_bytes() == tree[file["path"]][0]
            assert path.stat().st_mode & 0o7777 == file["mode"]


@pytest.mark.parametrize("case", [case for case in CASES if case not in LARGE])
def test_a_tree_is_packed_or_refused(case: str, folder: Path, tmp_path: Path) -> None:
    check_case(case, folder, tmp_path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["README", "readme"], "collides with 'README'"),
        (["Lib/a", "lib/b"], "its folder collides with 'Lib'"),
        (["e\u0301.txt", "\u00e9.txt"], "collides with"),
        (["a\\b"], "holds a backslash"),
        (["a\nb"], "holds a control character"),
        (["c:x"], "an absolute path"),
    ],
)
def test_names_that_another_system_could_not_hold_are_refused(names: list[str], expected: str, folder: Path) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    if len([p for p in folder.rglob("*") if p.is_file()]) != len(names) + 1:
        pytest.skip("this file system cannot hold both")
    with pytest.raises(PackError, match=expected):
        pack(folder, folder.parent / "out.letsinfer")


def test_a_deep_folder_is_refused_by_its_path(folder: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        for _ in range(300):
            os.mkdir("dddd")
            os.chdir("dddd")
    finally:
        os.fchdir(here)
        os.close(here)
    with pytest.raises(PackError, match=r"member 'dddd/dddd/.*': over 1024 bytes"):
        pack(folder, folder.parent / "out.letsinfer")


def test_a_name_that_is_no_unicode_and_a_socket_are_refused(folder: Path) -> None:
    path = os.path.join(os.fsencode(folder), b"\xff.dat")
    with open(path, "wb"):
        pass
    with pytest.raises(PackError, match="not valid Unicode"):
        pack(folder, folder.parent / "out.letsinfer")
    os.unlink(path)
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # the path of a socket is short
        try:
            listener.bind("s")
        finally:
            os.chdir(here)
        with pytest.raises(PackError, match="a socket, expected a regular file"):
            pack(folder, folder.parent / "out.letsinfer")


def test_a_file_that_changes_while_it_is_packed_is_found(folder: Path, tmp_path: Path) -> None:
    for name in ("a.dat", "b.dat"):
        (folder / name).write_bytes(b"x" * 100)
    half = 2 * (200 + len(runtime_json(MACOS))) // 2

    def grow(done: int, total: int) -> None:
        assert total == 2 * half
        if done == half:
            (folder / "a.dat").write_bytes(b"y" * 100)

    with pytest.raises(PackError, match=r"member 'a.dat': changed while it was packed"):
        pack(folder, tmp_path / "out.letsinfer", progress=grow)
    assert not (tmp_path / "out.letsinfer").exists()

    def link(done: int, total: int) -> None:
        if done == half:
            (folder / "b.dat").unlink()
            (folder / "b.dat").symlink_to("a.dat")

    with pytest.raises(PackError, match=r"member 'b.dat': changed while it was packed"):
        pack(folder, tmp_path / "out.letsinfer", progress=link)


def test_a_pack_that_becomes_another_while_it_is_unpacked_is_found(folder: Path, tmp_path: Path) -> None:
    packs = []
    for letter in (b"x", b"y"):
        (folder / "a.dat").write_bytes(letter * 100)
        pack(folder, tmp_path / f"{letter.decode()}.letsinfer")
        packs.append((tmp_path / f"{letter.decode()}.letsinfer").read_bytes())
    for first, then in (packs, packs[::-1]):  # of one of them the digest sorts before the other's
        (tmp_path / "it.letsinfer").write_bytes(first)

        def change(done: int, total: int, then: bytes = then) -> None:
            if 2 * done == total:
                (tmp_path / "it.letsinfer").write_bytes(then)

        with pytest.raises(PackError, match=r"it\.letsinfer: changed while it was unpacked"):
            unpack(tmp_path / "it.letsinfer", tmp_path / "out", progress=change)
        assert not (tmp_path / "out").exists()


def test_progress_reaches_its_end(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    pack(folder, tmp_path / "out.letsinfer", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 2 * len(runtime_json(MACOS))
    seen.clear()
    unpack(tmp_path / "out.letsinfer", tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@settings(max_examples=examples(120))
@given(
    path=st.lists(
        st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\\u2028\u2029"), min_size=1,
                max_size=60),
        min_size=1, max_size=4,
    ).map("/".join),
    size=st.integers(0, 1 << 30),
    mode=st.sampled_from((0o644, 0o755)),
)  # fmt: skip
def test_headers_are_those_of_the_standard_library(path: str, size: int, mode: int) -> None:
    """An independent writer: Python's own, told the same."""
    import tarfile

    told = tarfile.TarInfo(path)
    told.size, told.mode, told.mtime = size, mode, 0
    assert member_header(path, size, mode) == told.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def test_a_pack_is_a_tar_that_others_read(folder: Path, tmp_path: Path) -> None:
    import tarfile

    (folder / ("n" * 120)).write_bytes(b"long")
    pack(folder, tmp_path / "out.letsinfer")
    with tarfile.open(tmp_path / "out.letsinfer") as archive:
        assert [member.name for member in archive] == [DESCRIPTOR, "n" * 120, "runtime.json"]
        assert all(member.mtime == member.uid == member.gid == 0 and member.isreg() for member in archive)


def test_a_descriptor_says_what_it_holds() -> None:
    file = PackedFile(path="runtime.json", bytes=1, mode=0o644, sha256="0" * 64)
    made = Descriptor.made(Candidate.from_json(runtime_json(MACOS)), [file])
    assert Descriptor.from_json(made.to_json()) == made
    with pytest.raises(PackError, match="not the canonical spelling"):
        Descriptor.from_json(canonical(made.model_dump()) + b"\n")


def test_a_reader_takes_any_stream(folder: Path, tmp_path: Path) -> None:
    packed = pack(folder, tmp_path / "out.letsinfer")
    with (tmp_path / "out.letsinfer").open("rb") as file:
        assert read_pack(file) == packed


def test_memory_does_not_grow_with_a_file(folder: Path, tmp_path: Path) -> None:
    import tracemalloc

    with (folder / "weights.dat").open("wb") as file:
        file.truncate(32 << 20)
    tracemalloc.start()
    try:
        pack(folder, tmp_path / "out.letsinfer")
        verify(tmp_path / "out.letsinfer")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
