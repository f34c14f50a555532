"""`mesh runtime`: candidates of others and our own: checked, packed, unpacked, described to a registry, listed."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli import runtime_bench
from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import CANDIDATE_FLAGS, ENGINE_FLAGS, add_candidate_flags
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.newfile import check_new, rewrite, write_new
from mesh.cli.progress import following
from mesh.cli.serve import add_flags
from mesh.cli.serve import run as run_serving

if TYPE_CHECKING:
    from mesh.runtime.packing import Packed


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "runtime",
        help="runtime candidates: check, pack, serve and measure them",
        description="A candidate is a folder with a runtime.json of schema 6, which says what serves a model, where.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    validating = actions.add_parser(
        "validate",
        help="every rule of the format, and every fault by its field; exit 10 where there is one",
        description="What could be packed and would not launch is told apart and, without --launch, refuses nothing.",
    )
    validating.add_argument(
        "path", metavar="FILE-OR-FOLDER", help="a runtime.json, a release.json, their folder or a pack"
    )
    validating.add_argument("--first", action="store_true", help="the first fault alone")
    validating.add_argument("--launch", action="store_true", help="what would not launch is refused too")
    validating.set_defaults(run=run_validate)

    packing = actions.add_parser("pack", help="a folder into a pack, to the same bytes as everybody else's")
    packing.add_argument("folder", metavar="FOLDER", help="the candidate")
    packing.add_argument("--out", metavar="FILE", help="the pack; must not exist (ID-VERSION.letsinfer)")
    packing.set_defaults(run=run_pack)

    unpacking = actions.add_parser("unpack", help="a pack into a new or empty folder, all of it or nothing")
    unpacking.add_argument("pack", metavar="PACK", help="the pack")
    unpacking.add_argument("--out", required=True, metavar="FOLDER", help="where; new or empty")
    unpacking.set_defaults(run=run_unpack)

    verifying = actions.add_parser("verify", help="read a pack to its end, write nothing, and say what it is")
    verifying.add_argument("pack", metavar="PACK", help="the pack")
    verifying.add_argument("--digest", metavar="SHA256", help="of the archive or of the runtime: another is refused")
    verifying.set_defaults(run=run_verify)

    describing = actions.add_parser("oci", help="a pack as an OCI image layout, for a registry's own tools to push")
    describing.add_argument("pack", metavar="PACK", help="the pack")
    describing.add_argument("--out", required=True, metavar="FOLDER", help="the layout; must not exist")
    describing.add_argument("--source", metavar="URL", help="what the manifest names as its source")
    describing.set_defaults(run=run_oci)

    indexing = actions.add_parser(
        "index",
        help="write the manifest.json of a folder of candidates",
        description="It is made from the folders alone. --check writes nothing; exit 10 where it is not current.",
    )
    indexing.add_argument("folder", metavar="FOLDER", help="holds a folder for each candidate, named by its id")
    indexing.add_argument("--check", action="store_true", help="say whether manifest.json is what would be written")
    indexing.set_defaults(run=run_index)

    serving = actions.add_parser(
        "serve",
        help="serve a candidate, held to its models' pins and its measured limits",
        description="As `mesh serve --runtime`. What cannot run here as the candidate says is refused by its field.",
    )
    serving.add_argument("runtime", metavar="CANDIDATE", help="its folder or its pack")
    add_candidate_flags(serving)
    add_flags(serving)
    serving.set_defaults(**{flag: None for flag in ("config", *ENGINE_FLAGS) if flag not in CANDIDATE_FLAGS})
    serving.set_defaults(run=run_serving)

    benching = runtime_bench.add(actions)

    for action in (validating, packing, unpacking, verifying, describing, indexing, benching):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run_validate(args: argparse.Namespace) -> int:
    from mesh.cli.validating import examined

    found = examined(Path(args.path))
    refusing = [*found.faults, *(found.launch if args.launch else [])]
    if args.first:
        found = found.first(launch=args.launch)
    if args.json:
        emit({"valid": not refusing, **found.to_map()})
        return REFUSED if refusing else ACCEPTED
    for fault in found.faults:
        say(str(fault))
    for fault in found.launch:
        say(f"would not launch: {fault}")
    for fault in found.publication:
        say(f"could not be published: {fault}")
    if not refusing:
        say(f"good: {found.what}")
    return REFUSED if refusing else ACCEPTED


def run_pack(args: argparse.Namespace) -> int:
    from mesh.runtime.catalogue import read_folder
    from mesh.runtime.packing import pack

    folder = Path(args.folder)
    candidate = read_folder(folder)
    out = Path(f"{candidate.id}-{candidate.version}.letsinfer" if args.out is None else args.out)
    check_new(out)
    with following("packing") as progress:
        packed = pack(folder, out, progress=progress)
    return _told(packed, out, as_json=args.json)


def run_unpack(args: argparse.Namespace) -> int:
    from mesh.errors import UsageError
    from mesh.runtime.unpacking import unpack

    out = Path(args.out)
    if out.is_dir() and out.samefile("."):
        raise UsageError("--out is the folder that this runs in, and a folder is made in its place")
    with following("unpacking") as progress:
        packed = unpack(Path(args.pack), out, progress=progress)
    return _told(packed, out, as_json=args.json)


def run_verify(args: argparse.Namespace) -> int:
    from mesh.errors import PackError, UsageError
    from mesh.runtime.unpacking import verify

    wanted = None if args.digest is None else args.digest.removeprefix("sha256:")
    if wanted is not None and not re.fullmatch("[0-9a-f]{64}", wanted):
        raise UsageError(f"--digest: expected 64 lower-case hex digits, got {wanted[:80]!a}")
    with following("reading") as progress:
        packed = verify(Path(args.pack), progress=progress)
    if wanted not in (None, packed.archive_sha256, packed.descriptor.digest):
        raise PackError(f"{args.pack}: sha256 is {packed.archive_sha256}, expected {wanted}")
    return _told(packed, Path(args.pack), as_json=args.json)


def run_oci(args: argparse.Namespace) -> int:
    from mesh.errors import UsageError
    from mesh.runtime.oci import SOURCE, write_layout

    source = SOURCE if args.source is None else args.source
    if not source or not source.isprintable():
        raise UsageError(f"--source: expected text, got {source[:80]!a}")
    with following("reading") as progress:
        packed, image = write_layout(Path(args.pack), Path(args.out), source=source, progress=progress)
    more = {"manifest_digest": f"sha256:{image.manifest_digest}"}
    return _told(packed, Path(args.out), as_json=args.json, more=more)


def run_index(args: argparse.Namespace) -> int:
    from mesh.runtime.catalogue import MANIFEST, check_manifest, manifest

    root = Path(args.folder)
    with following("reading") as progress:
        if args.check:
            check_manifest(root, progress=progress)
            return _indexed(root / MANIFEST, "current", as_json=args.json)
        made = manifest(root, progress=progress)
    _replace(root / MANIFEST, made)
    return _indexed(root / MANIFEST, "written", as_json=args.json)


def _indexed(path: Path, how: str, *, as_json: bool) -> int:
    if as_json:
        emit({"manifest": str(path), "state": how})
    else:
        say(f"{how}: {path}")
    return ACCEPTED


def _replace(path: Path, data: bytes) -> None:
    """It is generated, so it is written over; at no moment is half of it there."""
    if os.path.lexists(path):
        rewrite(path, data)
    else:
        write_new(path, [data])


def _told(packed: Packed, where: Path, *, as_json: bool, more: dict[str, str] | None = None) -> int:
    descriptor = packed.descriptor
    told: dict[str, Any] = {
        "path": str(where),
        "candidate": packed.candidate.summary,
        "runtime_digest": f"sha256:{descriptor.digest}",
        "archive_digest": f"sha256:{packed.archive_sha256}",
        "archive_bytes": packed.archive_bytes,
        "files": len(descriptor.files),
        **(more or {}),
    }
    if as_json:
        emit(told)
        return ACCEPTED
    say(f"{'candidate':16}{packed.candidate.id} {packed.candidate.version}")
    for name in ("runtime_digest", "archive_digest", *(more or {})):
        say(f"{name.replace('_', ' '):16}{told[name]}")
    note(f"{where}: {counted(told['files'], 'file')}, {packed.archive_bytes} bytes as an archive")
    return ACCEPTED
