"""How far long work on bytes has come, on stderr: a bar where somebody looks, a line now and then where not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mesh.cli.console import note

LONG_BYTES = 64 << 20  # below it the work is done before anybody wonders
_STEPS = 4  # lines that a log gets of it


@contextmanager
def following(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives what is to be called with the bytes that are done and those that there are."""
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False)

        def update(done: int, total: int) -> None:
            if total >= LONG_BYTES:
                bar.update(task, completed=done, total=total, visible=True)

        yield update


class _Lines:
    def __init__(self, what: str) -> None:
        self._what, self._said = what, 0

    def __call__(self, done: int, total: int) -> None:
        if total >= LONG_BYTES and (step := done * _STEPS // total) > self._said:
            self._said = step
            note(f"{self._what}: {100 * step // _STEPS} % of {total >> 20} MiB")
