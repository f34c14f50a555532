"""Which files of a Hugging Face model folder decide what it computes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mesh.errors import EncodingError, ModelFileError
from mesh.identity.document import parse_document
from mesh.identity.files import open_regular

MAX_INDEX_BYTES = 67_108_864

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Taken where they are there. Everything that turns text into ids or ids into text, the defaults of sampling, and how
# the weights are to be unpacked.
SIDE_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "hf_quant_config.json",
    "merges.txt",
    "quant_config.json",
    "quantization_config.json",
    "quantize_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
TEMPLATES = "additional_chat_templates"
# Servers read how the weights are packed from these too.
SIDE_CONFIGS = ("hf_quant_config.json", "quant_config.json", "quantization_config.json", "quantize_config.json")

_PLAIN_NAME = re.compile(r"[^/\\]+\.safetensors\Z")
_SHARD = re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors\Z")


def folder_files(folder: Path) -> Mapping[str, Path]:
    """The files by their path relative to `folder`: the config, the side files that are there, and the weights, either
    one safetensors file or an index and each shard it names.

    Raises ModelFileError where one of them is missing or one shard is too many, OSError where one cannot be read.
    """
    if not (folder / CONFIG).is_file():
        raise ModelFileError(f"{folder.name}: no {CONFIG} in this folder")
    names = [CONFIG, *(name for name in SIDE_FILES if (folder / name).exists())]
    names += sorted(f"{TEMPLATES}/{path.name}" for path in (folder / TEMPLATES).glob("*.jinja"))
    names += _weight_names(folder)
    for name in names:
        if not (folder / name).exists():
            raise ModelFileError(f"{name}: missing shard, named in {INDEX}")
    return {name: folder / name for name in names}


def _weight_names(folder: Path) -> list[str]:
    single, index = (folder / SINGLE).exists(), (folder / INDEX).exists()
    named = _index_names(folder / INDEX) if index else set()
    extra = sorted(path.name for path in folder.iterdir() if _SHARD.match(path.name) and path.name not in named)
    if extra:
        raise ModelFileError(f"{extra[0]}: extra shard, not named in {INDEX}")
    if index and single and SINGLE not in named:
        raise ModelFileError(f"{SINGLE}: beside {INDEX}, which does not name it; engines differ on which one they load")
    if not index and not single:
        raise ModelFileError(f"{folder.name}: neither {SINGLE} nor {INDEX} in this folder")
    return [INDEX, *sorted(named)] if index else [SINGLE]


def _index_names(path: Path) -> set[str]:
    """The files that an index names: each a plain name, in its own folder."""
    with open_regular(path) as file:
        raw = file.read(MAX_INDEX_BYTES + 1)
    try:
        index = parse_document(raw, INDEX, max_bytes=MAX_INDEX_BYTES)
    except EncodingError as e:
        raise ModelFileError(str(e)) from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{INDEX}: no weight_map, expected a map from tensor to file", field="weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or not _PLAIN_NAME.match(name) or not name.isprintable():
            raise ModelFileError(
                f"{INDEX}: {str(name)[:80]!r}, expected the name of a .safetensors file in this folder",
                field="weight_map",
            )
    return set(weight_map.values())
