"""`mesh serve` as a process of its own, from a config."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    told: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        url: str = self.told["url"]
        return url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def hang(pid: int | None) -> None:
    """Stop a child of this process. The signal is sent before each of its threads stands still."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


@contextmanager
def served(folder: Path, config: str, *flags: str) -> Iterator[Served]:
    """Runs until the block is left; its stderr is in `log`, its ledger in `folder`/state."""
    (folder / "mesh.toml").write_text(config)
    log = folder / "stderr"
    command = [sys.executable, "-m", "mesh.cli.main", "serve", "--config", str(folder / "mesh.toml"), "--port", "0"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*command, "--json", *flags], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
        ) as process,
    ):
        try:
            yield Served(process, _told(process, log), log)
        finally:
            process.terminate()


def _told(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        line = process.stdout.readline()
        assert line, f"it ended before it served: {log.read_text()}"
        lines.append(line)
    told: dict[str, Any] = json.loads("".join(lines))
    return told
