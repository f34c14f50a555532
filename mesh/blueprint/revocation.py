"""What a root takes back: a signed list of ids, with a date of its own after which nobody knows any more.

    offset  bytes
    0       4      magic MKRL
    4       2      version, 1
    6       2      flags, 0
    8       8      number: a later list has a higher one
    16      8      made, Unix seconds
    24      8      valid until, Unix seconds
    32      32     key id of the root
    64      4      count
    68      32 n   ids, ascending: of certificates, keys, kernels' modules and blueprints
    ...     3373   signatures of the root over all before

An id is a SHA-256, whatever it names, so one list holds them all.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mesh.blueprint.signature import SIGNATURE_BYTES, PublicKey, SecretKey
from mesh.errors import ChainError, SignerError, StaleRevocations, UntrustedRoot

MAGIC: Final = b"MKRL"
VERSION: Final = 1
MAX_REVOKED: Final = 65_536
_ID_BYTES: Final = 32
_HEAD = struct.Struct("<4sHHQQQ32sI")
MAX_LIST_BYTES: Final = _HEAD.size + MAX_REVOKED * _ID_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True)
class Revocations:
    """A list whose signatures hold. `until_s` is the first Unix second at which it says nothing any more."""

    number: int
    made_s: int
    until_s: int
    root: bytes
    ids: frozenset[bytes]

    @classmethod
    def from_bytes(cls, data: bytes, roots: Mapping[bytes, PublicKey]) -> Revocations:
        """Raises ChainError for what is no list or not signed by its root, UntrustedRoot for one of another root."""
        what = "revocation list"
        if len(data) < _HEAD.size + SIGNATURE_BYTES:
            raise ChainError(f"{what}: {len(data)} bytes, expected at least {_HEAD.size + SIGNATURE_BYTES}")
        magic, version, flags, number, made_s, until_s, root, count = _HEAD.unpack(data[: _HEAD.size])
        if (magic, version, flags) != (MAGIC, VERSION, 0):
            raise ChainError(
                f"{what}: begins with {data[:8].hex()}, expected {MAGIC!r}, version {VERSION} and no flags"
            )
        end = _HEAD.size + count * _ID_BYTES
        if count > MAX_REVOKED or len(data) != end + SIGNATURE_BYTES:
            raise ChainError(f"{what}: {count} ids in {len(data)} bytes, expected {end + SIGNATURE_BYTES}")
        ids = [data[at : at + _ID_BYTES] for at in range(_HEAD.size, end, _ID_BYTES)]
        if any(before >= after for before, after in pairwise(ids)):
            raise ChainError(f"{what}: its ids do not ascend")
        if made_s >= until_s:
            raise ChainError(f"{what}: made at {made_s}, valid until {until_s}, which is never")
        key = roots.get(root)
        if key is None:
            raise UntrustedRoot(f"{what}: of root {root.hex()}, which is not trusted here")
        try:
            key.verify("revocations", data[:end], data[end:], what)
        except SignerError as e:
            raise ChainError(str(e)) from None
        return cls(number, made_s, until_s, root, frozenset(ids))

    def check(self, root: bytes, now_s: int) -> None:
        """Raises where it does not say what `root` has revoked by now."""
        if self.root != root:
            raise StaleRevocations(f"revocation list: of root {self.root.hex()}, the certificates lead to {root.hex()}")
        if now_s >= self.until_s:
            raise StaleRevocations(f"revocation list {self.number}: expired at {self.until_s}, now {now_s}")


def revoke(root: SecretKey, ids: Collection[bytes], *, number: int, made_s: int, until_s: int) -> bytes:
    """A signed list. Raises ChainError for what no list can say."""
    listed = sorted(set(ids))
    if any(len(one) != _ID_BYTES for one in listed) or len(listed) > MAX_REVOKED:
        raise ChainError(f"revocation list: expected at most {MAX_REVOKED} ids of {_ID_BYTES} bytes")
    try:
        head = _HEAD.pack(MAGIC, VERSION, 0, number, made_s, until_s, root.public.id, len(listed)) + b"".join(listed)
    except struct.error:
        raise ChainError(f"revocation list: number {number}, made {made_s}, valid until {until_s}") from None
    data = head + root.sign("revocations", head)
    Revocations.from_bytes(data, {root.public.id: root.public})
    return data
