"""Servers and folders that no vLLM engine is started on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm import VllmEngine, VllmTextEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.errors import (
    EngineError,
    EngineFailed,
    EngineUnavailable,
    EngineUnsupported,
    MeshError,
    ModelFileError,
    UsageError,
)
from tests.support.fake_vllm import FakeVllm, running, status
from tests.support.serves import serve
from tests.support.vllm_engines import engine_on, on
from tests.support.vllm_folder import write_model_folder


def refused_at_start(kind: type[MeshError], words: str, folder: Path | None = None, **told: Any) -> None:
    config = told.pop("config", {})

    async def main() -> None:
        async with running(**told) as fake:
            with pytest.raises(kind, match=words) as caught:
                async with engine_on(fake, folder, **config):
                    pass
            assert type(caught.value) is kind

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ignored", "words"),
    [("return_token_ids", "gives no token ids"), ("logprobs", r"gives no log-probabilities"),
     ("return_tokens_as_token_ids", "logprobs that are not by token id"), ("max_tokens", "clipped")],
)  # fmt: skip
def test_a_server_that_swallows_a_field_is_refused(ignored: str, words: str) -> None:
    async def main() -> None:
        async with running(ignored=frozenset({ignored})) as fake:
            with pytest.raises(EngineError, match=words):
                async with engine_on(fake):
                    pass

    asyncio.run(main())


def test_a_server_that_clips_is_refused() -> None:
    refused_at_start(EngineFailed, "clipped a prompt or an answer", clip=100)
    refused_at_start(EngineFailed, "clipped a prompt or an answer", most=20)


def test_a_server_of_several_models_is_asked_for_one(tmp_path: Path) -> None:
    refused_at_start(UsageError, "serves 'tiny', 'lora': say which one", others=("lora",))
    refused_at_start(UsageError, "does not serve 'x', but 'tiny'", config={"model": "x"})

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.recipe_id == "mine"
        assert len((await serve(engine, (40, 41), 5, ignore_eos=True)).tokens) == 5

    on(tmp_path, test, {"model": "tiny", "recipe_id": "mine"}, others=("lora",))


def test_a_folder_that_the_server_did_not_load_is_refused(tmp_path: Path) -> None:
    mine, other = write_model_folder(tmp_path / "mine"), write_model_folder(tmp_path / "other")
    refused_at_start(UsageError, "it loaded another folder", mine, root=str(other))


def test_a_folder_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["T"] = vocab["T"], vocab["a"]
    path.write_text(json.dumps(tokenizer))
    refused_at_start(UsageError, "spells the server's tokens otherwise", model)


def test_a_folder_of_a_smaller_vocabulary_is_refused(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"] = {name: i for name, i in tokenizer["model"]["vocab"].items() if i < 50}
    path.write_text(json.dumps(tokenizer))
    refused_at_start(EngineUnsupported, "ids that the tokenizer folder does not have", model)


def test_a_template_that_is_not_the_servers_is_refused(tmp_path: Path) -> None:
    other = write_model_folder(tmp_path / "model", template="{% for m in messages %}{{ m['content'] }}{% endfor %}")
    refused_at_start(UsageError, "gives other ids than the server's own", other)
    # a server without one has nothing against it
    on(tmp_path / "b", _renders, template=None)


async def _renders(fake: FakeVllm, engine: VllmTextEngine) -> None:
    assert await engine.render([{"role": "user", "content": "x"}]) == "user: x\nassistant:"


def test_a_configured_template_wins(tmp_path: Path) -> None:
    refused_at_start(UsageError, "other ids", write_model_folder(tmp_path / "m"), config={"chat_template": "hello"})


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_what_is_needed_is_refused(tmp_path: Path, missing: str) -> None:
    model = write_model_folder(tmp_path / "model")
    (model / missing).unlink()
    refused_at_start(ModelFileError, missing, model)


def test_something_else_than_vllm_is_refused() -> None:
    refused_at_start(EngineUnsupported, "/version answered 404", instead={"/version": status(404)})
    refused_at_start(EngineUnsupported, "/v1/models gave no object", instead={"/v1/models": status(200, [])})
    refused_at_start(EngineFailed, "/v1/completions answered 500", instead={"/v1/completions": status(500)})


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def main() -> None:
        async with running() as fake:
            await fake.stop()
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                await VllmEngine.start(VllmConfig(fake.url))

    asyncio.run(main())


def test_a_key_that_is_missing_is_told() -> None:
    refused_at_start(EngineUnsupported, r"answered 401 \(Unauthorized\)", key="k")
