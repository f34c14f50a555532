"""Levers: which variables an engine would read, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mesh.blueprint.postcard import decode, encode
from mesh.blueprint.settings import SETTINGS as SETTINGS_KIND
from mesh.blueprint.settings import VllmSettings, check_levers, check_loaded, levers_in
from mesh.errors import BodyError, KernelError, PostcardError, UnstatedLever
from tests.blueprint.bodies import SETTINGS

VLLM = VllmSettings("m", "0.32", 8, "cpu", (), None, (("VLLM_USE_V1", "1"),))


def test_variables_that_an_engine_reads_are_known_by_how_their_names_begin() -> None:
    found = {
        "GGML_CPU_TILED_MM": "0", "LLAMA_ATTN_ROT_DISABLE": "1", "OMP_NUM_THREADS": "1", "LD_PRELOAD": "x.so",
        "KMP_BLOCKTIME": "0", "VLLM_USE_V1": "1", "HF_HUB_OFFLINE": "1", "PATH": "/bin", "HOME": "/", "PYTHONPATH": ".",
    }  # fmt: skip
    assert set(levers_in("gguf", found)) == {
        "GGML_CPU_TILED_MM", "LLAMA_ATTN_ROT_DISABLE", "OMP_NUM_THREADS", "LD_PRELOAD", "KMP_BLOCKTIME",
    }  # fmt: skip
    assert {"VLLM_USE_V1", "HF_HUB_OFFLINE", "LD_PRELOAD"} <= set(levers_in("vllm", found))


def test_chat_template_is_stated_up_to_one_mebibyte() -> None:
    for settings in (SETTINGS, VLLM):
        long = replace(settings, chat_template="x" * (1 << 20))
        assert decode(SETTINGS_KIND, encode(SETTINGS_KIND, long)) == long
        with pytest.raises(PostcardError, match="text of 1 to 1048576 bytes"):
            encode(SETTINGS_KIND, replace(settings, chat_template="x" * ((1 << 20) + 1)))


def test_every_variable_that_is_not_stated_is_named() -> None:
    check_levers(SETTINGS, {"OMP_PROC_BIND": "true", "PATH": "/bin"})
    check_levers(SETTINGS, {})  # what is stated is set for the engine, whoever has it set or not
    with pytest.raises(UnstatedLever) as caught:
        check_levers(SETTINGS, {"OMP_PROC_BIND": "false", "GGML_B": "1", "GGML_A": "2"})
    assert str(caught.value) == (
        "environment variable GGML_A is set, which the blueprint does not state; environment variable GGML_B is set, "
        "which the blueprint does not state; environment variable OMP_PROC_BIND is 'false', the blueprint states 'true'"
    )
    with pytest.raises(UnstatedLever, match="VLLM_ATTENTION_BACKEND"):
        check_levers(VLLM, {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "x"})


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "GGML_BACKEND_PATH"])
def test_variable_that_loads_code_is_refused_although_it_is_stated(name: str) -> None:
    check_loaded({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    with pytest.raises(KernelError, match=f"{name}: it loads code of which no kernel module is pinned"):
        check_loaded({"A": "1", name: "x"})


@pytest.mark.parametrize(
    "pairs", [(("B", ""), ("A", "")), (("A", ""), ("A", "")), (("A B", ""),), (("", ""),), (("A", "x\0"),)]
)
def test_environment_that_cannot_be_set_is_refused(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(BodyError, match="settings"):
        replace(SETTINGS, environment=pairs)
