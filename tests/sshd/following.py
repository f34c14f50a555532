"""Commands that go on: ended with the test that began them, however it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A test that fails kills what it began; else the process is waited for, which nobody but a failure would end."""
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def until(process: subprocess.Popen[str], words: str) -> list[str]:
    """What it said up to the line with these words."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return said
    raise AssertionError("".join(said))
