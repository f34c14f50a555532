"""A pack read: held to its descriptor and to the one layout that packing gives it, before anything is made of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from mesh.errors import PackError
from mesh.runtime.candidate import DOCUMENT, Candidate
from mesh.runtime.descriptor import Descriptor, PackedFile
from mesh.runtime.header import BLOCK, ending, member_header, padding
from mesh.runtime.limits import MAX_DESCRIPTOR_BYTES, MAX_DOCUMENT_BYTES
from mesh.runtime.names import check_path, shown_path
from mesh.runtime.packing import CHUNK, Packed, Progress
from mesh.runtime.tree import DESCRIPTOR, PLAIN

_KINDS: Final = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder", b"6": "a pipe",
    b"L": "a GNU long name", b"K": "a GNU long name", b"S": "a sparse file", b"g": "a global PAX header",
}  # fmt: skip
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7z": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}

_PAX_PATH: Final = re.compile(rb"(?s)\A(?:\d+ (?!path=)[^\n]*\n)*\d+ path=(.*?)\n")
_MAX_RECORD_BYTES: Final = 16 << 10

Sink = Callable[[PackedFile], Callable[[bytes], object]]
"""Given a member, what takes its bytes; called for each in order."""


def read_pack(file: BinaryIO, *, sink: Sink | None = None, progress: Progress | None = None) -> Packed:
    """Read a pack from end to end. Every fault is found before the last byte of it was handed to `sink`, and names the
    member: so whoever writes files does it on a second reading, or where nobody looks yet. Raises PackError,
    CandidateError, OSError."""
    return _Reader(file, sink, progress).read()


class _Reader:
    def __init__(self, file: BinaryIO, sink: Sink | None, progress: Progress | None) -> None:
        self.file, self.sink, self.progress = file, sink, progress
        self.hasher, self.size = hashlib.sha256(), 0

    def read(self) -> Packed:
        descriptor = self._descriptor()
        document = b""
        total, done = sum(file.bytes for file in descriptor.files), 0
        seen: set[str] = set()
        for packed in descriptor.files:
            self._header(packed, seen)
            seen.add(packed.path)
            put = self.sink(packed) if self.sink is not None else None
            hasher = hashlib.sha256()
            left = packed.bytes
            keep = packed.path == DOCUMENT
            if keep and packed.bytes > MAX_DOCUMENT_BYTES:
                raise PackError(f"member {DOCUMENT!r}: over {MAX_DOCUMENT_BYTES} bytes")
            while left:
                chunk = self._take(min(CHUNK, left), packed.path)
                left -= len(chunk)
                hasher.update(chunk)
                if keep:
                    document += chunk
                if put is not None:
                    put(chunk)
                done += len(chunk)
                if self.progress is not None:
                    self.progress(done, total)
            if hasher.hexdigest() != packed.sha256:
                raise PackError(
                    f"member {shown_path(packed.path)}: sha256 is {hasher.hexdigest()}, expected {packed.sha256}"
                )
            self._zeros(padding(packed.bytes), packed.path)
        self._end(seen)
        candidate = Candidate.from_json(document)
        descriptor.check_candidate(candidate)
        return Packed(candidate, descriptor, self.hasher.hexdigest(), self.size)

    def _descriptor(self) -> Descriptor:
        block = self._take(BLOCK, DESCRIPTOR)
        for magic, name in _COMPRESSED.items():
            if block.startswith(magic):
                raise PackError(f"pack: {name} data, expected an uncompressed tar")
        found = _Found.of(block)
        if found is None:
            raise PackError("pack: no tar")
        found.check()
        if found.path != DESCRIPTOR:
            raise PackError(f"pack: begins with {shown_path(found.path)}, expected {DESCRIPTOR!r}")
        if found.size > MAX_DESCRIPTOR_BYTES:
            raise PackError(f"member {DESCRIPTOR!r}: {found.size} bytes, expected at most {MAX_DESCRIPTOR_BYTES}")
        if block != member_header(DESCRIPTOR, found.size, PLAIN):
            raise PackError(f"member {DESCRIPTOR!r}: {found.difference(DESCRIPTOR, found.size, PLAIN)}")
        data = self._take(found.size, DESCRIPTOR)
        self._zeros(padding(found.size), DESCRIPTOR)
        return Descriptor.from_json(data)

    def _header(self, packed: PackedFile, seen: set[str]) -> None:
        expected = member_header(packed.path, packed.bytes, packed.mode)
        block = self._take(BLOCK, packed.path)
        if block != expected[:BLOCK]:
            self._refuse(block, packed, seen)
        rest = len(expected) - BLOCK
        if rest and self._take(rest, packed.path) != expected[BLOCK:]:
            raise PackError(f"member {shown_path(packed.path)}: its PAX header is not the one that packing writes")

    def _refuse(self, block: bytes, packed: PackedFile, seen: set[str]) -> None:
        """Say what stands where `packed` should begin."""
        found = _Found.of(block)
        if found is None:
            if not block.strip(b"\0"):
                raise PackError(f"member {shown_path(packed.path)}: missing: the archive ends before it")
            raise PackError(f"member {shown_path(packed.path)}: no tar header where it should begin")
        found = self._named(found)
        found.check()
        if found.path in seen or found.path == DESCRIPTOR:
            raise PackError(f"member {shown_path(found.path)}: there twice")
        if found.path != packed.path:
            raise PackError(
                f"member {shown_path(found.path)}: not the next of those that are listed, {shown_path(packed.path)}"
            )
        raise PackError(f"member {shown_path(packed.path)}: {found.difference(packed.path, packed.bytes, packed.mode)}")

    def _end(self, seen: set[str]) -> None:
        rest = ending(self.size)
        block = self._take(BLOCK, "")
        if block.strip(b"\0"):
            found = _Found.of(block)
            if found is None:
                raise PackError("pack: something else than zeros after the last member")
            found = self._named(found)
            found.check()
            if found.path in seen or found.path == DESCRIPTOR:
                raise PackError(f"member {shown_path(found.path)}: there twice")
            raise PackError(f"member {shown_path(found.path)}: not listed in {DESCRIPTOR}")
        self._zeros(rest - BLOCK, "")
        if self.file.read(1):
            raise PackError("pack: goes on after its end")

    def _named(self, found: _Found) -> _Found:
        """With the path that a PAX header gives it, where it is one."""
        if found.kind != b"x":
            return found
        body = self.file.read(min(found.size, _MAX_RECORD_BYTES))
        path = _PAX_PATH.search(body)
        return replace(found, path=path[1].decode("utf-8", "surrogateescape")) if path else found

    def _take(self, size: int, path: str) -> bytes:
        data = self.file.read(size)
        if len(data) != size:
            raise PackError(f"pack: cut off{f' in member {shown_path(path)}' if path else ' in its end'}")
        self.hasher.update(data)
        self.size += size
        return data

    def _zeros(self, size: int, path: str) -> None:
        if size and self._take(size, path).strip(b"\0"):
            where = f"member {shown_path(path)}: its padding" if path else "pack: its end"
            raise PackError(f"{where} is not all zeros")


@dataclass(frozen=True, slots=True)
class _Found:
    """A header as it stands in an archive, read leniently, to say what is wrong with it."""

    path: str
    kind: bytes
    mode: int
    size: int

    @classmethod
    def of(cls, block: bytes) -> _Found | None:
        if block[257:262] != b"ustar":
            return None
        try:
            mode, size = (int(block[at].strip(b" \0") or b"0", 8) for at in (slice(100, 108), slice(124, 136)))
        except ValueError:
            return None
        name, prefix = (block[at].split(b"\0")[0].decode("utf-8", "replace") for at in (slice(100), slice(345, 500)))
        return cls(f"{prefix}/{name}" if prefix and block[262:263] == b"\0" else name, block[156:157], mode, size)

    def check(self) -> None:
        if self.kind not in (b"0", b"\0", b"x"):
            kind = _KINDS.get(self.kind, f"of type {self.kind!r}")
            raise PackError(f"member {shown_path(self.path)}: {kind}, expected a regular file")
        check_path(self.path)

    def difference(self, path: str, size: int, mode: int) -> str:
        if self.path == path:
            if self.mode != mode:
                return f"mode is {self.mode:04o}, expected {mode:04o}"
            if self.size != size:
                return f"{self.size} bytes, expected {size}"
        return "its header is not the one that packing writes"
