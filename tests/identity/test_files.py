from __future__ import annotations

import os
from pathlib import Path

from mesh.identity.files import FileIdentity


def test_file_identity_holds_while_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    with path.open("rb") as file:
        assert FileIdentity.of(path, file.fileno()) == FileIdentity.of(path)
    assert FileIdentity.of(path).changed() is None


def test_file_identity_notices_a_replaced_file(tmp_path: Path) -> None:
    path, other = tmp_path / "model.gguf", tmp_path / "other"
    path.write_bytes(b"weights")
    other.write_bytes(b"weightz")
    identity = FileIdentity.of(path)
    other.replace(path)
    assert str(identity.changed()).startswith("model.gguf: inode was ")


def test_file_identity_notices_a_link_that_was_pointed_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"weights")
    path.symlink_to("one")
    identity = FileIdentity.of(path)
    path.unlink()
    path.symlink_to("two")
    assert str(identity.changed()).startswith("model.gguf: inode was ")


def test_file_identity_notices_a_file_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    identity = FileIdentity.of(path)
    os.truncate(path, 3)
    assert identity.changed() == "model.gguf: size was 7, now 3"


def test_file_identity_notices_a_write_whose_time_was_set_back(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    os.utime(path, ns=(0, 0))
    identity = FileIdentity.of(path)
    # The clock behind the change time ticks a few hundred times a second.
    while FileIdentity.of(path).ctime_ns == identity.ctime_ns:
        path.write_bytes(b"weightz")
        os.utime(path, ns=(0, 0))
    assert str(identity.changed()).startswith("model.gguf: ctime_ns was ")


def test_file_identity_notices_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    identity = FileIdentity.of(path)
    path.unlink()
    assert identity.changed() == "model.gguf: No such file or directory"
