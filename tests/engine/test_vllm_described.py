"""What a vLLM engine says of its server, and when a server is another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm_described import (
    ServerFacts,
    VllmConfig,
    backend_id,
    check_folder,
    choose_model,
    quantizes,
    settings,
    told_dtype,
)
from mesh.engine.vllm_http import Metrics, ModelCard
from mesh.engine.vllm_known import KNOWN, known
from mesh.errors import EngineUnsupported, UsageError
from mesh.schema import canonical
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_SETTINGS_BYTES

URL = "http://127.0.0.1:8000"
CACHE = {"block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": "True", "num_gpu_blocks": "8192"}
FACTS = ServerFacts("0.32.0", "tiny", "tiny", 2048, CACHE, "1.7e+09", "vllm-0.32.0-0a1b2c3d")


def document(facts: ServerFacts = FACTS, **told: Any) -> dict[str, Any]:
    given = {"quantization": None, "tokenizer": None, "template": None, "probe": None, "logprobs": "raw"} | told
    config = given.pop("config", VllmConfig(URL))
    return settings(facts, config, **given)


@pytest.mark.parametrize(
    "options", [{"slots": 0}, {"slots": 1025}, {"idle_s": 0}, {"idle_s": 86_401}, {"dtype": "auto"}, {"device": "gpu"}]
)
def test_a_configuration_out_of_bounds_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        VllmConfig(URL, **options)


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(VllmConfig(URL, key="secret"))


def test_the_tokenizer_of_another_folder_wins() -> None:
    assert VllmConfig(URL, weights=Path("w")).text_folder == Path("w")
    assert VllmConfig(URL, weights=Path("w"), tokenizer=Path("t")).text_folder == Path("t")
    assert VllmConfig(URL).text_folder is None


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ((), None),
        (("--dtype", "float32"), "float32"),
        (("--dtype=bfloat16", "--seed", "1"), "bfloat16"),
        (("--dtype", "half"), "float16"),
        (("--dtype=float",), "float32"),
        (("--dtype", "auto"), None),
        (("--dtype",), None),
        (("--dtype", "float32", "--dtype", "bfloat16"), "bfloat16"),
        (("--seed", "float32"), None),
    ],
)
def test_flags_tell_a_dtype_or_leave_it_to_the_server(flags: tuple[str, ...], dtype: str | None) -> None:
    assert told_dtype(flags) == dtype


@pytest.mark.parametrize(
    ("flags", "does"),
    [
        ((), False),
        (("--dtype", "float32"), False),
        (("--quantization", "fp8"), True),
        (("--quantization=fp8",), True),
        (("--quantiz", "fp8"), True),
        (("-q", "fp8"), True),
    ],
)
def test_flags_that_quantize_at_load_are_seen(flags: tuple[str, ...], does: bool) -> None:
    assert quantizes(flags) is does


def test_one_model_need_not_be_named_and_several_must() -> None:
    one, two = ModelCard("a", None, 8), ModelCard("b", None, 8)
    assert choose_model([one], None, URL) is one
    assert choose_model([one, two], "b", URL) is two
    with pytest.raises(UsageError, match="serves 'a', 'b': say which one"):
        choose_model([one, two], None, URL)
    with pytest.raises(UsageError, match="serves none: say which one"):
        choose_model([], None, URL)
    with pytest.raises(UsageError, match="does not serve 'c', but 'a', 'b'"):
        choose_model([one, two], "c", URL)


def test_a_server_that_names_no_context_is_refused() -> None:
    with pytest.raises(EngineUnsupported, match="no max_model_len"):
        ServerFacts.of("0.32.0", ModelCard("tiny", None, None), Metrics(None, {}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.33.0"}, "its version was '0.32.0' and is '0.33.0'"),
        ({"model": "other"}, "its model was 'tiny' and is 'other'"),
        ({"root": "elsewhere"}, "its root was 'tiny' and is 'elsewhere'"),
        ({"context_tokens": 4096}, "its context_tokens was 2048 and is 4096"),
        ({"cache": CACHE | {"cache_dtype": "fp8"}}, "its cache_dtype was 'auto' and is 'fp8'"),
        ({"cache": CACHE | {"enable_prefix_caching": "False"}}, "its enable_prefix_caching was 'True' and is 'False'"),
        ({"cache": {}}, "its block_size was '16' and is None"),
    ],
)
def test_another_server_is_told_by_what_differs(change: dict[str, Any], words: str) -> None:
    assert FACTS.difference(replace(FACTS, **change)) == words


def test_another_start_with_other_sizes_of_memory_is_the_same_server() -> None:
    again = replace(FACTS, started_s="1.8e+09", fingerprint="other", cache=CACHE | {"num_gpu_blocks": "99"})
    assert FACTS.difference(again) is None


def test_a_folder_that_the_server_did_not_load_is_refused(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").mkdir()
    (other := tmp_path / "other").mkdir()
    (link := tmp_path / "link").symlink_to(mine)
    for root in (str(mine), str(link), "tiny", "org/model", None, str(tmp_path / "not-here"), f"{other}/../mine"):
        check_folder(replace(FACTS, root=root), mine)
    with pytest.raises(UsageError, match="loaded another folder"):
        check_folder(replace(FACTS, root=str(other)), mine)


def test_a_backend_says_what_was_told_and_not_asked() -> None:
    assert backend_id(FACTS, VllmConfig(URL)) == "vllm/0.32.0/none/none/none/none"
    assert backend_id(FACTS, VllmConfig(URL, device="cuda")) == "vllm/0.32.0/none/none/told:cuda/none"


def test_settings_of_two_machines_agree_where_their_servers_do() -> None:
    there = replace(FACTS, fingerprint="vllm-0.32.0-ffffffff", root="elsewhere", started_s="9", model="renamed")
    assert document() == document(there)


@pytest.mark.parametrize(
    "other",
    [
        document(replace(FACTS, context_tokens=4096)),
        document(replace(FACTS, fingerprint="vllm-0.32.0-tp2-0a1b2c3d")),
        document(replace(FACTS, cache=CACHE | {"cache_dtype": "fp8"})),
        document(config=VllmConfig(URL, dtype="bfloat16")),
        document(config=VllmConfig(URL, dtype="float32")),
        document(quantization="none"),
        document(quantization="awq"),
        document(tokenizer=bytes(32)),
        document(template=ContentId(bytes(32))),
        document(probe=bytes(32)),
        document(logprobs="processed"),
    ],
)
def test_what_moves_numbers_is_in_the_settings(other: dict[str, Any]) -> None:
    assert other != document()
    assert len(canonical.encode(other)) < MAX_SETTINGS_BYTES


def test_degrees_of_parallelism_are_read_from_the_fingerprint() -> None:
    told = document(replace(FACTS, fingerprint="vllm-0.32.0-tp4-pp2-dp8-0a1b2c3d"))
    assert (told["tensor_parallel"], told["pipeline_parallel"], told["data_parallel"]) == (4, 2, 8)
    assert "tensor_parallel" not in document()
    assert "tensor_parallel" not in document(replace(FACTS, fingerprint=None))


def test_a_dtype_is_marked_as_told() -> None:
    assert document(config=VllmConfig(URL, dtype="float32"))["dtype"] == "told:float32"


def test_only_what_somebody_looked_at_is_known() -> None:
    assert known("0.32.0", "cpu", "float32") is not None
    for version, device, dtype in (
        ("0.32.1", "cpu", "float32"), ("0.32.0", "cuda", "float32"), ("0.32.0", "cpu", "bfloat16"),
        ("0.32.0", None, "float32"), ("0.32.0", "cpu", None),
    ):  # fmt: skip
        assert known(version, device, dtype) is None
    assert all(len(row.evidence) > 80 for row in KNOWN)
    assert len({(row.version, row.device, row.dtype) for row in KNOWN}) == len(KNOWN)
