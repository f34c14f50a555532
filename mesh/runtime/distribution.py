"""Where an engine comes from: a closed union, each with its pins."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mesh.runtime.faults import Table
from mesh.runtime.kinds import (
    BundleId,
    HttpsUrl,
    ImageReference,
    PlainVersion,
    Platform,
    PythonVersion,
    RelativePath,
    Revision,
    Safe,
    Sha256,
    Sha256Id,
)
from mesh.runtime.limits import MAX_ARCHIVE_BYTES, MAX_PORTS

_MAX_EMBEDDED_CHARS = 128


class OciContainer(Table):
    kind: Literal["oci-container"]
    reference: ImageReference
    immutable_id: Sha256Id
    base: ImageReference | None = None
    payload_id: Sha256Id | None = None

    @property
    def bound(self) -> str:
        """What contracts before schema 8 name the engine by."""
        return self.immutable_id


class _Native(Table):
    platform: Platform
    payload_id: Sha256Id
    source_revision: Revision
    entrypoint: RelativePath

    @property
    def bound(self) -> str:
        return self.payload_id


class Archive(Table):
    url: HttpsUrl
    sha256: Sha256
    bytes: Annotated[int, Field(ge=1, le=MAX_ARCHIVE_BYTES)]
    format: Literal["tar.gz", "zip"]
    strip_prefix: RelativePath


class NativeArchive(_Native):
    kind: Literal["native-archive"]
    port_count: Annotated[int, Field(ge=2, le=MAX_PORTS)]
    archive: Archive
    upstream_executable: RelativePath


class Python(Table):
    implementation: Literal["cpython"]
    version: PythonVersion
    archive: Archive


class PythonStandalone(_Native):
    kind: Literal["python-standalone"]
    port_count: Annotated[int, Field(ge=2, le=MAX_PORTS)]
    python: Python
    requirements_lock: RelativePath


def _short(text: str) -> str:
    if len(text) > _MAX_EMBEDDED_CHARS:
        raise ValueError(f"over {_MAX_EMBEDDED_CHARS} characters")
    return text


class EmbeddedApplication(_Native):
    kind: Literal["embedded-application"]
    port_count: Annotated[int, Field(ge=1, le=MAX_PORTS)]
    bundle_id: BundleId
    signing_policy: Literal["deployment-managed"]
    minimum_version: PlainVersion
    embedded_engine: Annotated[Safe, AfterValidator(_short)]


Distribution = Annotated[
    OciContainer | NativeArchive | PythonStandalone | EmbeddedApplication, Field(discriminator="kind")
]
