"""CBOR written by hand, in the right spelling and in every wrong one. It checks nothing: that is for whoever reads."""

from __future__ import annotations

from collections.abc import Iterable

UINT, NINT, BSTR, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
WIDTHS = (0, 1, 2, 4, 8)

FALSE, TRUE, NULL, UNDEFINED = b"\xf4", b"\xf5", b"\xf6", b"\xf7"
BREAK = b"\xff"


def head(major: int, argument: int, width: int | None = None) -> bytes:
    """`width` is the number of bytes after the first; the narrowest that fits unless given."""
    if width is None:
        width = next(w for w in WIDTHS if argument < (24 if w == 0 else 1 << 8 * w))
    if width == 0:
        return bytes([major << 5 | argument])
    return bytes([major << 5 | 23 + WIDTHS.index(width)]) + argument.to_bytes(width, "big")


def integer(value: int, width: int | None = None) -> bytes:
    return head(UINT, value, width) if value >= 0 else head(NINT, -1 - value, width)


def bstr(data: bytes, width: int | None = None) -> bytes:
    return head(BSTR, len(data), width) + data


def text(value: str | bytes, width: int | None = None) -> bytes:
    """A text string; given bytes, they need not be UTF-8."""
    raw = value.encode() if isinstance(value, str) else value
    return head(TEXT, len(raw), width) + raw


def array(items: Iterable[bytes], width: int | None = None) -> bytes:
    items = list(items)
    return head(ARRAY, len(items), width) + b"".join(items)


def mapping(pairs: Iterable[tuple[bytes, bytes]], width: int | None = None) -> bytes:
    """The pairs in the order given, twice the same key included."""
    pairs = list(pairs)
    return head(MAP, len(pairs), width) + b"".join(key + value for key, value in pairs)


def indefinite(major: int, content: bytes) -> bytes:
    return bytes([major << 5 | 31]) + content + BREAK


def tag(number: int, content: bytes) -> bytes:
    return head(TAG, number) + content


class Raw(bytes):
    """An item that is encoded already, to be put where a value would be."""


def item(value: object) -> bytes:
    """A value in its one spelling: maps sorted by their encoded keys, bytewise. `Raw` is put in as it is."""
    if isinstance(value, Raw):
        return bytes(value)
    if value is True or value is False:
        return TRUE if value else FALSE
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, bytes):
        return bstr(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return mapping(sorted((item(key), item(content)) for key, content in value.items()))
    assert isinstance(value, list | tuple), type(value)
    return array(item(content) for content in value)


def packed(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian u32."""
    return b"".join(number.to_bytes(4, "little") for number in ids)
