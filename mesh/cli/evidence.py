"""What a verifier is handed: an envelope, an archive, a directory of envelopes, or a ledger. Bytes only, unjudged.

An archive (`.cborseq`) is a CBOR sequence (RFC 8742): envelopes one after the other and nothing between them, so that
every bit of the file is under a signature.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mesh.cli.state import LEDGER_NAME
from mesh.errors import StructureError
from mesh.ledger.reader import LedgerReader
from mesh.schema.limits import MAX_ENVELOPE_BYTES, MAX_PAYLOAD_BYTES

ARCHIVE_SUFFIX = ".cborseq"
ENVELOPE_SUFFIX = ".cbor"
_SQLITE_MAGIC = b"SQLite format 3\0"

_TAG_SIGN1 = b"\xd2\x84"
_EMPTY_MAP = b"\xa0"
_SIGNATURE_HEAD = b"\x58\x40"


@dataclass(frozen=True, slots=True)
class Piece:
    """One envelope as it was found. `row` is what a ledger's columns say of it: seq, receipt id, serve id. `size` is
    that of the file, where it is longer than an envelope can be and was not read to its end."""

    label: str
    envelope: bytes
    row: tuple[int, bytes, bytes] | None = None
    size: int | None = None

    def check_size(self) -> None:
        """Raises StructureError."""
        if len(self.envelope) > MAX_ENVELOPE_BYTES:
            size = f"over {MAX_ENVELOPE_BYTES}" if self.size is None else self.size
            raise StructureError(f"too long for an envelope: {size} bytes, at most {MAX_ENVELOPE_BYTES}")


@dataclass(frozen=True, slots=True)
class Source:
    """`whole`: a ledger, which has to hold every receipt of its steward up to its last."""

    label: str
    pieces: Iterator[Piece]
    whole: bool = False


def open_source(name: str, *, every_checkpoint: bool = False) -> Source:
    """What `name` leads to; `-` is an envelope on stdin. Of a ledger's checkpoints the last says how many receipts
    there are; the books of earlier epochs are in the others. Raises OSError or LedgerError, here and while it is read.
    """
    if name == "-":
        return Source("stdin", iter((Piece("stdin", sys.stdin.buffer.read(MAX_ENVELOPE_BYTES + 1)),)))
    path = Path(name)
    ledger = ledger_in(path)
    if ledger is not None:
        return Source(name, _in_ledger(ledger, name, every_checkpoint), whole=True)
    if path.is_dir():
        found = sorted(path.glob(f"*{ENVELOPE_SUFFIX}"))
        if not found:
            raise FileNotFoundError(f"{name}: no ledger and no receipts ({ENVELOPE_SUFFIX} files) here")
        return Source(name, (_in_file(each) for each in found))
    if path.suffix == ARCHIVE_SUFFIX:
        return Source(name, _in_archive(path))
    return Source(name, iter((_in_file(path),)))


def ledger_in(path: Path) -> Path | None:
    """The ledger that a state directory holds, or that a file is; None where it is none. Raises OSError."""
    if path.is_dir():
        return path / LEDGER_NAME if (path / LEDGER_NAME).exists() else None
    if not path.is_file():  # a pipe gives its bytes once
        return None
    with path.open("rb") as file:
        return path if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC else None


def read_envelope(name: str) -> bytes:
    """The bytes of one envelope, from a file or from stdin. Raises StructureError for a longer one."""
    piece = Piece("-", sys.stdin.buffer.read(MAX_ENVELOPE_BYTES + 1)) if name == "-" else _in_file(Path(name))
    piece.check_size()
    return piece.envelope


def split_archive(file: BinaryIO, label: str) -> Iterator[bytes]:
    """The envelopes of an archive, in order. Raises StructureError at the first byte that belongs to none."""
    number = 0
    while start := file.read(len(_TAG_SIGN1)):
        try:
            if start != _TAG_SIGN1:
                raise StructureError("not a COSE_Sign1 (tag 18)")
            protected = _byte_string(file)
            _expect(file, _EMPTY_MAP, "an empty unprotected header")
            payload = _byte_string(file)
            _expect(file, _SIGNATURE_HEAD, "a signature of 64 bytes")
            yield b"".join((start, protected, _EMPTY_MAP, payload, _SIGNATURE_HEAD, _exactly(file, 64)))
        except StructureError as e:
            raise StructureError(f"{label}: envelope {number}: {e}") from None
        number += 1


def _in_file(path: Path) -> Piece:
    with path.open("rb") as file:
        # one byte too many is read on purpose: the check then says that it is too long
        data = file.read(MAX_ENVELOPE_BYTES + 1)
        status = os.fstat(file.fileno())
    return Piece(str(path), data, size=status.st_size if stat.S_ISREG(status.st_mode) else None)


def _in_archive(path: Path) -> Iterator[Piece]:
    with path.open("rb") as file:
        for number, envelope in enumerate(split_archive(file, str(path))):
            yield Piece(f"{path} envelope {number}", envelope)


def _in_ledger(path: Path, label: str, every_checkpoint: bool) -> Iterator[Piece]:
    with LedgerReader.open(path) as reader:
        # the checkpoints first: a gateway at work may add receipts meanwhile, and only receipts may be ahead
        if every_checkpoint:
            for number, checkpoint in reader.checkpoints():
                yield Piece(f"{label} checkpoint {number}", checkpoint)
        elif (last := reader.last_checkpoint()) is not None:
            yield Piece(f"{label} last checkpoint", last)
        for entry in reader.receipts():
            row = (entry.seq, entry.receipt_id, entry.serve_id)
            yield Piece(f"{label} seq {entry.seq}", entry.envelope, row)


def _byte_string(file: BinaryIO) -> bytes:
    """A definite byte string with its head, as it stands. Its spelling is judged by the check of the envelope."""
    head = _exactly(file, 1)
    if head[0] >> 5 != 2:
        raise StructureError("expected a byte string")
    width = head[0] & 0x1F
    if width < 24:
        return head + _exactly(file, width)
    if width > 27:
        raise StructureError("byte string of an indefinite or unknown length")
    size = _exactly(file, 1 << (width - 24))
    length = int.from_bytes(size, "big")
    if length > MAX_PAYLOAD_BYTES:
        raise StructureError(f"byte string of {length} bytes, at most {MAX_PAYLOAD_BYTES}")
    return head + size + _exactly(file, length)


def _expect(file: BinaryIO, expected: bytes, what: str) -> None:
    if file.read(len(expected)) != expected:
        raise StructureError(f"expected {what}")


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise StructureError("ends in the middle")
    return data
