"""What an old GGUF file lacks is named, and can be given by that name: as a flag and in `mesh.toml`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from mesh.cli.engines import add_engine_flags, spec_of
from mesh.cli.serve import backend_spec
from mesh.cli.specs import EngineSpec
from mesh.cli.starting import start_engine
from mesh.errors import ModelFileError
from mesh.gateway.config import MeshConfig
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that says neither how it splits words nor where an output ends."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "old.gguf", pre=None, eos=None)


def by_flags(model: Path) -> EngineSpec:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    return spec_of(parser.parse_args(["--gguf", str(model), "--tokenizer-pre", "gpt-2", "--eos-id", "0"]))


def by_config(model: Path) -> EngineSpec:
    config = MeshConfig.from_toml(
        f'[[backend]]\nkind = "gguf"\npath = "{model.name}"\ntokenizer_pre = "gpt-2"\neos_id = 0\n'
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
        assert overrides == [["tokenizer.ggml.eos_token_id", 0], ["tokenizer.ggml.pre", "gpt-2"]]

    asyncio.run(main())


def test_gguf_that_lacks_fields_is_refused_without_them(model: Path) -> None:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    with pytest.raises(ModelFileError, match="tokenizer_pre in the configuration"):
        asyncio.run(start_engine(spec_of(parser.parse_args(["--gguf", str(model)]))))
