"""The real pynvml over a driver library of our own, built from tests/meter/nvml_stub.c."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pynvml
import pytest

SOURCE = Path(__file__).parent.parent / "meter" / "nvml_stub.c"
MAX_CARDS = 8


class StubCard(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 64),
        ("name", ctypes.c_char * 64),
        ("energy_mj", ctypes.c_uint64),
        ("power_mw", ctypes.c_uint32),
        ("mig", ctypes.c_uint32),
        ("energy_error", ctypes.c_int32),
        ("power_error", ctypes.c_int32),
        ("mig_error", ctypes.c_int32),
        ("handle_error", ctypes.c_int32),
        ("step_mj", ctypes.c_uint32),
        ("looks", ctypes.c_uint32),
    )


class StubHost(ctypes.Structure):
    _fields_ = (
        ("init_error", ctypes.c_int32),
        ("count", ctypes.c_uint32),
        ("open", ctypes.c_int32),
        ("cards", StubCard * MAX_CARDS),
    )

    def add(self, uuid: str, *, name: str = "Stub 100", **fields: int) -> StubCard:
        card = self.cards[self.count]
        self.count += 1
        card.uuid, card.name = uuid.encode(), name.encode()
        for field, value in fields.items():
            setattr(card, field, value)
        return card

    def reload(self) -> None:
        """What a driver does that is taken out and put in again."""
        self.open = 0
        for card in self.cards:
            card.energy_mj = 0

    def clear(self, init_error: int = 0) -> None:
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))
        self.init_error = init_error


@cache
def stub_host() -> StubHost:
    """The host behind pynvml for the rest of this process. Without a compiler the test is skipped on a developer's
    machine, and fails in CI."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("no C compiler for the driver library that NVML is tested against")
        pytest.skip("SKIPPED: NVML is not tested here, for there is no C compiler to build its stub driver with")
    # the name under which pynvml asks the loader for the driver's library; the loader gives what has that name already
    library = Path(mkdtemp(prefix="mesh-nvml-")) / "libnvidia-ml.so.1"
    try:
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}",
             "-o", str(library), str(SOURCE)],
            check=True,
        )  # fmt: skip
        host = StubHost.in_dll(ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL), "stub_host")
    finally:
        shutil.rmtree(library.parent)
    host.clear()
    pynvml.nvmlInit()
    assert host.open == 1, "pynvml found another driver library first"
    pynvml.nvmlShutdown()
    return host
