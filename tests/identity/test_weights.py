from __future__ import annotations

import os
from pathlib import Path

import cbor2
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import ModelFileError
from mesh.identity.weights import _path_of, digest_files, gguf_weights, weights_at, weights_digest
from mesh.schema.ids import ContentId
from tests.support.tiny_gguf import write_tiny_gguf


def written(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: folder / name for name in files}


def by_hand(files: dict[str, bytes]) -> bytes:
    """The digest from its definition alone: derive-key BLAKE3 over the canonical CBOR of the sorted list."""
    listing = [[name, blake3(content).digest()] for name, content in sorted(files.items(), key=lambda f: f[0].encode())]
    return blake3(cbor2.dumps({"files": listing}), derive_key_context="mesh/1 weights").digest()


def test_weights_digest_is_as_defined(tmp_path: Path) -> None:
    # Sorted by UTF-8 bytes, which puts U+FB01 before U+1F600; UTF-16 order would not.
    content = {"z": b"1", "sub/a": b"", "\U0001f600": b"2", "\ufb01": b"3", "B": bytes(100_000), "a-b": b"4"}
    assert weights_digest(written(tmp_path, content)) == by_hand(content)


def test_weights_digest_addresses_every_byte_and_every_name(tmp_path: Path) -> None:
    files = written(tmp_path, {"config.json": b'{"d":4}', "model.safetensors": b"weights", "other": b"weightz"})
    config, model = files["config.json"], files["model.safetensors"]
    base = weights_digest({"config.json": config, "model.safetensors": model})
    assert weights_digest({"model.safetensors": model, "config.json": config}) == base
    different = [
        weights_digest({"config.json": config, "model.safetensors": files["other"]}),
        weights_digest({"config.json": config, "shard.safetensors": model}),
        weights_digest({"config.json": model, "model.safetensors": config}),
        weights_digest({"model.safetensors": model}),
    ]
    assert len({base, *different}) == 5
    with pytest.raises(FileNotFoundError):
        weights_digest({"config.json": config, "absent": tmp_path / "absent"})


@given(st.binary(min_size=1, max_size=40_000), st.data())
def test_weights_digest_changes_with_any_bit(tmp_path_factory: pytest.TempPathFactory, raw: bytes, data: st.DataObject
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("bit") / "model.gguf"
    path.write_bytes(raw)
    before = weights_digest({"model.gguf": path})
    assert before == by_hand({"model.gguf": raw})
    at, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
    assert weights_digest({"model.gguf": path}) != before


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a/", "./a", "a//b", "a/../b", "../a", "\ud800"])
def test_weights_name_must_be_a_plain_relative_path(tmp_path: Path, name: str) -> None:
    (path,) = written(tmp_path, {"a": b""}).values()
    with pytest.raises(ModelFileError, match="weights: "):
        weights_digest({name: path})


def test_weights_of_no_files_are_refused() -> None:
    with pytest.raises(ModelFileError, match="no files"):
        weights_digest({})


def test_weights_of_what_is_no_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ModelFileError, match="not a regular file"):
            weights_digest({"a": path})


def test_gguf_weights_do_not_depend_on_where_and_how_they_are_stored(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    weights = gguf_weights(path)
    assert weights.digest == by_hand({"model.gguf": path.read_bytes()})
    assert weights.files[0].id == ContentId.of_bytes(path.read_bytes())
    assert weights.size == path.stat().st_size
    moved = path.rename(tmp_path / "renamed.bin")
    (tmp_path / "link.gguf").symlink_to(moved)
    assert gguf_weights(moved).digest == gguf_weights(tmp_path / "link.gguf").digest == weights.digest
    assert gguf_weights(write_tiny_gguf(tmp_path / "other.gguf", seed=2)).digest != weights.digest


def test_gguf_weights_cover_bytes_after_the_last_tensor(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    before = gguf_weights(path).digest
    with path.open("ab") as file:
        file.write(b"junk")
    assert gguf_weights(path).digest != before


def test_gguf_weights_of_shards_are_the_same_whichever_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "split"
    folder.mkdir()
    write_tiny_gguf(folder / "tiny.gguf", shards=3)
    shards = sorted(folder.iterdir())
    expected = by_hand({f"model-{i:05d}-of-00003.gguf": path.read_bytes() for i, path in enumerate(shards, start=1)})
    assert {gguf_weights(path).digest for path in (folder, *shards)} == {expected}
    links = tmp_path / "links"
    links.mkdir()
    for i, path in enumerate(shards, start=1):
        (links / f"other-{i:05d}-of-00003.gguf").symlink_to(path)
    assert gguf_weights(links).digest == weights_at(links).digest == expected


def test_gguf_weights_check_the_header_first(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF\0\0\0\3" + bytes(16))
    with pytest.raises(ModelFileError, match="big-endian"):
        gguf_weights(path)


def test_weights_changed_names_the_file_and_the_attribute(tmp_path: Path) -> None:
    files = written(tmp_path, {"one": b"1" * 64, "two": b"2" * 64})
    weights = digest_files(files)
    assert weights.changed() is None
    files["two"].write_bytes(b"3" * 63)
    assert weights.changed() == "two: size was 64, now 63"
    files["one"].unlink()
    assert weights.changed() == "one: No such file or directory"


def test_what_is_digested_is_the_file_that_was_opened(tmp_path: Path) -> None:
    files = written(tmp_path, {"one": b"opened", "two": b"came in its place"})
    with files["one"].open("rb") as file:
        files["two"].replace(files["one"])
        assert Path(_path_of(file.fileno(), files["one"])).read_bytes() == b"opened"


def test_weights_progress_tells_each_file_once(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    digest_files(written(tmp_path, {"b": b"22", "a": b"1"}), progress=lambda name, size: seen.append((name, size)))
    assert seen == [("a", 1), ("b", 2)]


@pytest.mark.real_model
def test_weights_of_a_published_model_have_a_known_digest(smollm2: Path) -> None:
    assert gguf_weights(smollm2).digest.text == "b3:6cfa43433db9888813182bd8c7f54ad78163cd285d426ca6b014bd0455ca831c"
