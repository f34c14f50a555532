"""`letsinfer-runtime.json`, the first member of a pack: every other one with its length, mode and SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError

from mesh.errors import PackError
from mesh.runtime.candidate import DOCUMENT, Candidate
from mesh.runtime.document import canonical, parse
from mesh.runtime.faults import Fault, Table, faults_of
from mesh.runtime.kinds import Natural, Safe, Sha256, Version, equal
from mesh.runtime.limits import MAX_DESCRIPTOR_BYTES, MAX_DESCRIPTOR_PARTS, MAX_FILES, MAX_PAYLOAD_BYTES
from mesh.runtime.names import check_path, check_together
from mesh.runtime.tree import DESCRIPTOR, EXECUTABLE, PLAIN

MEDIA_TYPE: Final = "application/vnd.letsinfer.runtime.v6+tar"
ARTIFACT_SCHEMA_VERSION: Final = 6


class PackedFile(Table):
    path: str
    bytes: Natural
    mode: int
    sha256: Sha256

    def contradictions(self) -> Iterator[Fault]:
        if self.mode not in (PLAIN, EXECUTABLE):
            yield Fault("mode", f"expected 420 (0644) or 493 (0755), got {self.mode}")


class Summary(Table):
    id: str
    version: Version
    logical_model: Safe
    engine: Safe
    target: Safe


class Descriptor(Table):
    artifact_schema_version: Annotated[int, equal(ARTIFACT_SCHEMA_VERSION)]
    media_type: Literal["application/vnd.letsinfer.runtime.v6+tar"]
    runtime_sha256: Sha256
    candidate: Summary
    files: Annotated[list[PackedFile], Field(min_length=1, max_length=MAX_FILES)]

    def contradictions(self) -> Iterator[Fault]:
        document = next((file for file in self.files if file.path == DOCUMENT), None)
        if document is None:
            yield Fault("files", f"no {DOCUMENT}")
        elif document.sha256 != self.runtime_sha256:
            yield Fault("runtime_sha256", f"expected that of {DOCUMENT}, {document.sha256}, got {self.runtime_sha256}")
        total = sum(file.bytes for file in self.files)
        if total > MAX_PAYLOAD_BYTES:
            yield Fault("files", f"{total} bytes together, expected at most {MAX_PAYLOAD_BYTES}")

    @classmethod
    def made(cls, candidate: Candidate, files: list[PackedFile]) -> Self:
        """Raises PackError where it would be over its bound."""
        runtime_sha256 = next(file.sha256 for file in files if file.path == DOCUMENT)
        made = cls(
            artifact_schema_version=ARTIFACT_SCHEMA_VERSION, media_type=MEDIA_TYPE, runtime_sha256=runtime_sha256,
            candidate=Summary(**candidate.summary), files=files,
        )  # fmt: skip
        if len(made.to_json()) > MAX_DESCRIPTOR_BYTES:
            raise PackError(f"{DESCRIPTOR}: over {MAX_DESCRIPTOR_BYTES} bytes: the paths are too long")
        return made

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """The descriptor in a pack, whose paths are ones that may be written. Raises PackError, CandidateError."""
        document = parse(data, DESCRIPTOR, max_bytes=MAX_DESCRIPTOR_BYTES, max_parts=MAX_DESCRIPTOR_PARTS)
        try:
            made = cls.model_validate(document)
        except ValidationError as e:
            raise PackError(f"{DESCRIPTOR}: " + "; ".join(map(str, faults_of(e)[:_SHOWN]))) from None
        for file in made.files:
            check_path(file.path)
        paths = [file.path for file in made.files]
        check_together(paths)
        if DESCRIPTOR in paths:
            raise PackError(f"member {DESCRIPTOR!r}: listed by itself")
        if paths != sorted(paths):
            raise PackError(f"{DESCRIPTOR}: files: expected them by path")
        if made.to_json() != data:
            raise PackError(f"{DESCRIPTOR}: not the canonical spelling of what it says")
        return made

    def to_json(self) -> bytes:
        return canonical(self.model_dump())

    @property
    def digest(self) -> str:
        """The runtime's digest: SHA-256 of the descriptor, 64 hex digits."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def check_candidate(self, candidate: Candidate) -> None:
        """Raises PackError where `candidate` is another than the one it names."""
        for name, value in candidate.summary.items():
            if (said := getattr(self.candidate, name)) != value:
                raise PackError(f"{DESCRIPTOR}: candidate.{name}: {said!r}, {DOCUMENT} has {value!r}")


_SHOWN: Final = 20
