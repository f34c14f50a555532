"""What is wrong with a pack is said with the file's name and what was expected there, and blames no client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.groups import blueprint
from conformance.index import read_expected_failures, read_index
from conformance.sums import CannotRun
from tests.support.vector_pack import FIVE, small_pack, sum_up

HEX = "[0-9a-f]{64}"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return small_pack(tmp_path, FIVE)


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(CannotRun) as caught:
        read()
    return str(caught.value)


def test_small_pack_is_sound(pack: Path):
    questions, digest = read_index(pack)
    assert [question.id for question in questions] == ["sequence/five"]
    assert re.fullmatch(f"sha256:{HEX}", digest)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: expected '# mesh/1 vectors v1 sha256sums:' and 64 hex digits, got ''"),
        (b"# mesh/1 vectors v1 sha256sums:12\n", "line 1: expected"),
        (b"#\xff\n", "not text in UTF-8: byte 1 is 0xff"),
    ],
)
def test_index_that_is_none_is_named(pack: Path, data: bytes, said: str):
    (pack / "INDEX.tsv").write_bytes(data)
    assert f"{pack}/INDEX.tsv: {said}" in refused(lambda: read_index(pack))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a b", "expected 8 fields with tabs between, none empty, got 1"),
        (FIVE.replace("trust.txt a.cbor b.cbor c.cbor d.cbor e.cbor", ""), "none empty, got 7"),
        (FIVE.replace("\t0\t", "\tyes\t"), "expected exit 0 or 10, got 'yes'"),
        (FIVE.replace("\t0\t", "\t11\t"), "expected exit 0 or 10, got '11'"),
        (FIVE, "a second case sequence/five"),
        (FIVE.replace("five", "six"), "no case sequence/six"),
    ],
)
def test_line_of_the_index_is_named_with_what_was_expected(tmp_path: Path, line: str, said: str):
    message = refused(lambda: read_index(small_pack(tmp_path, FIVE, line)))
    assert message.startswith(f"{tmp_path}/INDEX.tsv: line 3: ")
    assert said in message


def test_sums_that_are_none_are_named(pack: Path):
    sum_up(pack, b"hello\n", FIVE)
    assert "SHA256SUMS: line 1: expected a SHA-256 of 64 hex digits, two spaces and a path, got 'hello'" in refused(
        lambda: read_index(pack)
    )
    sum_up(pack, b"\xff\n", FIVE)
    assert f"{pack}/SHA256SUMS: not text in UTF-8" in refused(lambda: read_index(pack))
    (pack / "SHA256SUMS").write_bytes(b"")
    assert re.search(
        f"{pack}/SHA256SUMS: not the file that INDEX.tsv names: expected SHA-256 {HEX}, got {HEX}",
        refused(lambda: read_index(pack)),
    )
    (pack / "SHA256SUMS").unlink()
    assert refused(lambda: read_index(pack)).endswith("SHA256SUMS: no such file or directory, and INDEX.tsv names it")


def test_file_of_a_case_is_named(pack: Path):
    file = pack / "sequence" / "five" / "a.cbor"
    file.write_bytes(b"")
    assert re.fullmatch(
        f"{file}: not the file that SHA256SUMS names: expected SHA-256 {HEX}, got {HEX}",
        refused(lambda: read_index(pack)),
    )
    file.unlink()
    assert refused(lambda: read_index(pack)) == f"{file}: no such file or directory, and SHA256SUMS names it"
    file.mkdir()
    assert refused(lambda: read_index(pack)) == f"{file}: is a directory, and SHA256SUMS names it"


def test_list_of_expected_failures_is_named(tmp_path: Path):
    known = tmp_path / "known"
    assert refused(lambda: read_expected_failures(known, ())) == f"{known}: no such file or directory"
    known.write_bytes(b"a/b\n\xff\n")
    assert refused(lambda: read_expected_failures(known, ["a/b"])) == f"{known}: not text in UTF-8: byte 4 is 0xff"


def test_signature_that_is_kept_is_held_to_its_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blueprint, "SIGNED", tmp_path)
    blueprint.sums.cache_clear()
    try:
        (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  list.bin\n")
        (tmp_path / "list.bin").write_bytes(b"")
        assert f"{tmp_path}/list.bin: not the file that SHA256SUMS names" in refused(lambda: blueprint.kept("list"))
        assert refused(lambda: blueprint.kept("block")) == f"{tmp_path}/SHA256SUMS: expected a line for block.bin"
    finally:
        blueprint.sums.cache_clear()
