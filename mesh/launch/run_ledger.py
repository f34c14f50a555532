"""The run ledger: a file for each recipe, a line for each thing that happened to its runs.

A run is open from before its first engine starts until every node was seen to be free of it. A launcher that dies
leaves the run open, which is the truth.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mesh.errors import LaunchError
from mesh.launch.process import Holder

Phase = Literal["starting", "ready", "stopping"]
LEDGER_FILE = "runs.jsonl"
LOCK_FILE = "lock"
_SHOWN = 5


@dataclass(slots=True)
class Run:
    """`at_ns` are Unix nanoseconds. `closed` says how it ended; None while it is open."""

    id: str
    opened: Mapping[str, Any]
    phase: Phase = "starting"
    closed: Mapping[str, Any] | None = None
    events: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return self.closed is None


@dataclass(frozen=True, slots=True)
class RunLedger:
    """Of one recipe, in `folder`. Whoever writes holds the lock."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / LEDGER_FILE

    @contextmanager
    def locked(self, *, at_ns: int) -> Iterator[str | None]:
        """Hold the recipe's lock: the system's own, so that a dead holder holds nothing. Gives what was found of a
        holder that left without a word, once. Raises LaunchError where another one holds it, or where one of another
        host wrote its name and nobody can say whether it lives."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK_FILE).open("a+", encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LaunchError(f"{self.folder.name}: another launcher is at work on it: {_named(file)[1]}") from None
            holder, shown = _named(file)
            stale = None
            if holder is not None:
                life, found = holder.life()
                if life == "unknown":
                    raise LaunchError(
                        f"{self.folder.name}: locked by {found}; where it is known to be gone, remove {file.name}"
                    )
                stale = found if holder != Holder.this() else None
            elif shown:
                stale = f"a lock that names nobody: {shown[:80]!r}"
            try:
                _write(file, json.dumps(Holder.this().to_map()))
            except OSError as e:
                raise LaunchError(f"{file.name}: could not be written: {(e.strerror or str(e)).lower()}") from None
            if stale is not None:
                self.append({"event": "stale-lock", "at_ns": at_ns, "found": stale})
            try:
                yield stale
            finally:
                _write(file, "")

    def at_work(self) -> str | None:
        """Who holds the lock now and is seen to live, in words. Nothing is locked, so that nobody is kept from it."""
        try:
            with (self.folder / LOCK_FILE).open(encoding="utf-8", errors="replace") as file:
                holder, _ = _named(file)
        except OSError:
            return None
        life, found = ("dead", "") if holder is None else holder.life()
        return found if life == "alive" else None

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one line and see it on the disk. A line that a crash cut is closed first, so that this one is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps(event, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        try:
            self._append(line)
        except OSError as e:
            why = (e.strerror or str(e)).lower()
            raise LaunchError(f"{self.path}: {event.get('event')!r} could not be written: {why}") from e

    def _append(self, line: bytes) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(fd, line) != len(line):
                raise LaunchError(f"{self.path}: the disk took half a line")
            os.fsync(fd)
        finally:
            os.close(fd)

    def runs(self) -> list[Run]:
        """All runs, oldest first. Lines that a crash cut are passed over. Of a run that has lines, but none that opens
        it, nothing is known but that there was one."""
        found: dict[str, Run] = {}
        for _, event in self._events():
            if event is None or "run" not in event:
                continue
            if event.get("event") == "opened":
                found[event["run"]] = Run(event["run"], event)
                continue
            run = found.setdefault(event["run"], Run(event["run"], {}))
            run.events.append(event)
            if event.get("event") == "closed":
                run.closed = event
            elif event.get("event") in ("ready", "stopping"):
                run.phase = event["event"]
        return list(found.values())

    def damaged(self) -> str | None:
        """Which lines nobody can read, in words; None where each can be. A line that a crash cut is one of them."""
        lines = [number for number, event in self._events() if event is None]
        if not lines:
            return None
        shown = ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
        return f"{self.path}: line{'s' * (len(lines) > 1)} {shown}: damaged, and passed over"

    def _events(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Each line by its number, what is no event as None."""
        if not self.path.exists():
            return
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), 1):
            if not line:
                continue
            try:
                event = json.loads(line, parse_float=_no_number, parse_constant=_no_number)
                json.dumps(event, ensure_ascii=False).encode()  # half a character is no text that can be shown
            except (ValueError, RecursionError):
                event = None
            whole = isinstance(event, dict) and isinstance(event.get("run", ""), str)
            yield number, event if whole else None

    def open_run(self) -> Run | None:
        return next((run for run in reversed(self.runs()) if run.open), None)


def _no_number(text: str) -> Any:
    """A ledger has whole ones alone."""
    raise ValueError(text)


def _named(file: Any) -> tuple[Holder | None, str]:
    """Whom a lock file names, and its text."""
    file.seek(0)
    text = file.read(4096).strip()
    try:
        holder = Holder.of(json.loads(text)) if text else None
    except (ValueError, RecursionError):
        holder = None
    return holder, (f"process {holder.pid} of {holder.host}" if holder is not None else text)


def _write(file: Any, text: str) -> None:
    """Past the file's own buffer, which would try again when it is closed."""
    os.ftruncate(file.fileno(), 0)
    os.write(file.fileno(), text.encode())
