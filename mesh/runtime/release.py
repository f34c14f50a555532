"""`release.json` of schema 2: who made a candidate and under which licence. It is published and never packed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from mesh.runtime.document import parse
from mesh.runtime.faults import Contradiction, Fault, Table, faults_of, raise_faults, shown
from mesh.runtime.kinds import HttpsUrl, License, Login, Positive, Repository, Revision, Sha256, equal
from mesh.runtime.limits import MAX_AUTHORS

SCHEMA_VERSION: Final = 2
DOCUMENT: Final = "release.json"
CONSENSUS: Final = "benchmark.consensus.json"


class Author(Table):
    github_login: Login
    github_id: Positive
    github_type: Literal["User", "Organization"]


class Provenance(Table):
    """What the qualification of a release left behind; only its automation writes it."""

    consensus_sha256: Sha256
    execution_sha256: Sha256
    proposal_head_sha: Revision
    pull_request: Positive
    pull_request_url: HttpsUrl
    qualified_commit_sha: Revision
    repository: Repository


def _each_once(authors: list[Author]) -> list[Author]:
    ids = [author.github_id for author in authors]
    if faults := [Fault(f"[{at}].github_id", "is that of another author too") for at, id_ in enumerate(ids)
                  if id_ in ids[:at]]:  # fmt: skip
        raise Contradiction(faults)
    return authors


class Release(Table):
    schema_version: Annotated[int, equal(SCHEMA_VERSION)]
    authors: Annotated[list[Author], Field(min_length=1, max_length=MAX_AUTHORS), AfterValidator(_each_once)]
    license: License
    provenance: Provenance | None

    @classmethod
    def from_json(cls, data: bytes, *, what: str = DOCUMENT, consensus: bool | None = None) -> Self:
        """`consensus`: whether there is a benchmark.consensus.json beside it, None where nobody looked. Raises
        CandidateError naming every field at fault by its path."""
        document = parse(data, what)
        raise_faults(release_faults(document, consensus=consensus), what)
        return cls.model_validate(document)


def release_faults(document: Any, *, consensus: bool | None = None) -> list[Fault]:
    """Everything that is wrong with a document, in the order in which readers look."""
    if not isinstance(document, dict):
        return [Fault("", f"expected an object, got {shown(document)}")]
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        got = f", got {shown(version)}" if "schema_version" in document else ", and it is missing"
        return [Fault("schema_version", f"expected {SCHEMA_VERSION}{got}")]
    try:
        release = Release.model_validate(document)
    except ValidationError as e:
        return faults_of(e)
    return list(_of_consensus(release, consensus))


def _of_consensus(release: Release, consensus: bool | None) -> Iterator[Fault]:
    if consensus is True and release.provenance is None:
        yield Fault("provenance", f"expected to be set, as there is a {CONSENSUS}")
    if consensus is False and release.provenance is not None:
        yield Fault("provenance", f"expected null, as there is no {CONSENSUS}")
