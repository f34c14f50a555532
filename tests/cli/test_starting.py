"""What an engine is told can be told as a flag and in `mesh.toml`; what an old GGUF file lacks is named."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from mesh.cli.engines import _APPLIES, add_engine_flags, spec_of
from mesh.cli.serve_plan import backend_spec
from mesh.cli.specs import EngineSpec
from mesh.cli.starting import start_engine
from mesh.errors import ModelFileError
from mesh.gateway.config import GgufBackend, ManagedVllmBackend, MeshConfig, RuntimeBackend, VllmBackend
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that says neither how it splits words nor where an output ends."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "old.gguf", pre=None, eos=None)


def by_flags(model: Path) -> EngineSpec:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    return spec_of(
        parser.parse_args(["--gguf", str(model), "--tokenizer-pre", "gpt-2", "--eos-id", "0", "--silent-s", "77"])
    )


def by_config(model: Path) -> EngineSpec:
    config = MeshConfig.from_toml(
        f'[[backend]]\nkind = "gguf"\npath = "{model.name}"\ntokenizer_pre = "gpt-2"\neos_id = 0\nsilent_s = 77\n'
    )
    return backend_spec(config.backend[0], model.parent)


@pytest.mark.parametrize("spec", [by_flags, by_config])
def test_gguf_that_lacks_fields_starts_with_them_given(model: Path, spec) -> None:
    async def main() -> None:
        engine = await start_engine(spec(model))
        try:
            overrides = engine.settings["overrides"]
        finally:
            await engine.close()
        assert engine._config.silent_s == 77
        assert overrides == [["tokenizer.ggml.eos_token_id", 0], ["tokenizer.ggml.pre", "gpt-2"]]

    asyncio.run(main())


def test_gguf_that_lacks_fields_is_refused_without_them(model: Path) -> None:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    with pytest.raises(ModelFileError, match="tokenizer_pre in the configuration"):
        asyncio.run(start_engine(spec_of(parser.parse_args(["--gguf", str(model)]))))


# Flags that a table of `mesh.toml` says in other words.
OTHERWISE = {
    "context": "context_tokens", "no_flash_attention": "flash_attention", "vllm_key_file": "key_file",
    "vllm_executable": "executable", "vllm_start_s": "start_s",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "table"),
    [("gguf", GgufBackend), ("vllm", VllmBackend), ("vllm_managed", ManagedVllmBackend), ("runtime", RuntimeBackend)],
)
def test_whatever_a_flag_says_a_table_can_say(kind: str, table: type) -> None:
    assert {OTHERWISE.get(flag, flag) for flag in ("name", *_APPLIES[kind])} <= table.model_fields.keys() | (
        {"name"} if kind == "runtime" else set()
    )


def test_seconds_of_silence_are_bounded_in_both(mesh, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf")
    toml = tmp_path / "mesh.toml"
    for seconds, code in (("0", 2), ("86401", 2), ("600", 0)):
        toml.write_text(f'[[backend]]\nkind = "gguf"\npath = "m.gguf"\nsilent_s = {seconds}\n')
        told = mesh("serve", "--config", toml, "--check")
        assert (told.code, code == 0 or "silent_s" in told.err) == (code, True), told.err
        told = mesh("serve", "--gguf", tmp_path / "m.gguf", "--silent-s", seconds, "--check")
        assert (told.code, code == 0 or "silent" in told.err + told.out) == (code, True), told.err
