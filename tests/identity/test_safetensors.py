from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import ModelFileError
from mesh.identity.safetensors import layer_of, layers_of, tensor_digests, tensor_shapes

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: Any, data: bytes = bytes(8)) -> dict[str, Path]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return {path.name: path}


def test_each_tensor_has_the_digest_of_its_type_shape_and_bytes(tmp_path):
    two = {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}
    files = write(tmp_path / "a.safetensors", {"__metadata__": {"x": "y"}, "two": two, "one": ONE}, b"12345678ab")
    files |= {"config.json": tmp_path / "config.json"}  # no weights, and not opened
    digests = tensor_digests(files)
    assert digests == {
        "one": hashlib.sha256(b'["F32",[2]]\n12345678').hexdigest(),
        "two": hashlib.sha256(b'["BF16",[]]\nab').hexdigest(),
    }


def test_what_is_around_a_tensor_does_not_count(tmp_path):
    plain = tensor_digests(write(tmp_path / "a.safetensors", {"one": ONE}, b"12345678"))
    moved = {"one": {**ONE, "data_offsets": [3, 11]}}
    assert tensor_digests(write(tmp_path / "b.safetensors", moved, b"xyz12345678...")) == plain


@pytest.mark.parametrize("change", [{"dtype": "I32"}, {"shape": [1, 2]}, {"data_offsets": [1, 9]}])
def test_another_type_shape_or_byte_is_another_tensor(tmp_path, change):
    one = tensor_digests(write(tmp_path / "a.safetensors", {"one": ONE}, b"123456789"))
    other = tensor_digests(write(tmp_path / "b.safetensors", {"one": {**ONE, **change}}, b"123456789"))
    assert one != other


def test_large_tensors_are_read_to_their_end(tmp_path):
    data = bytes(range(256)) * 5000
    entry = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    (digest,) = tensor_digests(write(tmp_path / "a.safetensors", {"t": entry}, data)).values()
    assert digest == hashlib.sha256(f'["U8",[{len(data)}]]\n'.encode() + data).hexdigest()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", r"^a\.safetensors: its header: not JSON at line 1"),
        (b"[" * 100_000, "its header: nested deeper"),
        ("{}".encode("utf-16"), "its header: not UTF-8"),
        (b"[]", "no map of tensors"),
        (b'{"two": 5, "one": 5, "one": 5}', "its header: key 'one' is there twice"),
        (b'{"one": {"dtype": "F32", "shape": [2], "shape": [1]}}', "its header: key 'shape' is there twice"),
        ({"one": 5}, "tensor 'one'"),
        ({"one": {**ONE, "dtype": 5}}, "tensor 'one'"),
        ({"one": {**ONE, "shape": [-1]}}, "tensor 'one'"),
        ({"one": {**ONE, "shape": [True]}}, "tensor 'one'"),
        ({"one": {**ONE, "shape": "2"}}, "tensor 'one'"),
        ({"one": {**ONE, "data_offsets": [0]}}, "tensor 'one'"),
        ({"one": {**ONE, "data_offsets": [0, 8, 8]}}, "tensor 'one'"),
        ({"one": {**ONE, "data_offsets": [8, 0]}}, "tensor 'one'"),
        ({"one": {**ONE, "data_offsets": [0, 9]}}, "tensor 'one'"),
    ],
)
def test_malformed_headers_are_refused(tmp_path, header, words):
    with pytest.raises(ModelFileError, match=words):
        tensor_digests(write(tmp_path / "a.safetensors", header))


def test_tensor_may_end_where_the_file_does(tmp_path):
    assert len(tensor_digests(write(tmp_path / "a.safetensors", {"one": ONE}, bytes(8)))) == 1


@pytest.mark.parametrize(
    "raw", [b"", b"1", b"1234567", struct.pack("<Q", 1), struct.pack("<Q", 2**63), struct.pack("<Q", 9) + bytes(8)]
)
def test_header_that_the_file_does_not_hold_is_refused(tmp_path, raw):
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match="its header is"):
        tensor_digests({path.name: path})


def test_header_of_no_bytes_is_not_json(tmp_path):
    with pytest.raises(ModelFileError, match=r"^a\.safetensors: its header: not JSON"):
        tensor_digests(write(tmp_path / "a.safetensors", b""))


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 40), st.binary(max_size=5))
def test_each_tensor_is_where_its_header_says(tmp_path_factory, contents, padding, after):
    header, data = {}, b"\0" * padding
    for i, content in enumerate(contents):
        place = {"data_offsets": [len(data), len(data) + len(content)]}
        header[f"t{i}"] = {"dtype": "U8", "shape": [1, len(content)], **place}
        data += content
    spelled = json.dumps(header).encode() + b" " * padding
    folder = tmp_path_factory.mktemp("any")
    files = write(folder / "a.safetensors", spelled, data + after)
    expected = {
        f"t{i}": hashlib.sha256(f'["U8",[1,{len(content)}]]\n'.encode() + content).hexdigest()
        for i, content in enumerate(contents)
    }
    assert tensor_digests(files) == expected
    assert tensor_shapes(files) == {f"t{i}": ("U8", (1, len(content))) for i, content in enumerate(contents)}
    room = len(data + after)
    for start, end in ((0, room + 1), (room + 1, room + 1), (1, 0)):
        beyond = {**header, "t": {"dtype": "U8", "shape": [], "data_offsets": [start, end]}}
        with pytest.raises(ModelFileError, match="tensor 't': expected a type"):
            tensor_shapes(write(folder / "b.safetensors", beyond, data + after))


def test_weights_are_read_in_the_order_of_their_names_and_nothing_else(tmp_path):
    files = {}
    for name in ("b.safetensors", "a.safetensors"):
        files |= write(tmp_path / name, {f"in {name}": ONE})
    files |= {name: tmp_path / name for name in ("Absent.json", "aa.bin", "c.txt")}
    assert list(tensor_digests(files)) == list(tensor_shapes(files)) == ["in a.safetensors", "in b.safetensors"]


def test_header_of_the_formats_own_bound_is_read_and_none_beyond(tmp_path):
    path = tmp_path / "a.safetensors"
    for length, words in ((100_000_000, "its header: not JSON"), (100_000_001, "its header is 100000001 bytes")):
        path.write_bytes(struct.pack("<Q", length) + b"no")
        os.truncate(path, 8 + length)  # the rest takes no room
        with pytest.raises(ModelFileError, match=words):
            tensor_digests({path.name: path})


def test_tensor_in_two_files_is_refused(tmp_path):
    files = write(tmp_path / "a.safetensors", {"one": ONE}) | write(tmp_path / "b.safetensors", {"one": ONE})
    with pytest.raises(ModelFileError, match=r"b\.safetensors: tensor 'one' is in another file too"):
        tensor_digests(files)


def test_a_long_name_is_shown_shortly(tmp_path):
    long, shown = "t" * 100, f"'{'t' * 80}'"
    files = write(tmp_path / "a.safetensors", {long: ONE}) | write(tmp_path / "b.safetensors", {long: ONE})
    for read in (tensor_digests, tensor_shapes):
        with pytest.raises(ModelFileError, match=rf"tensor {shown} is in another file too"):
            read(files)
    with pytest.raises(ModelFileError, match=rf"tensor {shown}: expected a type"):
        tensor_digests(write(tmp_path / "c.safetensors", {long: 5}))
    twice = f'{{"{long}": 1, "{long}": 2}}'.encode()
    with pytest.raises(ModelFileError, match=rf"its header: key {shown} is there twice"):
        tensor_digests(write(tmp_path / "d.safetensors", twice))


def test_layers_are_told_by_the_names_of_tensors():
    assert layer_of("model.layers.17.mlp.experts.3.weight") == 17
    assert layer_of("h.0.attn") == 0
    assert layer_of("model.embed_tokens.weight") is None
    assert layer_of("vision_2d.proj") is None
    assert layers_of(["lm_head.weight", "model.layers.3.a", "model.layers.2.a"]) == (2, 4)
    assert layers_of(["lm_head.weight"]) is None
