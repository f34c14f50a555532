from __future__ import annotations

from pathlib import Path

import pytest

from mesh.cli.trust import read_trust
from mesh.errors import TrustFileError, UsageError
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import steward_text
from mesh.schema.limits import MAX_TRUST_FILE_BYTES
from mesh.schema.trust import ALWAYS, Window, time_from_text

A, B = (SigningKey(bytes([n]) * 32).public for n in (1, 2))

# Keys under which a signature binds nobody, and encodings of points that have another one.
WEAK = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


def test_trust_takes_keys_and_files_together(tmp_path: Path) -> None:
    path = tmp_path / "stewards"
    path.write_text(f"# who we know\n\n{steward_text(A)}   # the first\n")
    assert set(read_trust([steward_text(B), str(path)])) == {A, B}


def test_trust_keeps_the_windows_of_a_file_and_a_bare_key_has_all_time(tmp_path: Path) -> None:
    path = tmp_path / "stewards"
    path.write_text(f"{steward_text(A)} until=2026-01-01T00:00:00Z # retired\n")
    end = time_from_text("2026-01-01T00:00:00Z")
    assert read_trust([str(path)]).windows(A) == (Window(until_ns=end),)
    assert read_trust([str(path), steward_text(A)]).windows(A) == (Window(until_ns=end), ALWAYS)


@pytest.mark.parametrize("text", ["ed25519:", "ed25519:00", "ed25519:" + "AB" * 32, "ed25519:" + "zz" * 32])
def test_trust_refuses_what_is_no_key(text: str) -> None:
    with pytest.raises(UsageError, match="--trust: expected a key"):
        read_trust([text])


@pytest.mark.parametrize("key", WEAK)
def test_trust_refuses_a_weak_key_at_registration(key: str, tmp_path: Path) -> None:
    with pytest.raises(TrustFileError, match="public key"):
        read_trust([f"ed25519:{key}"])
    path = tmp_path / "stewards"
    path.write_text(f"{steward_text(A)}\ned25519:{key}\n")
    with pytest.raises(TrustFileError, match="line 2"):
        read_trust([str(path)])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "holds no key"),
        (b"# nothing\n", "holds no key"),
        (b"ed25519:00\n", "line 1"),
        (f"{steward_text(A)}\n{steward_text(A)} until=now\n".encode(), "line 2: expected a time"),
        (b"\xff\xfe", "not a text file"),
        (b"#" * (MAX_TRUST_FILE_BYTES + 1), "over"),
    ],
)
def test_trust_refuses_a_file_that_holds_no_keys(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "stewards"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=what):
        read_trust([str(path)])


def test_trust_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trust([str(tmp_path / "none")])
