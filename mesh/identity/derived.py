"""The identity of an artifact, read off its files: nothing in it is anybody's word, and no reference moves."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mesh.errors import ModelFileError, SchemaError
from mesh.identity.artifact import ArtifactIdentity
from mesh.identity.canonical_json import canonical_sha256
from mesh.identity.fields import check_text
from mesh.identity.metadata import GgufArray, Metadata
from mesh.identity.model import GgufModel
from mesh.identity.sha256 import sha256_listing

_FLOATS: Final = {"f32": ">f", "f64": ">d"}


def content_digest(files: Mapping[str, Path]) -> str:
    """64 hex digits over every byte of `files`, keyed by their logical names. Of one file what `sha256sum` prints,
    whatever it is called; of several SHA-256 over the canonical JSON of {"files": [[name, its SHA-256], ...]}, sorted
    by the names' UTF-8 bytes. Raises ModelFileError for what is no file, OSError where one cannot be read."""
    return listed_digest(sha256_listing(files))


def listed_digest(listing: Sequence[Sequence[str]]) -> str:
    """The same of a listing that somebody made, sorted as it is."""
    if len(listing) == 1:
        ((_, digest),) = listing
        return digest
    return canonical_sha256({"files": [list(entry) for entry in listing]})


def pinned(content: str) -> str:
    """A content digest as a revision."""
    return f"sha256:{content}"


def label(*candidates: str | None) -> str:
    """The first that may be a label."""
    for candidate in candidates[:-1]:
        try:
            return check_text(candidate, "label")
        except SchemaError:
            continue
    return check_text(candidates[-1], "label")


def gguf_artifact(model: GgufModel, content: str) -> ArtifactIdentity:
    """Of a model whose files have the digest `content`. The layers that only predict ahead are not counted: no forward
    needs them. Raises ModelFileError for a file that does not say how many layers there are."""
    header = model.header
    architecture, blocks = header.architecture, header.block_count
    field = f"{architecture}.block_count"
    ahead = header.metadata.integer(f"{architecture}.nextn_predict_layers") or 0
    if architecture is None or blocks is None:
        raise ModelFileError(f"{header.label}: {field} is missing, expected the number of layers", field=field)
    if not blocks - ahead > 0:
        raise header.metadata.fault(field, f"{blocks}, of which {ahead} only predict ahead, expected at least one more")
    return ArtifactIdentity(
        artifact_id=label(header.name, architecture),
        revision=pinned(content),
        content_digest=content,
        architecture=architecture,
        architecture_digest=architecture_digest(header.metadata, architecture),
        layer_count=blocks - ahead,
    )


def architecture_digest(metadata: Metadata, architecture: str) -> str:
    """64 hex digits over every field that a file has under the name of its architecture: a map from each name to its
    kind and value. Floats are their bits in hex, arrays their element kind, length and bytes in hex."""
    return canonical_sha256({key: _spelled(metadata, key) for key in metadata if key.startswith(f"{architecture}.")})


def _spelled(metadata: Metadata, key: str) -> list[str | int | bool]:
    value, kind = metadata[key], metadata.kind(key) or ""
    if isinstance(value, GgufArray):
        return [kind, value.kind, value.count, value.data.hex()]
    return [kind, struct.pack(_FLOATS[kind], value).hex() if isinstance(value, float) else value]
