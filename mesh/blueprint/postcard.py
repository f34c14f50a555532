"""Postcard, strict: one encoding for each value, and nothing else is read.

The bytes are those of Rust's postcard for the same types. Its reader lets more through than its writer makes (longer
varints, bytes behind the value, a `char` of several); this one does not. A schema is a value: `encode(kind, value)` and
`decode(kind, data)` walk it, so that nothing in the data decides how deep or how wide the walk goes.
"""

from __future__ import annotations

from typing import Any, Final

from mesh.blueprint.postcard_scalars import Kind, Reader, write_varint, wrong
from mesh.errors import PostcardError


class Option(Kind):
    """None, or a value of `inner`."""

    least = 1

    def __init__(self, inner: Kind) -> None:
        self.inner = inner

    def write(self, out: bytearray, value: Any, what: str) -> None:
        out.append(value is not None)
        if value is not None:
            self.inner.write(out, value, what)

    def read(self, reader: Reader, what: str) -> Any:
        tag = reader.take(1, what)[0]
        if tag > 1:
            raise reader.fault(what, f"byte {tag}, expected 0 (none) or 1")
        return self.inner.read(reader, what) if tag else None


class Seq(Kind):
    """A sequence of at most `most` items, as a tuple. Items take at least a byte: a count alone makes no memory."""

    least = 1

    def __init__(self, inner: Kind, most: int) -> None:
        assert inner.least > 0, "items of no size"
        self.inner, self.most = inner, most

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not tuple or len(value) > self.most:
            raise wrong(what, value, f"at most {self.most} items")
        write_varint(out, len(value))
        for number, item in enumerate(value):
            self.inner.write(out, item, f"{what}[{number}]")

    def read(self, reader: Reader, what: str) -> tuple[Any, ...]:
        count = reader.count(self.most, self.inner.least, what)
        return tuple(self.inner.read(reader, f"{what}[{number}]") for number in range(count))


class Map(Kind):
    """Pairs of a key and a value, as a dict; keys ascend by their encoded bytes."""

    least = 1

    def __init__(self, key: Kind, value: Kind, most: int) -> None:
        assert key.least > 0, "keys of no size"
        self.key, self.value, self.most = key, value, most

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not dict or len(value) > self.most:
            raise wrong(what, value, f"a map of at most {self.most} pairs")
        pairs = []
        for key, item in value.items():
            spelled = bytearray()
            self.key.write(spelled, key, f"key of {what}")
            pairs.append((bytes(spelled), item))
        write_varint(out, len(pairs))
        for spelled_key, item in sorted(pairs, key=lambda pair: pair[0]):
            out += spelled_key
            self.value.write(out, item, what)

    def read(self, reader: Reader, what: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        before = b""
        for number in range(reader.count(self.most, self.key.least + self.value.least, what)):
            start = reader.at
            key = self.key.read(reader, f"key of {what}")
            spelled = reader.data[start : reader.at]
            if number and spelled <= before:
                raise reader.fault(f"key of {what}", "not above the key before it")
            found[key], before = self.value.read(reader, what), spelled
        return found


class Tuple(Kind):
    """Items of these kinds in order, nothing between; of none, the unit."""

    def __init__(self, *inner: Kind) -> None:
        self.inner = inner
        self.least = sum(kind.least for kind in inner)

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not tuple or len(value) != len(self.inner):
            raise wrong(what, value, f"{len(self.inner)} items")
        for number, (kind, item) in enumerate(zip(self.inner, value, strict=True)):
            kind.write(out, item, f"{what}.{number}")

    def read(self, reader: Reader, what: str) -> tuple[Any, ...]:
        return tuple(kind.read(reader, f"{what}.{number}") for number, kind in enumerate(self.inner))


class Struct(Kind):
    """The fields of `made`, in order: no names, no length. What `made` asks of its fields beyond their kinds is asked
    once all of the data was read."""

    def __init__(self, made: type, /, **fields: Kind) -> None:
        self.made, self.fields = made, tuple(fields.items())
        self.least = sum(kind.least for kind in fields.values())

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not self.made:
            raise wrong(what, value, f"a {self.made.__name__}")
        for name, kind in self.fields:
            kind.write(out, getattr(value, name), f"{what}.{name}")

    def read(self, reader: Reader, what: str) -> Any:
        value: Any = object.__new__(self.made)
        for name, kind in self.fields:
            object.__setattr__(value, name, kind.read(reader, f"{what}.{name}"))
        if hasattr(value, "__post_init__"):
            reader.unasked.append(value)
        return value


class Enum(Kind):
    """One of several structures: the index of the variant, then its fields."""

    least = 1

    def __init__(self, *variants: Struct) -> None:
        self.variants = variants

    def write(self, out: bytearray, value: Any, what: str) -> None:
        for index, variant in enumerate(self.variants):
            if type(value) is variant.made:
                write_varint(out, index)
                variant.write(out, value, what)
                return
        raise wrong(what, value, " or ".join(variant.made.__name__ for variant in self.variants))

    def read(self, reader: Reader, what: str) -> Any:
        index = reader.varint(32, f"variant of {what}")
        if index >= len(self.variants):
            raise reader.fault(f"variant of {what}", f"{index}, expected less than {len(self.variants)}")
        return self.variants[index].read(reader, what)


UNIT: Final = Tuple()


def encode(kind: Kind, value: Any, what: str = "value") -> bytes:
    """Raises PostcardError naming the field whose value the schema does not hold."""
    out = bytearray()
    kind.write(out, value, what)
    return bytes(out)


def decode(kind: Kind, data: bytes, what: str = "value") -> Any:
    """Raises PostcardError for anything but the one encoding of a value of `kind`; after that whatever a structure of
    it refuses of its fields."""
    reader = Reader(data)
    value = kind.read(reader, what)
    if reader.left:
        raise reader.fault(what, f"{reader.left} bytes follow it")
    if encode(kind, value, what) != data:  # whatever the rules above have missed
        raise PostcardError(f"postcard: {what}: not the one encoding of its value")
    for each in reader.unasked:
        each.__post_init__()
    return value
