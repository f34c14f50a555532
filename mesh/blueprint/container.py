"""The file: header, body, locators, payloads, signature block, and nothing between or behind them.

    offset  bytes
    0       4      magic MKBP
    4       2      version, 1
    6       2      flags, 0
    8       8      length of the body
    16      8      length of the locator table
    24      8      length of the inline payloads
    32      8      length of the signature block; 0: not signed
    40      32     SHA-256 of the body, which is the BlueprintId
    72             the four sections, in this order

The body alone is the blueprint. Locators say where each kernel's bytes are, and payloads are such bytes: a file with
all of them (full) and one with none (lite) are the same blueprint. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from mesh.blueprint import postcard as p
from mesh.blueprint.postcard_scalars import U64, Fixed, Text
from mesh.errors import BodyHashError, ContainerError, KernelError, PostcardError

MAGIC: Final = b"MKBP"
VERSION: Final = 1
HEADER = struct.Struct("<4sHHQQQQ32s")
MAX_BODY_BYTES: Final = 64 << 20
MAX_LOCATOR_BYTES: Final = 1 << 20
MAX_PAYLOAD_BYTES: Final = 64 << 30
MAX_SIGNATURE_BYTES: Final = 1 << 20
MAX_MODULES: Final = 256
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Inline:
    """In this file: `length` bytes at `offset` of the payloads."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Internal:
    """In the engine that is installed."""


@dataclass(frozen=True, slots=True)
class Disk:
    path: str


@dataclass(frozen=True, slots=True)
class Remote:
    url: str


Source = Inline | Internal | Disk | Remote


@dataclass(frozen=True, slots=True)
class Locator:
    """Where the module with this SHA-256 is. Not signed: whatever the source, the bytes are held to the digest."""

    digest: bytes
    source: Source


LOCATORS: Final = p.Seq(
    p.Struct(
        Locator,
        digest=Fixed(32),
        source=p.Enum(
            p.Struct(Inline, offset=U64, length=U64),
            p.Struct(Internal),
            p.Struct(Disk, path=Text(4096)),
            p.Struct(Remote, url=Text(4096)),
        ),
    ),
    MAX_MODULES,
)


@dataclass(frozen=True, slots=True)
class Header:
    """Lengths in bytes, all of them within their bounds and together with the header those of the file."""

    body: int
    locators: int
    payloads: int
    signature: int
    body_hash: bytes

    @classmethod
    def from_bytes(cls, data: bytes, file_bytes: int) -> Header:
        """Raises ContainerError."""
        if len(data) < HEADER.size:
            raise ContainerError(f"blueprint: {file_bytes} bytes, expected a header of {HEADER.size}")
        magic, version, flags, body, locators, payloads, signature, body_hash = HEADER.unpack(data[: HEADER.size])
        if magic != MAGIC:
            raise ContainerError(f"blueprint: magic {magic!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise ContainerError(f"blueprint: format version {version}, expected {VERSION}")
        if flags:
            raise ContainerError(f"blueprint: flags {flags:#06x}, expected none")
        for name, length, most in (
            ("body", body, MAX_BODY_BYTES), ("locator table", locators, MAX_LOCATOR_BYTES),
            ("payloads", payloads, MAX_PAYLOAD_BYTES), ("signature block", signature, MAX_SIGNATURE_BYTES),
        ):  # fmt: skip
            if length > most:
                raise ContainerError(f"blueprint: a {name} of {length} bytes, expected at most {most}")
        total = HEADER.size + body + locators + payloads + signature
        if total != file_bytes:
            raise ContainerError(f"blueprint: its sections end at byte {total}, the file has {file_bytes}")
        return cls(body, locators, payloads, signature, body_hash)

    def to_bytes(self) -> bytes:
        return HEADER.pack(
            MAGIC, VERSION, 0, self.body, self.locators, self.payloads, self.signature, self.body_hash
        )  # fmt: skip

    @property
    def signed(self) -> bytes:
        """What the signatures are over: version, length and hash of the body."""
        return struct.pack("<HQ", VERSION, self.body) + self.body_hash


class Container:
    """A file whose sections are where its header says, and whose body has the hash that its header says. Nothing is
    decoded. Payloads stay in the file."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises ContainerError, BodyHashError, OSError. The file must be seekable and stays open."""
        self._file = file
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self.header = Header.from_bytes(file.read(HEADER.size), size)
        self.body = self._read("body", self.header.body)
        found = hashlib.sha256(self.body).digest()
        if found != self.header.body_hash:
            raise BodyHashError(f"blueprint: its body is {found.hex()}, expected {self.header.body_hash.hex()}")
        self.locator_table = self._read("locator table", self.header.locators)
        self._payloads_at = HEADER.size + self.header.body + self.header.locators
        file.seek(self._payloads_at + self.header.payloads)
        self.signature_block = self._read("signature block", self.header.signature)

    @classmethod
    def of_bytes(cls, data: bytes) -> Container:
        return cls(io.BytesIO(data))

    def _read(self, what: str, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) != length:
            raise ContainerError(f"blueprint: {what} ends after {len(data)} bytes, expected {length}")
        return data

    @property
    def id(self) -> bytes:
        """The BlueprintId."""
        return self.header.body_hash

    def locators(self) -> tuple[Locator, ...]:
        """The table, with every inline range in the payloads and every byte of them in one range. Raises
        ContainerError."""
        try:
            found: tuple[Locator, ...] = p.decode(LOCATORS, self.locator_table, "locators")
        except PostcardError as e:
            raise ContainerError(str(e)) from None
        at, before = 0, b""
        for number, locator in enumerate(found):
            if number and locator.digest <= before:
                raise ContainerError(f"locators[{number}]: its digest is not above the one before it")
            before = locator.digest
            if isinstance(locator.source, Inline):
                if locator.source.offset != at:
                    how = "overlaps what is before it" if locator.source.offset < at else "leaves bytes before it"
                    raise ContainerError(f"locators[{number}]: offset {locator.source.offset} {how}, expected {at}")
                at += locator.source.length
                if at > self.header.payloads:
                    raise ContainerError(f"locators[{number}]: ends at {at}, the payloads at {self.header.payloads}")
        if at != self.header.payloads:
            raise ContainerError(f"payloads: {self.header.payloads - at} bytes that no locator is about")
        return found

    def pieces(self, source: Inline) -> Iterator[bytes]:
        """The bytes of a payload, a part at a time."""
        self._file.seek(self._payloads_at + source.offset)
        left = source.length
        while left:
            piece = self._read("payloads", min(left, _PIECE_BYTES))
            left -= len(piece)
            yield piece

    def check_payloads(self, locators: tuple[Locator, ...]) -> None:
        """Hold every inline payload to its digest. Raises KernelError."""
        for locator in locators:
            if isinstance(locator.source, Inline):
                hasher = hashlib.sha256()
                for piece in self.pieces(locator.source):
                    hasher.update(piece)
                if hasher.digest() != locator.digest:
                    raise KernelError(f"kernel payload: is {hasher.hexdigest()}, expected {locator.digest.hex()}")


def head_of(body: bytes, locators: tuple[Locator, ...], signature_block: bytes = b"") -> bytes:
    """Everything of a file before its payloads. Raises PostcardError, ContainerError."""
    table = p.encode(LOCATORS, locators, "locators")
    inline = sum(locator.source.length for locator in locators if isinstance(locator.source, Inline))
    header = Header(len(body), len(table), inline, len(signature_block), hashlib.sha256(body).digest())
    data = header.to_bytes()
    Header.from_bytes(data, HEADER.size + len(body) + len(table) + inline + len(signature_block))
    return data + body + table
