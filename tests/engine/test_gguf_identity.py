"""What a GGUF engine says it is follows from its files, its library and its settings, and from nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.gguf_identity import gguf_identity
from mesh.errors import EngineError, IdentityChanged
from mesh.identity.derived import content_digest
from mesh.identity.mismatch import explain
from mesh.identity.model import read_model
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId
from tests.support.tiny_gguf import write_tiny_gguf

BACKEND = "gguf/0.1.0/0123456789abcdef/x86_64-avx2/cpu/none"
TEMPLATE = ContentId.of_bytes(b"template")


def derived(
    path: Path, *, backend_id: str = BACKEND, template: ContentId | None = TEMPLATE, **config: object
) -> ShardIdentity:
    model = read_model(path)
    content = content_digest(model.logical_files)
    settings = GgufConfig(path, "tiny", **config)  # type: ignore[arg-type]
    return gguf_identity(model, content, settings, backend_id=backend_id, template=template, add_bos=False)


def axes(one: ShardIdentity, two: ShardIdentity) -> list[str]:
    return [mismatch.field for mismatch in explain(one, two)]


def test_the_content_of_one_file_is_what_sha256sum_prints(tiny):
    assert derived(tiny).artifact.content_digest == hashlib.sha256(tiny.read_bytes()).hexdigest()


def test_the_same_file_elsewhere_and_under_another_name_is_the_same(tiny, tmp_path):
    moved = tmp_path / "other" / "renamed.gguf"
    moved.parent.mkdir()
    shutil.copy(tiny, moved)
    assert derived(moved) == derived(tiny)


def test_shards_under_another_prefix_are_the_same(tmp_path):
    first = write_tiny_gguf(tmp_path / "a.gguf", shards=3)
    (tmp_path / "b").mkdir()
    for number in range(1, 4):
        shutil.copy(tmp_path / f"a-{number:05d}-of-00003.gguf", tmp_path / "b" / f"model-{number:05d}-of-00003.gguf")
    assert derived(first) == derived(tmp_path / "b")
    files = read_model(first).logical_files
    assert derived(first).artifact.content_digest == content_digest(dict(reversed(files.items())))


def test_one_byte_of_a_tensor_is_another_artifact(tiny, tmp_path):
    data = bytearray(tiny.read_bytes())
    data[read_model(tiny).tensors[0].offset + 5] ^= 1
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data)
    assert axes(derived(tiny), derived(changed)) == ["source_digest"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_type": "f16"}, ["kv_dtype"]),
        ({"flash_attention": False}, ["kv_layout"]),
        ({"threads": 2}, ["backend_id"]),
        ({"n_ubatch": 32}, ["backend_id"]),
        ({"use_extra_bufts": False}, ["backend_id"]),
        ({"eos_id": 1}, ["tokenizer_revision"]),
        ({"backend_id": BACKEND.replace("0.1.0", "0.1.1")}, ["runtime_version"]),
        ({"backend_id": BACKEND.replace("0123", "3210")}, ["runtime_version"]),
        ({"backend_id": BACKEND.replace("avx2", "avx512")}, ["backend_id"]),
        ({"template": ContentId.of_bytes(b"another")}, ["tokenizer_revision"]),
        ({"template": None}, ["tokenizer_revision"]),
        ({"context_tokens": 64, "slots": 1}, []),
    ],
)
def test_a_change_shows_on_its_axis_and_on_no_other(tiny, change, named):
    assert axes(derived(tiny), derived(tiny, **change)) == named


def test_another_model_differs_in_what_it_is(tiny, tmp_path):
    two = write_tiny_gguf(tmp_path / "two.gguf", quant="q4_0", layers=2, pre="qwen2")
    assert axes(derived(tiny), derived(two)) == [
        "source_digest", "architecture_digest", "layer_count", "weight_quantization", "tokenizer_revision",
    ]  # fmt: skip


def test_no_reference_moves(tiny):
    one = derived(tiny)
    assert one.artifact.revision == f"sha256:{one.artifact.content_digest}"
    assert one.recipe.tokenizer_revision.startswith("sha256:")
    assert one.artifact.artifact_id == "tiny-random-llama"
    assert (one.shard_start, one.shard_end, one.artifact.layer_count) == (0, 4, 4)


@contextlib.asynccontextmanager
async def started(path: Path, **config: object) -> AsyncIterator[GgufEngine]:
    engine = await GgufEngine.start(GgufConfig(path, "tiny", **config))  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        await engine.close()


def test_an_engine_says_what_it_is_and_its_settings_hold_the_axes(runner, engine, tiny):
    one = engine.identity
    assert one.artifact.content_digest == hashlib.sha256(tiny.read_bytes()).hexdigest()
    assert engine.settings["recipe"] == one.recipe.axes
    assert ShardIdentity.from_map(one.to_map()) == one
    assert one == derived(tiny, backend_id=engine.backend_id, template=engine.template_digest)


def test_a_child_with_another_library_does_not_come_up_again(tiny):
    async def main() -> None:
        async with started(tiny) as engine:
            # as if the library had been replaced since
            recipe = dataclasses.replace(engine.identity.recipe, runtime_version="xllamacpp/0/0000")
            engine.identity = dataclasses.replace(engine.identity, recipe=recipe)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            with pytest.raises(EngineError):  # heard of when the child's end is
                await engine.encode("a", special=False)
            with pytest.raises(IdentityChanged, match="runtime: runtime_version is 'xllamacpp/"):
                await engine.until_up()
            assert engine.pid is None
            with pytest.raises(IdentityChanged, match="expected 'xllamacpp/0/0000'"):
                await engine.ready()

    asyncio.run(main())
