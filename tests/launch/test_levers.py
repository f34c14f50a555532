"""Levers: in two places, unknown to the version, removed, misspelt (RC-01)."""

from __future__ import annotations

import pytest

from mesh.launch.levers import known_versions, lever_findings, read_levers, table_from_help, table_of


def codes(*args: str, env: dict[str, str] | None = None, **options: object) -> list[tuple[str, str]]:
    found = lever_findings("vllm", "0.32.0", args, env or {}, **options)  # type: ignore[arg-type]
    return [(one.code, one.where) for one in found]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("VLLM_ATTENTION_BACKEND", "FLEX_ATTENTION", id="a-removed"),
        pytest.param("VLLM_USE_V1", "1", id="a-removed-too"),
        pytest.param("VLLM_NOT_A_REAL_VAR", "1", id="b-misspelt"),
    ],
)
def test_rc_01_variable_that_the_version_does_not_read_is_an_error(name: str, value: str) -> None:
    assert codes(env={name: value}) == [("lever-unread", f"env.{name}")]
    assert codes(env={name: value}, allowed=[name]) == [("lever-allowed", f"env.{name}")]


def test_rc_01_lever_set_by_flag_and_variable_to_two_values_is_a_clash() -> None:
    both = {"VLLM_CPU_KVCACHE_SPACE": "4"}
    assert codes("--kv-cache-memory-bytes", "67108864", env=both) == [("lever-clash", "--kv-cache-memory-bytes")]
    assert codes("--api-key", "k", env={"VLLM_API_KEY": "k"}) == [("lever-twice", "--api-key")]


def test_rc_01_levers_are_held_to_their_own_version_and_no_other() -> None:
    found = lever_findings("vllm", "0.9.0", ["--no-such-flag"], {"VLLM_NOT_A_REAL_VAR": "1"})
    assert [one.code for one in found] == ["levers-unchecked"]
    assert "0.32.0" in found[0].message
    assert [one.code for one in lever_findings("vllm", None, [], {})] == ["levers-unchecked"]


def test_unknown_flag_is_an_error_that_names_its_neighbour() -> None:
    (found,) = lever_findings("vllm", "0.32.0", ["--max-modle-len", "1"], {})
    assert (found.level, found.code) == ("error", "lever-unread")
    assert "--max-model-len" in found.message


@pytest.mark.parametrize(
    "args",
    [
        ("--max-model-len=4096",),
        ("--max_model_len", "4096"),
        ("--speculative_config.method", "mtp", "--speculative_config.num_speculative_tokens", "3"),
        ("--speculative-config", '{"method": "mtp"}'),
        ("--compilation-config", "3"),
        ("-O", "3"),
        ("--no-enable-prefix-caching",),
        ("--max-num-seqs", "-1"),
    ],
)
def test_spellings_that_the_engine_takes_are_known(args: tuple[str, ...]) -> None:
    assert codes(*args) == []


def test_flag_given_twice_is_found_under_every_spelling() -> None:
    assert codes("-tp", "2", "--tensor-parallel-size", "4") == [("lever-clash", "--tensor-parallel-size")]
    assert codes("--max-model-len", "1", "--max_model_len=1") == [("lever-twice", "--max_model_len")]


def test_flag_that_the_launcher_makes_is_in_two_places() -> None:
    derived = {"--port": "30000", "--tensor-parallel-size": "2"}
    assert codes("--port", "8000", derived=derived) == [("lever-clash", "--port")]
    assert codes("-tp", "2", derived=derived) == [("lever-twice", "-tp")]
    assert codes("--node-rank", "1", derived=derived) == [("lever-launcher", "--node-rank")]


def test_word_without_a_flag_is_named() -> None:
    assert codes("org/model") == [("lever-loose", "args")]


def test_tables_hold_no_flag_twice_and_know_the_common_ones() -> None:
    expected = {"vllm": "--max-model-len", "sglang": "--mem-fraction-static", "llama.cpp": "--ctx-size"}
    assert known_versions().keys() == expected.keys()
    for engine, versions in known_versions().items():
        for version in versions:
            table = table_of(engine, version)
            assert table is not None
            assert (table.engine, table.version) == (engine, version)
            assert table.canonical(expected[engine]) == expected[engine]


def test_sglang_takes_the_short_name_that_everybody_writes() -> None:
    assert lever_findings("sglang", "0.5.23", ["--context-length", "8192"], {}) == []
    levers, _ = read_levers(["--tp", "2", "--tensor-parallel-size", "2"], "sglang", None)
    assert {lever.name for lever in levers} == {"--tp-size"}


def test_table_is_made_of_an_engines_own_help() -> None:
    text = "usage: x\n\n  --max-len N, -m N    how long\n  --fast, --no-fast\n             more words --not-a-flag\n"
    table = table_from_help(text, "vllm", "9", "VLLM_")
    assert table.flags["-m"] == "--max-len"
    assert table.flags["--no-fast"] == "--fast"
    assert "--not-a-flag" not in table.flags
