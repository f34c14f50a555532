"""RC-01: a flag that the engine took and did not follow, a variable that it warned of once."""

from __future__ import annotations

import pytest

from mesh.launch.effective import effective_findings

SAID = "INFO api_server.py:1 non-default args: "


def codes(args: list[str], said: str, *allowed: str) -> list[tuple[str, str, str]]:
    return [(one.level, one.code, one.where) for one in effective_findings("vllm", args, said, allowed)]


@pytest.mark.parametrize(
    ("args", "used"),
    [
        (["--max-model-len", "4096"], "{'max_model_len': 4096}"),
        (["--max-model-len", "4k"], "{'max_model_len': 4000}"),
        (["--gpu-memory-utilization", "0.80"], "{'gpu_memory_utilization': 0.8}"),
        (["--speculative-config", '{"method": "mtp"}'], "{'speculative_config': {'method': 'mtp'}}"),
        (["--served-model-name", "a", "b"], "{'served_model_name': ['a', 'b']}"),
        (["--enable-prefix-caching"], "{'enable_prefix_caching': True}"),
        (["--dtype", "auto"], "{}"),
    ],
)
def test_rc_01_lever_that_is_used_as_asked_is_no_finding(args: list[str], used: str) -> None:
    assert codes(args, SAID + used) == []


def test_rc_01_c_lever_that_the_model_file_overrides_is_an_error_unless_allowed() -> None:
    args, said = ["--max-model-len", "4096"], SAID + "{'max_model_len': 2048}"
    assert codes(args, said) == [("error", "lever-overridden", "--max-model-len")]
    assert codes(args, said, "--max-model-len") == [("note", "lever-overridden", "--max-model-len")]


def test_rc_01_variable_that_the_engine_warns_of_is_an_error_unless_allowed() -> None:
    said = SAID + "{}\nWARNING envs.py: Unknown vLLM environment variable detected: VLLM_NOT_A_REAL_VAR\n"
    assert codes([], said) == [("error", "lever-unread", "env.VLLM_NOT_A_REAL_VAR")]
    assert codes([], said, "VLLM_NOT_A_REAL_VAR") == [("note", "lever-unread", "env.VLLM_NOT_A_REAL_VAR")]


@pytest.mark.parametrize("said", ["", SAID + "{'a': <object at 0x1>}"])
def test_engine_that_says_nothing_readable_is_no_agreement(said: str) -> None:
    assert codes(["--dtype", "auto"], said) == [("warning", "levers-unsaid", "args")]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("server_args=ServerArgs(context_length=8192, y=f(1), mem_fraction_static=0.88)", []),
        ("server_args=ServerArgs(context_length=4096)", [("error", "lever-overridden", "--context-length")]),
        ("server_args=ServerArgs(context_length=<x>)", [("warning", "levers-unsaid", "args")]),
        ("nothing of it", [("warning", "levers-unsaid", "args")]),
    ],
)
def test_rc_01_sglang_is_held_to_the_settings_that_it_prints(said: str, found: list[tuple[str, str, str]]) -> None:
    args = ["--context-length", "8192", "--mem-fraction-static", "0.88", "--enable-metrics"]
    findings = effective_findings("sglang", args, f"[2026-01-01 00:00:00] {said}\n")
    assert [(one.level, one.code, one.where) for one in findings] == found


def test_rc_01_engine_that_never_says_what_it_runs_with_is_not_asked() -> None:
    assert effective_findings("llama.cpp", ["--ctx-size", "1"], "") == []
