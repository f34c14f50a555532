"""Compiled modules on disk: what they are, and whether one is what a blueprint pins."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mesh.blueprint.body import Module
from mesh.blueprint.elf import functions_of, machine_of
from mesh.errors import KernelError
from mesh.identity.files import open_regular

_PIECE_BYTES: Final = 1 << 20


def measured(path: Path, *, name: str, isa: str, origin: str) -> Module:
    """The module at `path`, for `isa`. Raises KernelError where it is compiled for another machine, OSError."""
    digest, length, machine = _read(path)
    if machine != isa.partition("-")[0]:
        raise KernelError(f"kernel module {name!r}: compiled for {machine or 'no machine that is known'}, not {isa}")
    return Module(name, digest, length, isa, origin)


def check_module(path: Path, module: Module) -> None:
    """Raises KernelError where the bytes at `path` are not those that `module` pins, or for another machine."""
    digest, length, machine = _read(path)
    if machine is not None and machine != module.architecture.partition("-")[0]:
        raise KernelError(f"kernel module {module.name!r}: compiled for {machine}, expected {module.architecture}")
    if (digest, length) != (module.digest, module.length):
        raise KernelError(
            f"kernel module {module.name!r}: {path.name} is {length} bytes with SHA-256 {digest.hex()}, expected "
            f"{module.length} with {module.digest.hex()}"
        )


def missing_functions(path: Path, names: Iterable[str]) -> list[str]:
    """Those of `names` that are no function of the module at `path`. Raises OSError."""
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        there = functions_of(data)
    return [name for name in names if name not in there]


def _read(path: Path) -> tuple[bytes, int, str | None]:
    hasher, length, machine = hashlib.sha256(), 0, None
    with open_regular(path) as file:
        while piece := file.read(_PIECE_BYTES):
            machine = machine if length else machine_of(piece)
            hasher.update(piece)
            length += len(piece)
    return hasher.digest(), length, machine
