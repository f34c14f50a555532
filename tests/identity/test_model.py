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
    number: int, count: int | None, *, tensors: list[str], total: int | None, architecture: str | None = None
) -> bytes:
    pairs = [pair("split.no", U16, number)]
    if count is not None:
        pairs.append(pair("split.count", U16, count))
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


def test_first_of_several_shards_that_are_wrong_is_named(split: Path) -> None:
    for name in names(split)[:2]:
        (split / name).unlink()
    assert refusal(split) == "tiny-00001-of-00003.gguf: missing shard, found 1 of 3"
    for extra in ("tiny-00005-of-00003.gguf", "tiny-00004-of-00003.gguf", "tiny-00006-of-00003.gguf"):
        (split / extra).write_bytes(b"")
    assert refusal(split) == "tiny-00004-of-00003.gguf: extra shard, expected 00001 to 00003 of this model"


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
        ({"number": 0, "count": 1, "architecture": "llama"}, "split.count is 1, expected 2 from the file's name"),
        ({"number": 0, "count": 0, "architecture": "llama"}, "split.count is 0, expected 2 from the file's name"),
        ({"number": 0, "count": None, "architecture": "llama"}, "split.count is absent, expected 2 from the file's"),
        ({"number": 0, "architecture": "llama"}, "split.no is 0, expected 1 from the file's name"),
        ({"tensors": ["a"]}, "tensor 'a' is in m-00001-of-00002.gguf too"),
        ({"total": 7}, "m-00002-of-00002.gguf: split.tensors.count is 7, the 2 shards have 2"),
        ({"total": 1}, "m-00002-of-00002.gguf: split.tensors.count is 1, the 2 shards have 2"),
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


def test_model_of_hundreds_of_shards_is_read(tmp_path: Path) -> None:
    """Each later shard may leave the number of all tensors out."""
    for number in range(300):
        total = 300 if number % 2 == 0 else None
        architecture = None if number else "llama"
        raw = shard_bytes(number, 300, tensors=[f"t{number}"], total=total, architecture=architecture)
        (tmp_path / f"m-{number + 1:05d}-of-00300.gguf").write_bytes(raw)
    model = read_model(tmp_path)
    assert [tensor.name for tensor in model.tensors] == [f"t{number}" for number in range(300)]
    assert list(model.logical_files) == [f"model-{number:05d}-of-00300.gguf" for number in range(1, 301)]


def test_shards_are_those_of_one_name_and_one_count(split: Path) -> None:
    for other in ("tiny-00004-of-00002", "tiny-00004-of-00004", "a-00004-of-00003", "z-00004-of-00003", "tiny"):
        (split / f"{other}.gguf").write_bytes(b"")
    assert [path.name for path in read_model(split / names(split)[1]).files] == names(split)
    four = "a-00004-of-00003.gguf, tiny-00001-of-00003.gguf, tiny-00004-of-00002.gguf, tiny-00004-of-00004.gguf"
    assert refusal(split) == f"split: 6 models in this folder, name one of them: {four}"


def test_shards_that_say_they_are_fewer_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        raw = shard_bytes(number % 2, 2, tensors=[f"t{number}"], total=3, architecture="llama")
        (tmp_path / f"m-{number + 1:05d}-of-00003.gguf").write_bytes(raw)
    assert refusal(tmp_path) == "m-00001-of-00003.gguf: split.count is 2, expected 3 from the file's name"


def test_shard_of_none_is_refused(tmp_path: Path) -> None:
    for number in (0, 1):
        path = write_tiny_gguf(tmp_path / f"m-{number:05d}-of-00000.gguf")
        assert refusal(path) == f"{path.name}: extra shard, expected 00001 to 00000 of this model"
        path.unlink()


def test_only_shard_of_one_may_say_so(tmp_path: Path) -> None:
    for name in ("m-00001-of-00001.gguf", "m.gguf"):
        path = tmp_path / name
        path.write_bytes(shard_bytes(0, 1, tensors=["a"], total=1, architecture="llama"))
        assert read_model(path).logical_files == {"model.gguf": path}
    path.write_bytes(shard_bytes(0, 2, tensors=["a"], total=2, architecture="llama"))
    assert "split.count is 2, expected a name that ends in -00001-of-00002.gguf" in refusal(path)


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


def test_model_is_summed_up_over_all_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gguf((), [tensor("a", [32], 8, 0), tensor("b", [2, 4], 0, 64), tensor("c", [1], 0, 96)], bytes(100))
    )
    model = read_model(path)
    assert (model.parameters, model.weight_bytes, model.precision) == (41, 70, "F32")
    assert model.bits_per_weight == 70 * 8 / 41
    assert model.tensor_types == Counter(F32=2, Q8_0=1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_precision_of_two_types_with_as_many_bytes_is_the_same_in_any_order(tmp_path: Path, order: list[int]) -> None:
    wide, narrow = ("wide", [8], 0), ("narrow", [16], 1)
    entries = [tensor(*(wide, narrow)[which], 32 * place) for place, which in enumerate(order)]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf((), entries, bytes(64)))
    assert read_model(path).precision == "F32"


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
