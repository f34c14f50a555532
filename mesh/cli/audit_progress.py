"""How far a long run has come, as a bar on stderr where that is a terminal. Elsewhere it is silent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

_EVERY_S = 0.1  # between two looks of whoever watches; drawing costs more than checking an envelope


class Progress:
    """A context in which works are counted, one after the other."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @contextmanager
    def counting(self, what: str, *, total: int | None = None, done: int = 0) -> Iterator[Callable[[], None]]:
        """What is given is to be called after each step."""
        if self._bar is None:
            yield lambda: None
            return
        bar, count, shown = self._bar, done, 0.0
        task = bar.add_task(what, total=total, completed=done)

        def tick() -> None:
            nonlocal count, shown
            count += 1
            if (now := time.monotonic()) - shown > _EVERY_S:
                shown = now
                bar.update(task, completed=count)

        try:
            yield tick
        finally:
            bar.update(task, completed=count, refresh=True)
            bar.update(task, visible=False)
