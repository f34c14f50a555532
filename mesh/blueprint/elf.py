"""As much of an ELF file as tells what machine it is for and which functions are in it."""

from __future__ import annotations

import mmap
import struct
from typing import Final

MAGIC: Final = b"\x7fELF"
HEAD_BYTES: Final = 20
_64_BITS_LITTLE: Final = b"\x02\x01"
_MACHINES: Final = {
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    21: "ppc64le",
    22: "s390x",
    190: "cuda",
    224: "amdgpu",
}
_SECTIONS = struct.Struct("<Q")  # at 40: where the section headers are
_COUNTS = struct.Struct("<HH")  # at 58: the size of one, and how many
_SECTION = struct.Struct("<IIQQQQII")  # name, type, flags, address, offset, size, link, info
_SYMBOL = struct.Struct("<IBBHQQ")  # name, kind, other, section, value, size
_TABLES: Final = (2, 11)  # all symbols, and those that are loaded
_FUNCTION: Final = 2


def machine_of(head: bytes) -> str | None:
    """What a module is compiled for, by its first 20 bytes; None where it is no ELF file, or for what is not known."""
    if not head.startswith(MAGIC) or len(head) < HEAD_BYTES:
        return None
    return _MACHINES.get(int.from_bytes(head[18:HEAD_BYTES], "little"))


def functions_of(data: bytes | mmap.mmap) -> frozenset[str]:
    """The names of all functions that its tables say are defined in it; none where it is no such file, or its tables
    lead outside."""
    found: set[str] = set()
    try:
        if data[:4] != MAGIC or data[4:6] != _64_BITS_LITTLE:
            return frozenset()
        (at,) = _SECTIONS.unpack_from(data, 40)
        size, count = _COUNTS.unpack_from(data, 58)
        sections = [_SECTION.unpack_from(data, at + number * size) for number in range(count)]
        for _, kind, _, _, offset, length, link, _ in sections:
            if kind not in _TABLES or link >= len(sections):
                continue
            names_at, names_length = sections[link][4:6]
            names = data[names_at : names_at + names_length]
            table = data[offset : offset + length]
            for name, info, _, section, _, _ in _SYMBOL.iter_unpack(table[: len(table) // _SYMBOL.size * _SYMBOL.size]):
                if info & 0xF == _FUNCTION and section:
                    end = names.find(b"\0", name)
                    if 0 <= name < end:
                        found.add(names[name:end].decode(errors="replace"))
    except struct.error:
        return frozenset()
    return frozenset(found)
