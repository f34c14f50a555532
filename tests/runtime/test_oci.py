"""An image layout holds the pack that was verified, or is not there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mesh.errors import PackError
from mesh.runtime.oci import write_layout
from mesh.runtime.packing import pack
from tests.runtime.candidates import MACOS, runtime_json


def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "runtime.json").write_bytes(runtime_json(MACOS))
    pack(folder, tmp_path / "p.letsinfer")
    return tmp_path / "p.letsinfer"


@pytest.mark.parametrize("higher", [False, True])
def test_a_pack_that_changes_once_it_is_verified_is_no_layer(tmp_path: Path, higher: bool) -> None:
    path = packed(tmp_path)
    good = path.read_bytes()
    digest = hashlib.sha256(good).hexdigest()
    # one whose digest sorts before, or after, the one that was verified
    others = (bytes(divmod(n, 256)) + good[2:] for n in range(1 << 16))
    other = next(one for one in others if (hashlib.sha256(one).hexdigest() > digest) == higher)

    def change(done: int, total: int) -> None:
        if done == total:
            path.write_bytes(other)

    with pytest.raises(PackError, match=r"p\.letsinfer: changed while it was copied"):
        write_layout(path, tmp_path / "layout", progress=change)
    assert not (tmp_path / "layout").exists()


def test_layer_is_the_pack(tmp_path: Path) -> None:
    path = packed(tmp_path)
    told, image = write_layout(path, tmp_path / "layout")
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    assert (blobs / told.archive_sha256).read_bytes() == path.read_bytes()
    assert (blobs / image.manifest_digest).read_bytes() == image.manifest
