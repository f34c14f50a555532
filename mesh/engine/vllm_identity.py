"""What a vLLM server is, axis by axis: from the model's folder, from what the server says, and from what only the
operator knows. What nobody said has no default: then there is no identity, and the axis is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from mesh.engine.hf_model import HfModel, read_hf_model
from mesh.engine.seam import BOUNDARY_SCHEMA, PROTOCOL_SCHEMA
from mesh.engine.vllm_described import ServerFacts, VllmConfig, degrees
from mesh.errors import EngineUnidentified
from mesh.identity.artifact import ArtifactIdentity
from mesh.identity.canonical_json import canonical_sha256
from mesh.identity.derived import content_digest, label, pinned
from mesh.identity.folder import CONFIG, SIDE_CONFIGS, folder_files
from mesh.identity.recipe import RuntimeRecipe
from mesh.identity.safetensors import tensor_digests
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId

_FIXED_CACHE_LABEL: Final = "auto"  # as wide as what is computed in


@dataclass(frozen=True, slots=True)
class WeightsFolder:
    """What a model folder says of itself, and two digests of 64 hex digits: `content` over the weights alone, `config`
    over what says how they are put together."""

    model: HfModel
    content: str
    config: str
    files: Mapping[str, Path] = field(default_factory=dict, repr=False)

    def tensors(self) -> Mapping[str, str]:
        """The digest of each tensor. Reads every byte. Raises ModelFileError, OSError."""
        return tensor_digests(self.files)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Reads every byte. Raises ModelFileError, OSError."""
        files = folder_files(folder)
        weights = {name: path for name, path in files.items() if name.endswith(".safetensors")}
        configs = {name: files[name] for name in (CONFIG, *SIDE_CONFIGS) if name in files}
        return cls(read_hf_model(folder), content_digest(weights), content_digest(configs), weights)


def vllm_identity(
    facts: ServerFacts,
    config: VllmConfig,
    folder: WeightsFolder | None,
    *,
    tokenizer: bytes | None,
    template: ContentId | None,
) -> ShardIdentity:
    """Raises EngineUnidentified naming the first axis that nobody knows, and what would tell."""
    if folder is None:
        raise EngineUnidentified("artifact.content_digest: not known: name the model's folder (weights)")
    model = folder.model
    if model.layer_count is None:
        raise EngineUnidentified("artifact.layer_count: not known: config.json has no num_hidden_layers")
    if model.architecture is None or model.adapter is None:
        raise EngineUnidentified("artifact.architecture: not known: config.json has no model_type or architectures")
    if config.requantized:
        raise EngineUnidentified("recipe.weight_quantization: not known: the server quantizes while it loads")
    if config.dtype is None:
        raise EngineUnidentified("recipe.activation_dtype: not known: the server does not say: tell it (dtype)")
    if config.device is None:
        raise EngineUnidentified("recipe.backend_id: not known: the server does not say its device: tell it (device)")
    if tokenizer is None:
        raise EngineUnidentified("recipe.tokenizer_revision: not known: name the model's folder (weights)")
    if "cache_dtype" not in facts.cache:
        raise EngineUnidentified("recipe.kv_dtype: not known: the server does not say its cache_dtype")
    artifact = ArtifactIdentity(
        artifact_id=label(facts.root, facts.model, model.architecture),
        revision=pinned(folder.content),
        content_digest=folder.content,
        architecture=model.architecture,
        architecture_digest=folder.config,
        layer_count=model.layer_count,
    )
    kv_dtype, kv_layout = cache_axes(facts.cache, config.dtype)
    text = {"tokenizer": tokenizer.hex(), "template": None if template is None else template.hex()}
    recipe = RuntimeRecipe(
        weight_quantization=model.precision(config.dtype) or "none",
        activation_dtype=config.dtype,
        compute_dtype=config.dtype,
        kv_dtype=kv_dtype,
        kv_layout=kv_layout,
        tokenizer_revision=pinned(canonical_sha256(text)),
        architecture_adapter=f"vllm/{model.adapter}",
        backend_id=f"vllm/{config.device}{_parallel(facts)}",
        runtime_version=f"vllm/{facts.version}",
        boundary_schema_version=BOUNDARY_SCHEMA,
        protocol_schema_version=PROTOCOL_SCHEMA,
        recipe_id=label(config.recipe_id, facts.model, "unnamed"),
        recipe_version="0" if config.candidate is None else config.candidate["version"],
    )
    return ShardIdentity(artifact, recipe, 0, artifact.layer_count)


def cache_axes(cache: Mapping[str, str], dtype: str) -> tuple[str, str]:
    """Type and layout of the cache by the server's own labels, of one that computes in `dtype`."""
    kept = cache["cache_dtype"]
    layout = " ".join(f"{name}={cache.get(name, 'none')}" for name in ("block_size", "enable_prefix_caching"))
    return (dtype if kept == _FIXED_CACHE_LABEL else kept), f"paged {layout}"


def identified(
    facts: ServerFacts,
    config: VllmConfig,
    folder: WeightsFolder | None,
    *,
    tokenizer: bytes | None,
    template: ContentId | None,
) -> tuple[ShardIdentity | None, str | None]:
    """The identity, or why there is none."""
    try:
        return vllm_identity(facts, config, folder, tokenizer=tokenizer, template=template), None
    except EngineUnidentified as e:
        return None, str(e)


def _parallel(facts: ServerFacts) -> str:
    return "".join(f" {name}={count}" for name, count in sorted(degrees(facts).items()))
