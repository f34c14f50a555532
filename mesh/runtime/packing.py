"""A candidate's folder made into a pack: the same bytes wherever, whenever and by whomever it is packed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from mesh.errors import PackError
from mesh.runtime.candidate import DOCUMENT, Candidate
from mesh.runtime.descriptor import Descriptor, PackedFile
from mesh.runtime.draft import new_file
from mesh.runtime.header import ending, member_header, padding
from mesh.runtime.limits import MAX_DOCUMENT_BYTES
from mesh.runtime.names import shown_path
from mesh.runtime.tree import DESCRIPTOR, PLAIN, SourceFile, source_files

CHUNK: Final = 1 << 20

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and those that there are; each file is read twice, once for its digest."""


@dataclass(frozen=True, slots=True)
class Packed:
    """`archive_sha256` is of the pack's bytes, `descriptor.digest` of what is in it."""

    candidate: Candidate
    descriptor: Descriptor
    archive_sha256: str
    archive_bytes: int


def describe(source: Path, *, progress: Progress | None = None) -> tuple[Candidate, Descriptor, list[SourceFile]]:
    """What a pack of `source` would hold, every file read. Raises CandidateError, PackError, OSError."""
    files = source_files(source)
    document = next(file for file in files if file.path == DOCUMENT)
    with _open(document) as opened:
        data = opened.read(MAX_DOCUMENT_BYTES + 1)
    candidate = Candidate.from_json(data)
    total, done = 2 * sum(file.size for file in files), 0
    packed = []
    for file in files:
        hasher = hashlib.sha256()
        for chunk in _chunks(file):
            hasher.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
        if file is document and hasher.digest() != hashlib.sha256(data).digest():
            raise _changed(file)
        packed.append(PackedFile(path=file.path, bytes=file.size, mode=file.mode, sha256=hasher.hexdigest()))
    return candidate, Descriptor.made(candidate, packed), files


def pack(source: Path, output: Path, *, progress: Progress | None = None) -> Packed:
    """Pack `source` into the new file `output`, which must not lie in it; memory does not grow with the files. It
    is there once it is whole. Raises CandidateError, PackError, OSError."""
    if output.resolve().is_relative_to(source.resolve()):
        raise PackError(f"{output}: lies in the folder that is packed")
    if os.path.lexists(output):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(output))
    candidate, descriptor, files = describe(source, progress=progress)
    with new_file(output, PLAIN) as opened:
        hasher, size = _write(opened, descriptor, files, progress)
    return Packed(candidate, descriptor, hasher, size)


def _write(
    output: BinaryIO, descriptor: Descriptor, files: list[SourceFile], progress: Progress | None
) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    done = sum(file.size for file in files)
    total = 2 * done

    def put(data: bytes) -> None:
        nonlocal size
        hasher.update(data)
        output.write(data)
        size += len(data)

    told = descriptor.to_json()
    put(member_header(DESCRIPTOR, len(told), PLAIN))
    put(told)
    put(bytes(padding(len(told))))
    for file, packed in zip(files, descriptor.files, strict=True):
        put(member_header(file.path, file.size, file.mode))
        of_file = hashlib.sha256()
        for chunk in _chunks(file):
            of_file.update(chunk)
            put(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
        if of_file.hexdigest() != packed.sha256:
            raise _changed(file)
        put(bytes(padding(file.size)))
    put(bytes(ending(size)))
    return hasher.hexdigest(), size


def _open(file: SourceFile) -> BinaryIO:
    """Never through a link that took the file's place, and never waiting for a pipe's other end."""
    fd = os.open(file.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    return os.fdopen(fd, "rb")


def _chunks(file: SourceFile) -> Iterator[bytes]:
    """Raises PackError unless it still has the bytes that it had, by number."""
    left = file.size
    try:
        with _open(file) as opened:
            while left and (chunk := opened.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
            if left or opened.read(1):
                raise _changed(file)
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise _changed(file) from None
        e.filename = str(file.file)  # a read that fails does not say of what
        raise


def _changed(file: SourceFile) -> PackError:
    return PackError(f"member {shown_path(file.path)}: changed while it was packed")
