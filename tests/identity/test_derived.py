"""What is derived from the files of a model alone, and the digests that `sha256sum` would give too."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from mesh.errors import ModelFileError, SchemaError
from mesh.identity.derived import architecture_digest, content_digest, gguf_artifact, label, listed_digest, pinned
from mesh.identity.model import read_model
from mesh.identity.sha256 import sha256_listing
from tests.support import gguf_bytes


def small(path: Path, *pairs: bytes, **options: object) -> Path:
    path.write_bytes(
        gguf_bytes.gguf(list(pairs), [gguf_bytes.tensor("output_norm.weight", [8], 0, 0)], bytes(32), **options)
    )  # type: ignore[arg-type]
    return path


def test_layers_that_only_predict_ahead_are_not_counted(tmp_path):
    count, ahead = (gguf_bytes.pair(f"llama.{name}", gguf_bytes.U32, number)
                    for name, number in (("block_count", 3), ("nextn_predict_layers", 3)))  # fmt: skip
    model = read_model(small(tmp_path / "a.gguf", gguf_bytes.pair("llama.block_count", gguf_bytes.U32, 0)))
    with pytest.raises(ModelFileError, match=r"llama\.block_count.* is 0, of which 0 only predict ahead"):
        gguf_artifact(model, "a" * 64)
    with pytest.raises(ModelFileError, match=r"llama\.block_count.* is 3, of which 3 only predict ahead"):
        gguf_artifact(read_model(small(tmp_path / "b.gguf", count, ahead)), "a" * 64)
    one = gguf_bytes.pair("llama.nextn_predict_layers", gguf_bytes.U32, 2)
    less = gguf_bytes.pair("llama.block_count", gguf_bytes.U32, 1)
    with pytest.raises(ModelFileError, match="is 1, of which 2 only predict ahead"):
        gguf_artifact(read_model(small(tmp_path / "c.gguf", less, one)), "a" * 64)
    for count, name in ((3, "blk.0.attn_q.weight"), (5, "blk.2.attn_q.weight")):
        path = tmp_path / f"{count}.gguf"
        entry = gguf_bytes.tensor(name, [8], 0, 0)
        pairs = [gguf_bytes.pair("llama.block_count", gguf_bytes.U32, count), one]
        path.write_bytes(gguf_bytes.gguf(pairs, [entry], bytes(32)))
        assert gguf_artifact(read_model(path), "a" * 64).layer_count == count - 2


def test_a_file_without_a_layer_count_has_no_identity(tmp_path):
    with pytest.raises(ModelFileError, match=r"llama\.block_count is missing"):
        gguf_artifact(read_model(small(tmp_path / "a.gguf")), "a" * 64)


def test_the_architecture_is_everything_under_its_name(tmp_path):
    def digest(*pairs: bytes) -> str:
        return architecture_digest(read_model(small(tmp_path / "a.gguf", *pairs)).header.metadata, "llama")

    u32, f32 = gguf_bytes.U32, gguf_bytes.F32
    base = digest(gguf_bytes.pair("llama.x", u32, 1), gguf_bytes.pair("llama.y", f32, 1.5))
    assert base == digest(gguf_bytes.pair("llama.y", f32, 1.5), gguf_bytes.pair("llama.x", u32, 1))
    assert base == digest(gguf_bytes.pair("llama.x", u32, 1), gguf_bytes.pair("llama.y", f32, 1.5),
                          gguf_bytes.pair("general.name", gguf_bytes.STRING, "n"))  # fmt: skip
    assert base == hashlib.sha256(b'{"llama.x":["u32",1],"llama.y":["f32","3fc00000"]}').hexdigest()
    others = [
        (gguf_bytes.pair("llama.x", gguf_bytes.I32, 1), gguf_bytes.pair("llama.y", f32, 1.5)),
        (gguf_bytes.pair("llama.x", u32, 2), gguf_bytes.pair("llama.y", f32, 1.5)),
        (gguf_bytes.pair("llama.x", u32, 1), gguf_bytes.pair("llama.y", gguf_bytes.F64, 1.5)),
        (gguf_bytes.pair("llama.x", u32, 1),),
    ]
    assert len({base, *(digest(*pairs) for pairs in others)}) == 5
    arrays = [(gguf_bytes.array("llama.z", kind, [1, 0]),) for kind in (u32, gguf_bytes.I32, gguf_bytes.BOOL)]
    assert len({digest(*pairs) for pairs in arrays}) == 3
    expected = b'{"llama.z":["array","u32",2,"0100000000000000"]}'
    assert digest(*arrays[0]) == hashlib.sha256(expected).hexdigest()


def test_a_name_that_is_no_label_gives_way():
    assert label("fine", "other") == "fine"
    assert label("", None, "fine", "other") == "fine"
    assert label(None, "a\nb", "", "other") == "other"


def test_label_that_nothing_may_be_is_refused():
    for candidates in [(None,), ("", "a\nb"), ("fine\n",)]:
        with pytest.raises(SchemaError, match="label"):
            label(*candidates)


def test_content_of_one_file_is_its_own_and_of_several_their_list(tmp_path):
    content = {"b": b"2", "a": b"1", "\ufb01": b"", "\U0001f600": bytes(600_000)}
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    listing = [[name, hashlib.sha256(content[name]).hexdigest()] for name in ("a", "b", "\ufb01", "\U0001f600")]
    files = {name: tmp_path / name for name in content}
    assert sha256_listing(files) == listing
    spelled = json.dumps({"files": listing}, separators=(",", ":"), ensure_ascii=False).encode()
    assert content_digest(files) == listed_digest(tuple(map(tuple, listing))) == hashlib.sha256(spelled).hexdigest()
    assert content_digest({"any": tmp_path / "b"}) == listed_digest([["x", listing[1][1]]]) == listing[1][1]
    assert content_digest({}) == hashlib.sha256(b'{"files":[]}').hexdigest()
    assert pinned(listing[1][1]) == f"sha256:{hashlib.sha256(b'2').hexdigest()}"


def test_content_of_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ModelFileError, match="not a regular file"):
            content_digest({"a": path})
