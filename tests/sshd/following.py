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
