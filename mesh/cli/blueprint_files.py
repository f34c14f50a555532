"""The files that blueprints and their keys are in, as commands open and read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import KeyFileError, MeshError, TrustFileError, UsageError

if TYPE_CHECKING:
    from mesh.blueprint.certificate import Certificate
    from mesh.blueprint.container import Container
    from mesh.blueprint.revocation import Revocations
    from mesh.blueprint.signature import PublicKey, SecretKey
    from mesh.blueprint.verification import Policy

_SECRET = re.compile(rb"mesh-blueprint-secret-1 ([0-9a-f]{128})\n")
_PUBLIC = re.compile(r"mesh-blueprint-key-1 ([0-9a-f]{3968})")
_MAX_ROOTS_BYTES = 1 << 20


def public_line(key: PublicKey) -> str:
    return f"mesh-blueprint-key-1 {key.data.hex()}"


def secret_line(key: SecretKey) -> bytes:
    return b"mesh-blueprint-secret-1 " + key.seed.hex().encode() + b"\n"


def read_secret_key(path: Path) -> SecretKey:
    """Raises KeyFileError."""
    from mesh.blueprint.signature import SecretKey
    from mesh.steward.secret_file import read_secret

    match = _SECRET.fullmatch(read_secret(path, 256, "blueprint key"))
    if match is None:
        raise KeyFileError(f"blueprint key {path}: malformed, expected one line `mesh-blueprint-secret-1 <128 hex>`")
    return SecretKey(bytes.fromhex(match[1].decode()))


def read_public_keys(path: Path) -> list[PublicKey]:
    """One a line; empty lines and those that begin with # do not count. Raises TrustFileError, ModelFileError,
    OSError."""
    from mesh.blueprint.signature import PublicKey

    data = read_regular(path, _MAX_ROOTS_BYTES + 1)
    if len(data) > _MAX_ROOTS_BYTES:
        raise TrustFileError(f"{path}: over {_MAX_ROOTS_BYTES} bytes")
    keys = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _PUBLIC.fullmatch(line.strip())
        if match is None:
            raise TrustFileError(f"{path}: line {number}: expected `mesh-blueprint-key-1 <3968 lower-case hex>`")
        try:
            keys.append(PublicKey.from_bytes(bytes.fromhex(match[1])))
        except MeshError as e:
            raise TrustFileError(f"{path}: line {number}: {e}") from None
    if not keys:
        raise TrustFileError(f"{path}: no key in it")
    return keys


def read_public_key(path: Path) -> PublicKey:
    keys = read_public_keys(path)
    if len(keys) != 1:
        raise TrustFileError(f"{path}: {len(keys)} keys, expected one")
    return keys[0]


def read_certificate(path: Path) -> Certificate:
    """Raises an Invalid that names the file, OSError."""
    from mesh.blueprint.certificate import CERTIFICATE_BYTES, Certificate

    return Certificate.from_bytes(read_regular(path, CERTIFICATE_BYTES + 1), str(path))


def read_policy(roots: Sequence[Path], revoked: Path | None, now_s: int) -> Policy:
    """Whom a command trusts. Without a list nobody knows what was revoked, so one is needed. Raises UsageError,
    TrustFileError, ChainError, UntrustedRoot, ModelFileError, OSError."""
    from mesh.blueprint.verification import Policy

    if not roots or revoked is None:
        raise UsageError(
            "a blueprint is checked against a root (--blueprint-root FILE) and its list of revocations "
            "(--blueprint-revoked FILE; `mesh blueprint revoke` makes one, an empty one too)"
        )
    keys = {key.id: key for path in roots for key in read_public_keys(path)}
    return Policy(keys, read_revocations(revoked, keys), now_s)


def read_revocations(path: Path, keys: Mapping[bytes, PublicKey]) -> Revocations:
    """The list in a file, of one of `keys`. Raises ChainError, UntrustedRoot, ModelFileError, OSError."""
    from mesh.blueprint.revocation import MAX_LIST_BYTES, Revocations

    with naming(path):
        return Revocations.from_bytes(read_regular(path, MAX_LIST_BYTES + 1), keys)


def read_regular(path: Path, most: int) -> bytes:
    """At most so many bytes of what must be a file: of a pipe nobody knows when its bytes come. Raises ModelFileError,
    OSError."""
    from mesh.identity.files import open_regular

    with open_regular(path) as file:
        return file.read(most)


@contextmanager
def opened(path: Path) -> Iterator[Container]:
    """Steps 1 and 2 of the check. Raises ModelFileError, ContainerError, BodyHashError, OSError."""
    from mesh.blueprint.container import Container
    from mesh.identity.files import open_regular

    with open_regular(path) as file, naming(path):
        yield Container(file)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say of what is wrong with a blueprint which file it is in."""
    from mesh.errors import BlueprintError, Undecidable

    try:
        yield
    except (BlueprintError, Undecidable) as e:
        if str(e).startswith(f"{path}: "):
            raise
        raise type(e)(f"{path}: {e}") from None
