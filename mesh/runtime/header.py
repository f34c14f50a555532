"""The bytes around the files of a pack: ustar headers with nothing in them that depends on who packs."""

from __future__ import annotations

from typing import Final

BLOCK: Final = 512
RECORD: Final = 10_240
_NAME_BYTES: Final = 100
_CHECKSUM: Final = slice(148, 156)
_PAX_NAME: Final = b"././@PaxHeader"


def member_header(path: str, size: int, mode: int) -> bytes:
    """What stands before a member's bytes. A path beyond 100 bytes or ASCII has a PAX header with it first; the name in
    the main header is then only a hint. The prefix field is never used."""
    if path.isascii() and len(path) <= _NAME_BYTES:
        return _ustar(path.encode(), size, mode, b"0")
    record = _record(path)
    hint = path.encode("ascii", "replace")[:_NAME_BYTES]
    return _ustar(_PAX_NAME, len(record), 0, b"x") + padded(record) + _ustar(hint, size, mode, b"0")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def padding(size: int) -> int:
    """Bytes of zeros after a body of `size`."""
    return -size % BLOCK


def ending(written: int) -> int:
    """Bytes of zeros that end an archive of which `written` are there: two blocks, and on to a whole record."""
    return 2 * BLOCK + -(written + 2 * BLOCK) % RECORD


def _record(path: str) -> bytes:
    """`LEN path=NAME\\n`, where LEN counts itself."""
    text = b" path=" + path.encode() + b"\n"
    size = len(text)
    while size != len(text) + len(str(size)):
        size = len(text) + len(str(size))
    return str(size).encode() + text


def _ustar(name: bytes, size: int, mode: int, kind: bytes) -> bytes:
    block = bytearray(BLOCK)
    fields = (
        (0, name), (100, b"%07o\0" % mode), (108, b"0000000\0"), (116, b"0000000\0"), (124, b"%011o\0" % size),
        (136, b"00000000000\0"), (148, b" " * 8), (156, kind), (257, b"ustar\0" b"00"),
    )  # fmt: skip
    for at, value in fields:
        block[at : at + len(value)] = value
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    return bytes(block)
