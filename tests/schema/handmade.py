"""CBOR written by hand, in the right spelling and in every wrong one, without the encoder under test."""

from __future__ import annotations

from collections.abc import Iterable

UINT, NINT, BSTR, TEXT, ARRAY, MAP, TAG = range(7)
WIDTHS = (0, 1, 2, 4, 8)


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


def text(value: str, width: int | None = None) -> bytes:
    raw = value.encode()
    return head(TEXT, len(raw), width) + raw


def array(items: Iterable[bytes], width: int | None = None) -> bytes:
    items = list(items)
    return head(ARRAY, len(items), width) + b"".join(items)


def mapping(pairs: Iterable[tuple[bytes, bytes]], width: int | None = None) -> bytes:
    """The pairs in the order given, twice the same key included."""
    pairs = list(pairs)
    return head(MAP, len(pairs), width) + b"".join(key + value for key, value in pairs)


def item(value: object) -> bytes:
    """A value in its one spelling: maps sorted by their encoded keys, bytewise."""
    if value is True or value is False:
        return b"\xf5" if value else b"\xf4"
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


def spellings(value: object) -> list[bytes]:
    """Other encodings of the same value, one fault each, in every place that has room for it."""
    out: list[bytes] = []
    if isinstance(value, bool):
        return out
    if isinstance(value, int):
        major, argument = (UINT, value) if value >= 0 else (NINT, -1 - value)
        return _wider(major, argument, b"")
    if isinstance(value, bytes | str):
        major, raw = (BSTR, value) if isinstance(value, bytes) else (TEXT, value.encode())
        half = len(value) // 2
        pieces = b"".join(item(piece) for piece in (value[:half], value[half:]))
        return [*_wider(major, len(raw), raw), bytes([major << 5 | 31]) + pieces + b"\xff"]
    if isinstance(value, dict):
        pairs = sorted((item(key), item(content), key, content) for key, content in value.items())
        body = b"".join(key + content for key, content, _, _ in pairs)
        out += [*_wider(MAP, len(pairs), body), bytes([MAP << 5 | 31]) + body + b"\xff"]
        if len(pairs) > 1:
            out.append(mapping((key, content) for key, content, _, _ in reversed(pairs)))
            swapped = [*pairs[:-2], pairs[-1], pairs[-2]]
            out.append(mapping((key, content) for key, content, _, _ in swapped))
        for i, (_, _, key, content) in enumerate(pairs):
            before, after = pairs[:i], pairs[i + 1 :]
            ways = [(k, item(content)) for k in spellings(key)] + [(item(key), c) for c in spellings(content)]
            out += [mapping([*(p[:2] for p in before), way, *(p[:2] for p in after)]) for way in ways]
        return out
    assert isinstance(value, list)
    items = [item(content) for content in value]
    out += [*_wider(ARRAY, len(items), b"".join(items)), bytes([ARRAY << 5 | 31]) + b"".join(items) + b"\xff"]
    for i, content in enumerate(value):
        out += [array([*items[:i], other, *items[i + 1 :]]) for other in spellings(content)]
    return out


def _wider(major: int, argument: int, body: bytes) -> list[bytes]:
    narrowest = head(major, argument)
    return [head(major, argument, width) + body for width in WIDTHS if width > len(narrowest) - 1]
