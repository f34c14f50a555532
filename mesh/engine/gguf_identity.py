"""What a GGUF engine is, axis by axis: from the files, the library and the settings that it runs with."""

from __future__ import annotations

from typing import Final

from mesh.engine.gguf_described import GgufConfig, tokenizer_digest
from mesh.engine.seam import BOUNDARY_SCHEMA, PROTOCOL_SCHEMA
from mesh.identity.canonical_json import canonical_sha256
from mesh.identity.derived import gguf_artifact, label, pinned
from mesh.identity.model import GgufModel
from mesh.identity.recipe import RuntimeRecipe
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId

# What llama.cpp's CPU kernels keep between two operations, and sum products in, whatever the weights are.
_ACTIVATIONS: Final = "f32"


def gguf_identity(
    model: GgufModel,
    content: str,
    config: GgufConfig,
    *,
    backend_id: str,
    template: ContentId | None,
    add_bos: bool,
) -> ShardIdentity:
    """`content` is the content digest of the files, `backend_id` that of the engine. Raises ModelFileError for a file
    that does not say what it is."""
    artifact = gguf_artifact(model, content)
    _, version, library, isa, device, _ = backend_id.split("/")
    numbers = {name: getattr(config, name) for name in ("n_batch", "n_ubatch", "threads", "batch_threads")}
    kernels = " ".join(
        f"{name}={value}" for name, value in {**numbers, "repack": _word(config.use_extra_bufts)}.items()
    )
    text = {
        "tokenizer": tokenizer_digest(model.header.metadata).hex(),
        "template": None if template is None else template.hex(),
        "add_bos": add_bos,
        "overrides": [list(pair) for pair in config.overrides],
    }
    recipe = RuntimeRecipe(
        weight_quantization=model.precision or "none",
        activation_dtype=_ACTIVATIONS,
        compute_dtype=_ACTIVATIONS,
        kv_dtype=config.kv_type,
        kv_layout=f"contiguous flash_attention={_word(config.flash_attention)}",
        tokenizer_revision=pinned(canonical_sha256(text)),
        architecture_adapter=f"llama.cpp/{artifact.architecture}",
        backend_id=f"llama.cpp/{isa}/{device} {kernels}",
        runtime_version=f"xllamacpp/{version}/{library}",
        boundary_schema_version=BOUNDARY_SCHEMA,
        protocol_schema_version=PROTOCOL_SCHEMA,
        recipe_id=label(config.recipe_id, "unnamed"),
        recipe_version="0" if config.candidate is None else config.candidate["version"],
    )
    return ShardIdentity(artifact, recipe, 0, artifact.layer_count)


def _word(on: bool) -> str:
    return "on" if on else "off"
