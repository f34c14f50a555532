"""A pack as a registry takes it: an OCI image layout on disk with one config, one manifest and one layer."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mesh.errors import PackError
from mesh.identity.files import open_regular
from mesh.runtime.archive import read_pack
from mesh.runtime.descriptor import MEDIA_TYPE
from mesh.runtime.document import canonical
from mesh.runtime.draft import new_folder
from mesh.runtime.packing import CHUNK, Packed, Progress

CONFIG_TYPE: Final = "application/vnd.letsinfer.runtime.config.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
TITLE: Final = "runtime.letsinfer"
SOURCE: Final = "https://github.com/letsinferlabs/runtimes"  # where candidates of this format are published
_LAYOUT: Final = {"imageLayoutVersion": "1.0.0"}


@dataclass(frozen=True, slots=True)
class Image:
    """The two documents, as bytes; their digests are what a registry calls them."""

    config: bytes
    manifest: bytes

    @classmethod
    def of(cls, packed: Packed, *, source: str = SOURCE) -> Image:
        summary = packed.candidate.summary
        config = canonical(
            {"candidate": summary["id"], "media_type": MEDIA_TYPE, "schema_version": 1, "version": summary["version"]},
            newline=False,
        )
        manifest = canonical(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _described(CONFIG_TYPE, hashlib.sha256(config).hexdigest(), len(config)),
                "layers": [
                    _described(MEDIA_TYPE, packed.archive_sha256, packed.archive_bytes)
                    | {"annotations": {"org.opencontainers.image.title": TITLE}}
                ],
                "annotations": {
                    "ai.letsinfer.candidate": summary["id"],
                    "ai.letsinfer.version": summary["version"],
                    "org.opencontainers.image.source": source,
                },
            },
            newline=False,
        )
        return cls(config, manifest)

    @property
    def manifest_digest(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(self.manifest).hexdigest()


def write_layout(
    pack: Path, target: Path, *, source: str = SOURCE, progress: Progress | None = None
) -> tuple[Packed, Image]:
    """Verify `pack` and write the layout into the new folder `target`, whole or not at all. Raises PackError,
    CandidateError, OSError."""
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    if not target.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent))
    with open_regular(pack) as file:
        packed = read_pack(file, progress=progress)
        image = Image.of(packed, source=source)
        file.seek(0)
        with new_folder(target) as draft:
            blobs = draft / "blobs" / "sha256"
            blobs.mkdir(parents=True)
            with (blobs / packed.archive_sha256).open("xb") as layer:
                shutil.copyfileobj(file, layer, CHUNK)
            with (blobs / packed.archive_sha256).open("rb") as layer:
                if hashlib.file_digest(layer, "sha256").hexdigest() != packed.archive_sha256:
                    raise PackError(f"{pack.name}: changed while it was copied")
            for document in (image.config, image.manifest):
                (blobs / hashlib.sha256(document).hexdigest()).write_bytes(document)
            (draft / "oci-layout").write_bytes(canonical(_LAYOUT, newline=False))
            (draft / "index.json").write_bytes(canonical(_index(packed, image), newline=False))
    return packed, image


def _index(packed: Packed, image: Image) -> dict[str, Any]:
    # a tag may hold no +
    tag = packed.candidate.version.replace("+", "_")
    entry = _described(MANIFEST_TYPE, image.manifest_digest, len(image.manifest))
    return {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [entry | {"annotations": {"org.opencontainers.image.ref.name": tag}}],
    }


def _described(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}
