"""What `mesh runtime validate` finds in a file or a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.errors import CandidateError, MeshError, ModelFileError

if TYPE_CHECKING:
    from mesh.runtime.candidate import Candidate


SUFFIX = ".letsinfer"  # of packs


@dataclass(frozen=True, slots=True)
class Found:
    """One fault: in which file, where the document is not the only one, at which path."""

    file: str
    path: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.path, self.what) if part)

    def to_map(self) -> dict[str, str]:
        return {"file": self.file, "path": self.path, "fault": self.what}


@dataclass(frozen=True, slots=True)
class Examined:
    """`what` was looked at, in a few words; `summary` names the candidate, where it could be read. `faults` keep it
    from being packed, `launch` from being launched, `publication` from being listed in a catalogue."""

    what: str
    summary: dict[str, str] | None = None
    faults: list[Found] = field(default_factory=list)
    launch: list[Found] = field(default_factory=list)
    publication: list[Found] = field(default_factory=list)

    def first(self, *, launch: bool) -> Examined:
        if self.faults or (launch and self.launch):
            rest = [] if self.faults else self.launch[:1]
            return replace(self, faults=self.faults[:1], launch=rest, publication=[])
        return replace(self, launch=self.launch[:1], publication=self.publication[:1])

    def to_map(self) -> dict[str, Any]:
        return {
            "candidate": self.summary,
            "faults": [fault.to_map() for fault in self.faults],
            "would_not_launch": [fault.to_map() for fault in self.launch],
            "publication": [fault.to_map() for fault in self.publication],
        }


def examined(path: Path) -> Examined:
    """Raises OSError where there is nothing to look at, ModelFileError for what is neither file nor folder."""
    from mesh.runtime.catalogue import read_small
    from mesh.runtime.release import DOCUMENT as RELEASE
    from mesh.runtime.release import Release

    if path.is_dir():
        return _of_folder(path)
    data = read_small(path)
    if path.suffix == SUFFIX or data[257:262] == b"ustar":
        return _of_pack(path)
    if path.name == RELEASE:
        found = Examined(f"{path}")
        try:
            Release.from_json(data, what=path.name)
        except CandidateError as e:
            found.faults.extend(_faults(e, path.name))
        return found
    return _of_document(data, path.name, str(path))


def _of_pack(path: Path) -> Examined:
    from mesh.runtime.launching import launch_faults
    from mesh.runtime.unpacking import verify

    try:
        candidate = verify(path).candidate
    except CandidateError as e:
        return Examined(str(path), faults=_faults(e, path.name))
    launch = [Found(path.name, fault.path, fault.what) for fault in launch_faults(candidate)]
    return Examined(_words(candidate), candidate.summary, launch=launch)


def _of_document(data: bytes, name: str, what: str) -> Examined:
    from mesh.runtime.candidate import Candidate
    from mesh.runtime.launching import launch_faults

    try:
        candidate = Candidate.from_json(data, what=name)
    except CandidateError as e:
        return Examined(what, faults=_faults(e, name))
    launch = [Found(name, fault.path, fault.what) for fault in launch_faults(candidate)]
    return Examined(_words(candidate), candidate.summary, launch=launch)


def _of_folder(folder: Path) -> Examined:
    """Also what only shows where several files are together."""
    from mesh.runtime.candidate import DOCUMENT, Candidate
    from mesh.runtime.catalogue import check_name, read_release, read_small
    from mesh.runtime.release import DOCUMENT as RELEASE
    from mesh.runtime.tree import source_files

    try:
        data = read_small(folder / DOCUMENT)
    except ModelFileError as e:
        return Examined(str(folder), faults=[Found("", "", str(e))])
    found = _of_document(data, DOCUMENT, str(folder))
    try:
        source_files(folder)
    except MeshError as e:
        found.faults.append(Found("", "", str(e)))
    if found.summary is not None:
        try:
            check_name(folder, Candidate.from_json(data))
        except CandidateError as e:
            found.publication.extend(_faults(e, DOCUMENT))
    if not os.path.lexists(folder / RELEASE):
        found.publication.append(Found(RELEASE, "", "missing"))
        return found
    try:
        read_release(folder)
    except CandidateError as e:
        found.publication.extend(_faults(e, RELEASE))
    except ModelFileError as e:
        found.publication.append(Found("", "", str(e)))
    return found


def _words(candidate: Candidate) -> str:
    return f"{candidate.id} {candidate.version}"


def _faults(error: CandidateError, name: str) -> list[Found]:
    if error.faults:
        return [Found(name, fault["path"], fault["fault"]) for fault in error.faults]
    return [Found("", "", str(error))]
