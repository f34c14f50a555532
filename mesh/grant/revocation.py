"""The list of revoked blocks: text, one block id a line, `b3:<64 hex>`, anything after a # is for people."""

from __future__ import annotations

from mesh.errors import SchemaError, UsageError
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_REVOCATION_FILE_BYTES


def parse_revoked(data: bytes) -> frozenset[bytes]:
    """The ids; an empty list is one too. Raises UsageError naming the line at fault."""
    if len(data) > MAX_REVOCATION_FILE_BYTES:
        raise UsageError(f"revocation list: over {MAX_REVOCATION_FILE_BYTES} bytes")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise UsageError("revocation list: not a text file of block ids") from None
    ids: set[bytes] = set()
    for number, line in enumerate(lines, start=1):
        word = line.partition("#")[0].strip(" \t\r")
        if word:
            try:
                ids.add(bytes(ContentId.from_text(word)))
            except SchemaError:
                raise UsageError(f"revocation list: line {number}: expected b3:<64 lower-case hex>") from None
    return frozenset(ids)
