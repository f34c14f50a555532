from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mesh.errors import ModelFileError
from mesh.identity.model import read_model
from mesh.schema.outcome import Fidelity
from tests.support.gguf_bytes import I32, STRING, U16, U32, gguf, pair, tensor
from tests.support.tiny_gguf import write_tiny_gguf


def shard_bytes(
    number: int, count: int, *, tensors: list[str], total: int | None, architecture: str | None = None
) -> bytes:
    pairs = [pair("split.no", U16, number), pair("split.count", U16, count)]
    if total is not None:
        pairs.append(pair("split.tensors.count", I32, total))
    entries = [tensor(name, [8], 0, 32 * i) for i, name in enumerate(tensors)]
    return gguf(pairs, entries, bytes(32 * len(tensors)), architecture=architecture)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    return str(caught.value)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A folder with one model in three shards."""
    folder = tmp_path / "split"
    folder.mkdir()
    write_tiny_gguf(folder / "tiny.gguf", shards=3)
    return folder


def names(folder: Path) -> list[str]:
    return [f"tiny-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]


def test_model_in_one_file_is_called_model_gguf_whatever_its_name(tmp_path: Path) -> None:
    for name in ("tiny.gguf", "blob-without-suffix", "tiny-00001-of-00001.gguf"):
        path = write_tiny_gguf(tmp_path / name)
        assert read_model(path).logical_files == {"model.gguf": path}


def test_model_is_found_by_any_shard_or_its_folder(split: Path) -> None:
    expected = {f"model-{i:05d}-of-00003.gguf": split / name for i, name in enumerate(names(split), start=1)}
    for path in (split, *(split / name for name in names(split))):
        model = read_model(path)
        assert model.logical_files == expected
        assert model.header.label == "tiny-00001-of-00003.gguf"
        assert len(model.tensors) == 39


def test_model_in_shards_sums_up_to_the_model_in_one_file(split: Path, tmp_path: Path) -> None:
    whole, parts = read_model(write_tiny_gguf(tmp_path / "tiny.gguf")), read_model(split)
    assert parts.tensor_types == whole.tensor_types == Counter(Q8_0=30, F32=9)
    assert parts.parameters == whole.parameters
    assert parts.weight_bytes == whole.weight_bytes
    assert parts.bits_per_weight == whole.bits_per_weight


def test_model_keeps_the_names_of_links(split: Path, tmp_path: Path) -> None:
    """A cache holds content-named blobs; the shard's name is the link's, and the engine needs it."""
    snapshot = tmp_path / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    for i, name in enumerate(names(split)):
        (split / name).rename(tmp_path / f"blob{i}")
        (snapshot / name).symlink_to(Path("..") / ".." / f"blob{i}")
    assert read_model(snapshot).files == tuple(snapshot / name for name in names(split))
    assert "split.count is 3, expected a name that ends in -00002-of-00003.gguf" in refusal(tmp_path / "blob1")
    (tmp_path / "blob1").unlink()
    assert refusal(snapshot) == "tiny-00002-of-00003.gguf: missing shard, found 2 of 3"


def test_missing_shard_is_refused_by_name(split: Path) -> None:
    (split / names(split)[1]).unlink()
    assert refusal(split) == "tiny-00002-of-00003.gguf: missing shard, found 2 of 3"


@pytest.mark.parametrize("extra", ["tiny-00000-of-00003.gguf", "tiny-00004-of-00003.gguf"])
def test_extra_shard_is_refused_by_name(split: Path, extra: str) -> None:
    (split / extra).write_bytes(b"")
    assert refusal(split / names(split)[0]) == f"{extra}: extra shard, expected 00001 to 00003 of this model"


def test_shards_that_swapped_names_are_refused(split: Path) -> None:
    second, third = (split / name for name in names(split)[1:])
    second.rename(split / "aside")
    third.rename(second)
    (split / "aside").rename(third)
    assert refusal(split) == "tiny-00002-of-00003.gguf: split.no is 2, expected 1 from the file's name"


def test_shard_that_ends_early_is_refused(split: Path) -> None:
    last = split / names(split)[2]
    size = last.stat().st_size
    with last.open("r+b") as file:
        file.truncate(size - 1)
    assert refusal(split).endswith(f"declared end {size}, file has {size - 1} bytes")
    assert refusal(split).startswith("tiny-00003-of-00003.gguf: tensor ")


def test_folder_with_two_models_names_none(split: Path) -> None:
    (split / "best-of-breed.gguf").write_bytes(b"")
    said = refusal(split)
    assert "2 models in this folder" in said
    assert "best-of-breed.gguf, tiny-00001-of-00003.gguf" in said
    assert len(read_model(split / names(split)[0]).files) == 3


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "no .gguf file in this folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"number": 1, "count": 3}, "split.count is 3, expected 2 from the file's name"),
        ({"number": 0, "count": 0, "architecture": "llama"}, "split.count is absent, expected 2 from the file's name"),
        ({"tensors": ["a"]}, "tensor 'a' is in m-00001-of-00002.gguf too"),
        ({"total": 7}, "split.tensors.count is 7, the 2 shards have 2"),
        (
            {"tensors": ["b", "c"], "total": None},
            "m-00001-of-00002.gguf: split.tensors.count is 2, the 2 shards have 3",
        ),
    ],
)
def test_shards_that_contradict_one_another_are_refused(tmp_path: Path, second: dict[str, object], said: str) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(shard_bytes(0, 2, tensors=["a"], total=2, architecture="llama"))
    settings: dict[str, object] = {"number": 1, "count": 2, "tensors": ["b"], "total": 2} | second
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard_bytes(**settings))  # type: ignore[arg-type]
    assert said in refusal(first)


def test_first_shard_must_count_the_tensors(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(shard_bytes(0, 2, tensors=["a"], total=None, architecture="llama"))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard_bytes(1, 2, tensors=["b"], total=2))
    assert "split.tensors.count is absent, the 2 shards have 2" in refusal(first)


def test_block_count_is_held_against_all_shards(tmp_path: Path) -> None:
    places = [pair("split.count", U16, 2), pair("split.tensors.count", I32, 2), pair("llama.block_count", U32, 2)]
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(gguf([*places, pair("split.no", U16, 0)], [tensor("blk.0.w", [8], 0, 0)], bytes(32)))
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(shard_bytes(1, 2, tensors=["blk.1.w"], total=2))
    assert read_model(first).header.block_count == 2
    second.write_bytes(shard_bytes(1, 2, tensors=["blk.2.w"], total=2))
    assert "llama.block_count" in refusal(first)


@pytest.mark.parametrize(
    ("quant", "precision", "fidelity"),
    [("q4_0", "Q4_0", Fidelity.F1), ("q4_1", "Q4_1", Fidelity.F2), ("q8_0", "Q8_0", Fidelity.F2),
     ("f16", "F16", Fidelity.F0)],
)  # fmt: skip
def test_model_precision_is_the_type_of_most_bytes(
    tmp_path: Path, quant: str, precision: str, fidelity: Fidelity
) -> None:
    model = read_model(write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant))
    assert model.precision == precision
    assert model.bits_per_weight is not None
    assert Fidelity.of_bits_per_weight(model.bits_per_weight) == fidelity


def test_model_without_tensors_has_no_precision(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(gguf([pair("general.name", STRING, "vocabulary only")]))
    model = read_model(path)
    assert model.precision is model.bits_per_weight is None


@pytest.mark.real_model
def test_published_model_has_its_precision(smollm2: Path) -> None:
    model = read_model(smollm2)
    assert model.precision == "Q4_1"
    assert model.tensor_types == Counter(Q4_1=210, F32=61, Q8_0=1)
    assert model.parameters == 134_515_008
    assert model.bits_per_weight == pytest.approx(5.74, abs=0.01)
