"""A catalogue of candidates: `manifest.json`, made from their folders and never written by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from mesh.errors import CandidateError, ModelFileError, PackError
from mesh.identity.files import open_regular
from mesh.runtime.candidate import DOCUMENT, Candidate
from mesh.runtime.faults import Fault, raise_faults
from mesh.runtime.launching import launch_faults
from mesh.runtime.limits import MAX_DOCUMENT_BYTES
from mesh.runtime.packing import Progress, describe
from mesh.runtime.release import CONSENSUS, Release
from mesh.runtime.release import DOCUMENT as RELEASE

MANIFEST: Final = "manifest.json"
SCHEMA_VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 64 << 20


def read_small(path: Path) -> bytes:
    """At most a document's bytes and one more. Raises ModelFileError for what is no regular file, OSError."""
    with open_regular(path) as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)


def read_folder(folder: Path) -> Candidate:
    """The candidate in a folder. Raises CandidateError, OSError."""
    return Candidate.from_json(read_small(folder / DOCUMENT), what=f"{folder.name}/{DOCUMENT}")


def read_release(folder: Path) -> Release:
    """What is published beside it. Raises CandidateError, OSError."""
    consensus = os.path.lexists(folder / CONSENSUS)
    return Release.from_json(read_small(folder / RELEASE), what=f"{folder.name}/{RELEASE}", consensus=consensus)


def check_name(folder: Path, candidate: Candidate) -> None:
    """Raises CandidateError where a folder is not called as the candidate in it."""
    name = folder.resolve().name
    if name != candidate.id:
        raise_faults([Fault("id", f"expected the folder's name, {name!r}, got {candidate.id!r}")], name)


def entry(folder: Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """One candidate as the catalogue lists it. Raises CandidateError, PackError, OSError."""
    candidate, descriptor, _ = describe(folder, progress=progress)
    check_name(folder, candidate)
    release = read_release(folder)
    distribution = candidate.engine.distribution
    listed: dict[str, Any] = {
        **candidate.summary,
        "distribution": distribution.kind,
        "platform": candidate.target.platform,
        "runtime_sha256": descriptor.runtime_sha256,
        "runtime_digest": f"sha256:{descriptor.digest}",
        "files": len(descriptor.files),
        "bytes": sum(file.bytes for file in descriptor.files),
        "launchable": not launch_faults(candidate),
        "authors": [author.model_dump() for author in release.authors],
        "license": release.license,
        "provenance": None if release.provenance is None else release.provenance.model_dump(),
    }
    return listed if distribution.payload_id is None else {**listed, "payload_id": distribution.payload_id}


def manifest(root: Path, *, progress: Progress | None = None) -> bytes:
    """The manifest of every candidate in a folder of `root`: one for each folder that holds a runtime.json. All that is
    wrong with any of them is told at once. Raises CandidateError, OSError."""
    entries, wrong = [], []
    for name in sorted(os.listdir(root)):
        if not os.path.lexists(root / name / DOCUMENT):
            continue
        try:
            entries.append(entry(root / name, progress=progress))
        except (CandidateError, ModelFileError) as e:
            wrong.append(str(e) if str(e).startswith(name) else f"{name}: {e}")
        except FileNotFoundError as e:
            wrong.append(f"{name}: no {Path(e.filename).name}")
    if wrong:
        raise CandidateError("; ".join(wrong))
    value = {"schema_version": SCHEMA_VERSION, "runtimes": entries}
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def check_manifest(root: Path, *, progress: Progress | None = None) -> None:
    """Raises PackError, naming the first candidate that differs, where manifest.json is not what the folders give;
    CandidateError, OSError."""
    made = manifest(root, progress=progress)
    with open_regular(root / MANIFEST) as file:
        there = file.read(MAX_MANIFEST_BYTES + 1)
    if there == made:
        return
    expected = {each["id"]: each for each in json.loads(made)["runtimes"]}
    try:
        found = {str(each["id"]): dict(each) for each in json.loads(there)["runtimes"]}
    except (ValueError, RecursionError, KeyError, TypeError):
        raise PackError(f"{MANIFEST}: not one that was generated") from None
    for id_ in sorted(expected.keys() | found.keys()):
        if id_ not in found:
            raise PackError(f"{MANIFEST}: {id_}: not listed")
        if id_ not in expected:
            raise PackError(f"{MANIFEST}: {id_!a}: listed, and there is no such candidate")
        for name, value in expected[id_].items():
            if found[id_].get(name) != value:
                raise PackError(f"{MANIFEST}: {id_}: {name} is not what the folder gives")
    raise PackError(f"{MANIFEST}: not the bytes that its candidates give: edited by hand, or by another version")
