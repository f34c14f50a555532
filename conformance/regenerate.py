"""The files under `vectors/v1`, all made here: the same bytes every time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from conformance.case import Case
from conformance.sums import SUMS

ROOT = Path(__file__).parent.parent
VECTORS = ROOT / "vectors" / "v1"
SPEC_VERSION = "mesh/1"
INDEX, ERRORS = "INDEX.tsv", "errors.tsv"

# The modules in `groups`, in the order in which a new implementation gets there.
GROUPS: tuple[str, ...] = (
    "encoding",
    "ids",
    "request",
    "commitment",
    "outcome",
    "energy",
    "receipt",
    "checkpoint",
    "disclosure",
    "trust",
    "envelope",
    "envelope_trust",
    "signature",
    "sequence",
    "reference",
    "replay",
    "replay_engine",
    "grant",
    "grant_decide",
    "frame",
    "revocations",
    "hashed",
    "settings",
    "decimals",
    "view",
    "security",
    "limits",
    "identity",
    "identity_route",
    "postcard",
    "blueprint",
    "blueprint_verify",
    "audit",
    "launch",
)

# Class, exit code of a command that ends in it, meaning: SPEC.md, section Errors.
CLASSES = (
    ("encoding", 10, "bytes that are not the one encoding of a value"),
    ("schema", 10, "a value that is not of its shape, or contradicts itself"),
    ("structure", 10, "an envelope that is no COSE_Sign1"),
    ("canonical", 10, "an envelope in another spelling"),
    ("header", 10, "a header that says something that this format does not allow"),
    ("trust", 11, "a key that nobody named, or not for that time"),
    ("signature", 10, "a signature that does not hold, or a key that cannot sign"),
    ("payload", 10, "a signed payload that is not what its header says"),
    ("sequence", 10, "receipts that should follow one another and do not"),
    ("moving-reference", 10, "a revision that can name something else tomorrow"),
    ("layers", 10, "layers that are not where they are said to be"),
    ("fingerprint", 10, "a declared fingerprint that does not follow from its identity"),
    ("trust-file", 2, "a trust file that cannot be followed"),
    ("container", 10, "a blueprint's file whose sections are not where it says"),
    ("body-hash", 10, "a body with another hash than its header says"),
    ("chain", 10, "certificates that do not lead to a root"),
    ("untrusted-root", 11, "a root that nobody named"),
    ("expired", 10, "a certificate that is not valid at the time"),
    ("stale-revocations", 11, "no list of that root that says what it revoked by then"),
    ("revoked", 10, "what a root took back"),
    ("signer", 10, "a blueprint that is not signed, or not by both signatures"),
    ("kernel", 10, "a module that is not the one that is pinned"),
    ("postcard", 10, "bytes that are not the one postcard encoding of a value"),
    ("body", 10, "a body that contradicts itself"),
    ("lineage", 10, "a lower revision than was served before"),
    ("model-file", 10, "a model file that is malformed, truncated or of a kind that is not read"),
)


def all_cases() -> list[Case]:
    """Raises ValueError where two have one id."""
    cases = [case for name in GROUPS for case in import_module(f"conformance.groups.{name}").cases().cases]
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ValueError(f"two cases are called {case.id}")
        seen.add(case.id)
    return cases


def tree(cases: Sequence[Case] | None = None) -> dict[str, bytes]:
    """Every file, by its path under `vectors/v1`; of the cases, where somebody has made them already. Raises CannotRun
    for a file that they are made from and that is damaged."""
    cases = all_cases() if cases is None else cases
    files = {f"{case.id}/{name}": data for case in cases for name, data in case.folder().items()}
    files[ERRORS] = "".join(f"{name}\t{code}\t{meaning}\n" for name, code, meaning in CLASSES).encode()
    sums = "".join(f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n" for path in sorted(files)).encode()
    files[SUMS] = sums
    first = f"# {SPEC_VERSION} vectors v1 sha256sums:{hashlib.sha256(sums).hexdigest()}\n"
    files[INDEX] = (first + "".join(f"{case.line}\n" for case in cases)).encode()
    return files


def differences(files: Mapping[str, bytes], root: Path = VECTORS) -> list[str]:
    """What `root` has otherwise, a line each: the path and what is the matter with it."""
    there = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    out = []
    for path in sorted(files.keys() | there):
        if path not in there:
            out.append(f"{path}: missing")
        elif path not in files:
            out.append(f"{path}: made by nothing")
        elif (root / path).read_bytes() != files[path]:
            out.append(f"{path}: differs")
    return out


def write(files: Mapping[str, bytes], root: Path = VECTORS) -> int:
    """Make `root` hold these files and no others; the number of those that were not so already."""
    found = differences(files, root)
    for line in found:
        name = line.rpartition(": ")[0]
        path = root / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
        else:
            path.unlink()
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return len(found)
