"""Packs that somebody made to do harm: all refused, naming the member, and nothing is left behind."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import CandidateError, MeshError, PackError
from mesh.runtime.archive import read_pack
from mesh.runtime.descriptor import Descriptor
from mesh.runtime.document import canonical
from mesh.runtime.header import ending, member_header, padding
from mesh.runtime.names import check_together, shown_path
from mesh.runtime.packing import pack
from mesh.runtime.tree import DESCRIPTOR
from mesh.runtime.unpacking import unpack, verify
from tests.runtime.candidates import MACOS, runtime_json
from tests.support.examples import examples

RUNTIME = runtime_json(MACOS)
Member = tuple[tarfile.TarInfo, bytes]


def regular(name: str, data: bytes = b"", mode: int = 0o644) -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    return info, data


def special(name: str, kind: bytes, target: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o644
    return info, b""


def descriptor(**files: bytes) -> bytes:
    """Of runtime.json and these, in order."""
    import hashlib

    from mesh.runtime.candidate import Candidate

    listed = [
        {"path": path, "bytes": len(data), "mode": 0o644, "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in sorted({"runtime.json": RUNTIME, **files}.items())
    ]
    return canonical(
        {
            "artifact_schema_version": 6, "media_type": "application/vnd.letsinfer.runtime.v6+tar",
            "runtime_sha256": hashlib.sha256(RUNTIME).hexdigest(),
            "candidate": Candidate.from_json(RUNTIME).summary, "files": listed,
        }
    )  # fmt: skip


def archive(*members: Member, told: bytes | None = None) -> bytes:
    """A tar of the standard library, which writes whatever it is told."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in (regular(DESCRIPTOR, descriptor() if told is None else told), *members):
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


GOOD = regular("runtime.json", RUNTIME)


def refused(data: bytes, tmp_path: Path, match: str) -> None:
    """Refused by `verify` and by `unpack`, with nothing made and nothing changed outside."""
    (tmp_path / "in.letsinfer").write_bytes(data)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(CandidateError, match=match):
        verify(tmp_path / "in.letsinfer")
    with pytest.raises(CandidateError, match=match):
        unpack(tmp_path / "in.letsinfer", tmp_path / "out")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_member_of_another_dialect_is_called_by_its_name_alone(tmp_path: Path) -> None:
    """Where POSIX keeps the folders of a long name, GNU's form of a header has other things."""
    data = bytearray(archive(GOOD, regular("z.txt")))
    at = data.index(b"z.txt\0")
    data[at + 257 : at + 265] = b"ustar  \0"
    data[at + 345 : at + 348] = b"abc"
    refused(bytes(data), tmp_path, "member 'z.txt': not listed in")
    data[at + 257 : at + 265] = b"ustar\x0000"
    refused(bytes(data), tmp_path, "member 'abc/z.txt': not listed in")


def test_a_pack_made_by_another_writer_is_taken(tmp_path: Path) -> None:
    (tmp_path / "in.letsinfer").write_bytes(archive(GOOD))
    assert unpack(tmp_path / "in.letsinfer", tmp_path / "out").descriptor.candidate.id == MACOS


AR_02: dict[str, tuple[list[Member], str]] = {
    "traversal": ([regular("../evil")], "member '../evil': leads out of the folder"),
    "absolute": ([regular("/elsewhere/evil")], "member '/elsewhere/evil': an absolute path"),
    "link, then through it": ([special("d", tarfile.SYMTYPE, "../.."), regular("d/evil")], "member 'd': a symbolic"),
    "hard link": ([special("h", tarfile.LNKTYPE, "../../etc/passwd")], "member 'h': a hard link"),
    "twice": ([GOOD, GOOD], "member 'runtime.json': there twice"),
    "twice, spelled apart": ([regular("./runtime.json", RUNTIME), GOOD], "not the plain spelling"),
    "a file and its folder": ([GOOD, regular("runtime.json/b")], "member 'runtime.json/b': not listed"),
    "device": ([special("dev", tarfile.CHRTYPE)], "member 'dev': a device"),
    "fifo": ([special("pipe", tarfile.FIFOTYPE)], "member 'pipe': a pipe"),
    "folder": ([special("d", tarfile.DIRTYPE), GOOD], "member 'd/': a folder"),
    "setuid": ([regular("runtime.json", RUNTIME, 0o4755)], "member 'runtime.json': mode is 4755, expected 0644"),
    "newline": ([regular("a\nb")], "holds a control character"),
    "long name": ([regular("n" * 300)], "a name over 255 bytes"),
    "drive": ([regular("C:\\evil")], "member 'C:.+evil': an absolute path"),
    "backslash": ([regular("a\\..\\b")], "holds a backslash"),
    "not listed": ([GOOD, regular("z.txt")], "member 'z.txt': not listed in"),
    "not listed, with a name as long as they go": ([GOOD, regular("n" * 100)], "member 'n+': not listed in"),
    "not listed, speaking of another": ([GOOD, regular("z.txt", b"13 path=evil\n")], "member 'z.txt': not listed in"),
    "another first": ([regular("a.txt"), GOOD], "member 'a.txt': not the next of those that are listed"),
    "missing": ([], "member 'runtime.json': missing"),
    "descriptor twice": ([regular(DESCRIPTOR), GOOD], "there twice"),
}


@pytest.mark.parametrize("case", AR_02)
def test_ar_02_members_that_leave_the_folder_are_refused(case: str, tmp_path: Path) -> None:
    members, match = AR_02[case]
    refused(archive(*members), tmp_path, match)
    # the same behind a member that is what it should be
    if case not in ("twice", "missing", "setuid", "descriptor twice", "folder", "another first"):
        refused(archive(GOOD, *[m for m in members if m is not GOOD]), tmp_path, match.split(": ")[-1].split(",")[0])


DEEP = "a/" * 400 + "x"


def test_a_deep_path_is_unpacked_and_one_beyond_every_system_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.letsinfer").write_bytes(archive(regular(DEEP), GOOD, told=descriptor(**{DEEP: b""})))
    unpack(tmp_path / "in.letsinfer", tmp_path / "out")
    assert (tmp_path / "out" / DEEP).is_file()
    longer = "a/" * 512 + "x"
    shutil.rmtree(tmp_path / "out")
    refused(archive(regular(longer), GOOD, told=descriptor(**{longer: b""})), tmp_path, "over 1024 bytes")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("naïve", "'naïve'"),
        ("a\x1b[1mé", r"'a\x1b[1m\xe9'"),
        ("é" * 121, f"'{'é' * 120}...'"),
        ("é" * 120, f"'{'é' * 120}'"),
    ],
)
def test_path_is_shown_as_it_is_and_harms_no_terminal(path: str, shown: str) -> None:
    assert shown_path(path) == shown


def test_the_same_name_is_there_twice_and_another_spelling_of_it_collides() -> None:
    once, again, other = "a.txt", "".join(("a", ".txt")), "A.txt"
    with pytest.raises(PackError, match=r"member 'a\.txt': there twice"):
        check_together([once, again])
    with pytest.raises(PackError, match=r"member 'a\.txt': .*'A\.txt'"):
        check_together([once, other])


def test_more_folders_than_so_many_files_need_are_refused() -> None:
    """Each takes a block of a disk, and a descriptor of a few megabytes could name millions."""
    from mesh.runtime.limits import MAX_FOLDERS

    deep = "/a" * 499 + "/x"
    paths = [f"{n:03}{deep}" for n in range(MAX_FOLDERS // 500)]
    check_together([*paths, "x", *(f"{paths[0]}{n}" for n in range(100))])
    with pytest.raises(PackError, match="member 'z/x': with it there are over 40000 folders"):
        check_together([*paths, "z/x"])


def test_a_descriptor_of_too_many_parts_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Sixteen megabytes of JSON would be a gigabyte of objects."""
    import tracemalloc

    for told in (b"[" + b"{}," * 400_000 + b"{}]", b'["",' + b'"\\n"",' * 200_000 + b'""]', b'"' + b"\\" * 1_000_000):
        tracemalloc.start()
        try:
            with pytest.raises(CandidateError, match=r"over 160000 strings and separators|not JSON"):
                Descriptor.from_json(told)
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


LISTED = {
    "traversal": ({"../evil": b""}, "member '../evil': leads out"),
    "absolute": ({"/evil": b""}, "member '/evil': an absolute path"),
    "dots": ({"./a": b""}, "not the plain spelling"),
    "empty part": ({"a//b": b""}, "not the plain spelling"),
    "folder": ({"a/": b""}, "not the plain spelling"),
    "file and folder": ({"a": b"", "a/b": b""}, "'a' is a file and a folder"),
    "folder and file": ({"runtime.json/x": b""}, "is a file and a folder"),
    "case": ({"README": b"", "readme": b""}, "collides with 'README'"),
    "case of folders": ({"Lib/a": b"", "lib/b": b""}, "its folder collides with 'Lib'"),
    "case of a folder and a file": ({"LIB/a": b"", "lib": b""}, "collides with"),
    "case of a folder far above": ({"A/b/c": b"", "a/B/d": b""}, "its folder collides with 'A' where"),
    "case of a folder below": ({"a/B/c": b"", "a/b/d": b"", "a/c": b""}, "its folder collides with 'a/B' where"),
    "case of a file in a folder": ({"a/X": b"", "a/x": b""}, "member 'a/x': collides with 'a/X'"),
    "composition": ({"e\u0301": b"", "\u00e9": b""}, "collides with"),
    "composition, then case": ({"\u03b1\u0345\u0301": b"", "\u03b1\u0301\u0345": b""}, "collides with"),
    "NUL": ({"a\0b": b""}, "holds a control character"),
    "drive": ({"C:\\evil": b""}, "an absolute path"),
    "control": ({"a\x1b[2J": b""}, "holds a control character"),
    "itself": ({DESCRIPTOR: b""}, "listed by itself"),
}


@pytest.mark.parametrize("case", LISTED)
def test_a_descriptor_that_lists_such_members_is_refused(case: str, tmp_path: Path) -> None:
    files, match = LISTED[case]
    members = [regular(path, data) for path, data in sorted({"runtime.json": RUNTIME, **files}.items())]
    refused(archive(*members, told=descriptor(**files)), tmp_path, match)


def edited(edit: Callable[[dict[str, Any]], object]) -> bytes:
    import json

    value = json.loads(descriptor())
    edit(value)
    return canonical(value)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "hash": (lambda d: d["files"][0].update(sha256="0" * 64) or d.update(runtime_sha256="0" * 64), "sha256 is .* exp"),
    "runtime hash": (lambda d: d.update(runtime_sha256="0" * 64), "runtime_sha256: expected that of runtime.json"),
    "length": (lambda d: d["files"][0].update(bytes=1), f"member 'runtime.json': {len(RUNTIME)} bytes, expected 1"),
    "mode": (lambda d: d["files"][0].update(mode=0o777), "mode: expected 420"),
    "other mode": (lambda d: d["files"][0].update(mode=0o755), "mode is 0644, expected 0755"),
    "candidate": (lambda d: d["candidate"].update(version="9.9.9"), "candidate.version: '9.9.9', runtime.json has"),
    "bomb": (lambda d: d["files"][0].update(bytes=(1 << 30) + 1), "bytes together, expected at most"),
    "huge": (lambda d: d["files"][0].update(bytes=1 << 62), "bytes together, expected at most"),
    "no runtime": (lambda d: d["files"].clear(), "files: expected at least 1"),
    "other type": (lambda d: d.update(media_type="application/x-tar"), "media_type: expected"),
    "other schema": (lambda d: d.update(artifact_schema_version=5), "artifact_schema_version: expected 6"),
    "more": (lambda d: d.update(more=1), "more: unknown field"),
    "many": (lambda d: d.update(files=d["files"] * 10_001), "files: expected at most 10000"),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_descriptor_that_contradicts_the_pack_is_refused(case: str, tmp_path: Path) -> None:
    edit, match = EDITS[case]
    refused(archive(GOOD, told=edited(edit)), tmp_path, match)


def test_a_descriptor_in_another_spelling_or_order_is_refused(tmp_path: Path) -> None:
    refused(archive(GOOD, told=descriptor().rstrip()), tmp_path, "not the canonical spelling")
    told = edited(lambda d: d["files"].append(dict(d["files"][0], path="a.txt", bytes=0)))
    refused(archive(GOOD, regular("a.txt"), told=told), tmp_path, "expected them by path")


def test_bytes_around_the_members_are_held_to_the_layout(tmp_path: Path) -> None:
    good = archive(GOOD)
    assert len(good) % 10_240 == 0
    refused(good + bytes(512), tmp_path, "goes on after its end")
    refused(good[:-512], tmp_path, "cut off in its end")
    refused(good[:1000], tmp_path, "cut off in member")
    refused(b"", tmp_path, "cut off")
    refused(good[:-1] + b"x", tmp_path, "its end is not all zeros")
    told = len(descriptor())
    refused(good[: 512 + told] + b"x" + good[513 + told :], tmp_path, "its padding is not all zeros")
    refused(gzip.compress(good), tmp_path, "gzip data, expected an uncompressed tar")
    refused(b"PK\3\4" + good, tmp_path, "zip data")
    refused(bytes(10_240), tmp_path, "no tar")
    refused(archive(GOOD, told=descriptor())[512 + told + padding(told) :], tmp_path, "begins with 'runtime.json'")


def test_owners_and_times_in_a_header_are_refused(tmp_path: Path) -> None:
    info, data = regular("runtime.json", RUNTIME)
    info.mtime = 5
    refused(archive((info, data)), tmp_path, "its header is not the one that packing writes")
    info, data = regular("runtime.json", RUNTIME)
    info.uname = "root"
    refused(archive((info, data)), tmp_path, "its header is not the one that packing writes")


def test_a_descriptor_over_its_bound_is_not_read(tmp_path: Path) -> None:
    refused(member_header(DESCRIPTOR, 1 << 33, 0o644) + bytes(10_240), tmp_path, "bytes, expected at most 16777216")


def test_a_runtime_json_over_its_bound_is_not_kept(tmp_path: Path) -> None:
    big = RUNTIME + b" " * (1 << 20)
    import hashlib
    import json

    value = json.loads(descriptor())
    value["files"][0].update(bytes=len(big), sha256=hashlib.sha256(big).hexdigest())
    value["runtime_sha256"] = hashlib.sha256(big).hexdigest()
    refused(archive(regular("runtime.json", big), told=canonical(value)), tmp_path, "over 1048576 bytes")


def test_ar_02_a_target_is_new_or_empty(tmp_path: Path) -> None:
    (tmp_path / "in.letsinfer").write_bytes(archive(GOOD))
    outside = tmp_path / "outside"
    outside.mkdir()
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").touch()
    for target in (full, tmp_path / "link", tmp_path / "file"):
        with pytest.raises(FileExistsError):
            unpack(tmp_path / "in.letsinfer", target)
    with pytest.raises(NotADirectoryError):
        unpack(tmp_path / "in.letsinfer", tmp_path / "none" / "out")
    assert not any(outside.iterdir())
    empty = tmp_path / "empty"
    empty.mkdir()
    unpack(tmp_path / "in.letsinfer", empty)
    assert [path.name for path in empty.iterdir()] == ["runtime.json"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(MeshError, match="not a regular file"):
            verify(path)


@settings(max_examples=examples(180))
@given(data=st.data())
def test_no_changed_byte_is_taken_and_none_does_more_than_be_refused(data: st.DataObject) -> None:
    good = archive(GOOD)
    at = data.draw(st.integers(0, len(good) - 1))
    new = data.draw(st.integers(0, 255).filter(lambda value: value != good[at]))
    with pytest.raises(CandidateError):
        read_pack(io.BytesIO(good[:at] + bytes((new,)) + good[at + 1 :]))


@settings(max_examples=examples(300))
@given(st.binary(max_size=2048))
def test_bytes_that_nobody_meant_are_refused(junk: bytes) -> None:
    with pytest.raises(CandidateError):
        read_pack(io.BytesIO(junk))
    with pytest.raises(CandidateError):
        Descriptor.from_json(junk)


@settings(max_examples=examples(30))
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30),
        st.binary(max_size=700),
        max_size=4,
    )
)  # fmt: skip
def test_whatever_is_packed_comes_out_again(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("tree")
    source = root / "source"
    source.mkdir()
    for name, content in files.items():
        try:
            (source / name).write_bytes(content)
        except (OSError, ValueError):
            continue
    (source / "runtime.json").write_bytes(RUNTIME)
    try:
        packed = pack(source, root / "pack")
    except PackError:
        return
    unpack(root / "pack", root / "out")
    for file in packed.descriptor.files:
        assert (root / "out" / file.path).read_bytes() == (source / file.path).read_bytes()
    assert pack(root / "out", root / "again").archive_sha256 == packed.archive_sha256


def test_the_end_is_a_whole_record() -> None:
    assert [ending(n) % 512 for n in range(0, 20_480, 512)] == [0] * 40
    assert all((n + ending(n)) % 10_240 == 0 and ending(n) >= 1024 for n in range(0, 30_720, 512))
