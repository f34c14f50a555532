"""The models of a candidate: where they come from, and what pins them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mesh.runtime.faults import Fault, Table, repeated
from mesh.runtime.kinds import GgufName, ImageReference, ModelUri, Positive, Revision, Safe, Sha256


class OciAcquisition(Table):
    kind: Literal["oci-container"]
    image: ImageReference


class HttpAcquisition(Table):
    kind: Literal["huggingface-http"]
    client: Literal["huggingface-http-v1"]


class Model(Table):
    uri: ModelUri
    artifact: Safe
    acquisition: Annotated[OciAcquisition | HttpAcquisition, Field(discriminator="kind")]


def repository_of(uri: str) -> str:
    """`owner/repository` of an hf:// URI."""
    return uri.removeprefix("hf://")


class _Artifact(Table):
    name: Safe
    uri: ModelUri
    revision: Revision

    @property
    def folder(self) -> str:
        """Where it lies below a folder of models: equal revisions of different candidates are one."""
        return f"{repository_of(self.uri).lower().replace('/', '--')}/{self.revision}"


class Snapshot(_Artifact):
    format: Literal["huggingface-snapshot"]


class GgufFile(_Artifact):
    format: Literal["gguf-file"]
    filename: GgufName
    sha256: Sha256
    bytes: Positive | None = None


Artifact = Annotated[Snapshot | GgufFile, Field(discriminator="format")]


def contradictions(artifacts: list[Snapshot | GgufFile]) -> Iterator[Fault]:
    """The rules of the list by itself."""
    names = [artifact.name for artifact in artifacts]
    for at, name in repeated(names):
        yield Fault(f"[{at}].name", f"{name!r} is the name of another artifact too")
    for at in range(2, len(names)):
        if names[at] < names[at - 1]:
            yield Fault(f"[{at}].name", f"expected the artifacts after the first by name, got {names[at]!r} late")
