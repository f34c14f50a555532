from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.hf_model import HfModel, read_hf_model
from mesh.errors import ModelFileError
from mesh.schema.outcome import Fidelity, ServeOutcome

PLAIN = {"max_position_embeddings": 2048, "dtype": "bfloat16"}
DTYPES = (None, "auto", "float16", "bfloat16", "float32", "float64", "fp8", "half", "float", "torch.bfloat16")


def model(folder: Path, config: Any) -> HfModel:
    raw = config if isinstance(config, bytes) else json.dumps(config).encode()
    (folder / "config.json").write_bytes(raw)
    return read_hf_model(folder)


@pytest.mark.parametrize(
    ("config", "context", "dtype"),
    [
        (PLAIN, 2048, "bfloat16"),
        ({"n_positions": 1024, "torch_dtype": "float16"}, 1024, "float16"),
        ({"dtype": "torch.half", "torch_dtype": "float16"}, None, "float16"),
        ({"dtype": None, "torch_dtype": "float"}, None, "float32"),
        ({"text_config": PLAIN}, 2048, "bfloat16"),
        ({"text_config": PLAIN, "dtype": "float32", "max_position_embeddings": 64}, 64, "float32"),
        ({}, None, None),
        ({"text_config": None, "max_position_embeddings": None}, None, None),
    ],
)
def test_context_and_type_are_read_where_models_have_them(
    tmp_path: Path, config: Any, context: int | None, dtype: str | None
) -> None:
    read = model(tmp_path, config)
    assert (read.context_tokens, read.dtype, read.quantization) == (context, dtype, None)


@pytest.mark.parametrize(
    ("published", "served", "fidelity"),
    [
        ("float32", "float32", Fidelity.F3),
        ("float32", "float", Fidelity.F3),
        ("float32", "float64", Fidelity.F3),
        ("float32", "bfloat16", Fidelity.F0),
        ("float32", "float16", Fidelity.F0),
        ("bfloat16", "bfloat16", Fidelity.F3),
        ("bfloat16", "torch.bfloat16", Fidelity.F3),
        ("bfloat16", "float32", Fidelity.F3),
        ("bfloat16", "float16", Fidelity.F0),
        ("float16", "half", Fidelity.F3),
        ("float16", "float32", Fidelity.F3),
        ("float16", "bfloat16", Fidelity.F0),
        ("float64", "float32", Fidelity.F0),
        ("bfloat16", "auto", Fidelity.F0),
        ("bfloat16", None, Fidelity.F0),
        (None, "float32", Fidelity.F0),
        (None, None, Fidelity.F0),
        ("float8_e4m3fn", "float8_e4m3fn", Fidelity.F0),
        ("nonsense", "nonsense", Fidelity.F0),
    ],
)
def test_only_a_type_that_holds_every_published_value_is_as_published(
    tmp_path: Path, published: str | None, served: str | None, fidelity: Fidelity
) -> None:
    assert model(tmp_path, {"dtype": published}).fidelity(served) is fidelity


@pytest.mark.parametrize(
    ("section", "precision", "fidelity"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq-4bit", Fidelity.F1),
        ({"quant_method": "gptq", "bits": 8}, "gptq-8bit", Fidelity.F2),
        ({"quant_method": "gptq", "bits": 8, "dynamic": {"-:.*down.*": {}, "+:.*up.*": {"bits": 3}}}, "gptq-3bit", 1),
        ({"quant_method": "gptq", "bits": 16}, "gptq-16bit", Fidelity.F0),
        ({"quant_method": "gptq"}, "gptq", Fidelity.F0),
        ({"quant_method": "awq", "bits": 4}, "awq-4bit", Fidelity.F1),
        ({"quant_method": "awq", "w_bit": 4}, "awq-4bit", Fidelity.F1),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8-8bit", Fidelity.F2),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8-8bit", Fidelity.F2),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes-4bit", Fidelity.F1),
        ({"quant_method": "bitsandbytes", "_load_in_8bit": True}, "bitsandbytes-8bit", Fidelity.F2),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes", Fidelity.F0),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
            "compressed-tensors-8bit",
            Fidelity.F2,
        ),
        (
            {
                "config_groups": {
                    "a": {"weights": {"num_bits": 8}},
                    "b": {"weights": {"num_bits": 4}},
                    "c": {"weights": None},
                    "d": None,
                }
            },
            "compressed-tensors-4bit",
            Fidelity.F1,
        ),
        ({"quant_method": "compressed-tensors", "sparsity_config": {}}, "compressed-tensors", Fidelity.F0),
        ({"quant_method": "quark", "bits": 4}, "quark", Fidelity.F0),
        ({}, "unnamed", Fidelity.F0),
    ],
)
@pytest.mark.parametrize("where", ["quantization_config", "compression_config", "text_config"])
def test_quantized_weights_are_rated_by_the_narrowest_width_that_can_be_read(
    tmp_path: Path, where: str, section: Any, precision: str, fidelity: Fidelity
) -> None:
    inner = {"text_config": {"quantization_config": section}} if where == "text_config" else {where: section}
    read = model(tmp_path, {**PLAIN, **inner})
    for dtype in DTYPES:
        assert read.fidelity(dtype) == fidelity
        assert read.precision(dtype) == precision


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_a_quantization_described_in_a_file_of_its_own_is_not_taken_for_published_values(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"{}")
    assert model(tmp_path, PLAIN).fidelity("bfloat16") is Fidelity.F0
    named = model(tmp_path, {**PLAIN, "quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert named.fidelity("bfloat16") is Fidelity.F1


@pytest.mark.parametrize(
    ("served", "label"),
    [("float", "float32"), ("torch.bfloat16", "bfloat16"), ("auto", None), (None, None), ("\n", None)],
)
def test_precision_names_the_served_type(tmp_path: Path, served: str | None, label: str | None) -> None:
    assert model(tmp_path, PLAIN).precision(served) == label


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"max_position_embeddings": "2048"}, "max_position_embeddings", "text, expected an integer"),
        ({"max_position_embeddings": 0}, "max_position_embeddings", "0, expected 1 to"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings", "expected 1 to"),
        ({"text_config": []}, "text_config", "a list, expected an object"),
        ({"text_config": {"n_positions": True}}, "text_config.n_positions", "true, expected an integer"),
        ({"dtype": 16}, "dtype", "a number, expected text"),
        ({"torch_dtype": ["float16"]}, "torch_dtype", "a list, expected text"),
        ({"dtype": "float32", "torch_dtype": "float16"}, "dtype", "float32, but torch_dtype is float16"),
        ({"quantization_config": "gptq"}, "quantization_config", "text, expected an object"),
        ({"quantization_config": {"quant_method": 4}}, "quantization_config.quant_method", "expected text"),
        ({"quantization_config": {"quant_method": ""}}, "quantization_config.quant_method", "expected the name"),
        ({"quantization_config": {"quant_method": "a b\n"}}, "quantization_config.quant_method", "expected the name"),
        ({"quantization_config": {"quant_method": "x" * 49}}, "quantization_config.quant_method", "expected the name"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "4"}}, "quantization_config.bits", "text, expected"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 0}}, "quantization_config.bits", "0, expected 1 to"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"x": 1}}},
            "quantization_config.dynamic.x",
            "a number, expected an object",
        ),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": "yes"}},
            "quantization_config.load_in_4bit",
            "text, expected true or false",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [4]}},
            "quantization_config.config_groups",
            "a list, expected an object",
        ),
        (
            {"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": 4.5}}}}},
            "quantization_config.config_groups.g.weights.num_bits",
            "a number, expected an integer",
        ),
    ],
)
def test_a_malformed_config_names_its_field(tmp_path: Path, config: Any, field: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: ") as caught:
        model(tmp_path, config)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("raw", "words"), [(b"{", "not JSON"), (b"[]", "a list, expected an object"), (b"[" * 100_000, "nested too deep")]
)
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, raw: bytes, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        model(tmp_path, raw)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no config\.json in this folder"):
        read_hf_model(tmp_path)


values = st.none() | st.booleans() | st.integers(-1, 20) | st.text(max_size=5) | st.sampled_from(DTYPES[1:])
sections = st.dictionaries(
    st.sampled_from(["quant_method", "bits", "w_bit", "load_in_4bit", "load_in_8bit", "dynamic", "config_groups"]),
    values
    | st.sampled_from(["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors"])
    | st.dictionaries(st.text(max_size=2), st.dictionaries(st.sampled_from(["bits", "weights"]), values), max_size=2),
)
configs = st.dictionaries(
    st.sampled_from(["dtype", "torch_dtype", "max_position_embeddings", "n_positions"]), values
).flatmap(lambda plain: st.fixed_dictionaries({}, optional={"quantization_config": sections}).map(lambda q: plain | q))


@given(configs | st.fixed_dictionaries({"text_config": configs}), st.sampled_from(DTYPES) | st.text(max_size=8))
def test_whatever_a_config_says_the_rating_is_honest_and_the_label_fits_a_receipt(
    config: dict[str, Any], served: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            read = model(Path(folder), config)
        except ModelFileError:
            return
    label, fidelity = read.precision(served), read.fidelity(served)
    ServeOutcome(finish="stop", counted_by="engine", precision=label, delivered_fidelity=int(fidelity))
    assert read.context_tokens is None or read.context_tokens > 0
    assert fidelity is not Fidelity.F3 or (read.quantization is None and read.dtype is not None)
    assert fidelity not in (Fidelity.F1, Fidelity.F2) or read.bits_per_weight is not None
