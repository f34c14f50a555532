"""How the log is written: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

from mesh.cli.console import json_safe

FORMATS = ("text", "json")


def to_stderr(how: str) -> None:
    """Log what is of interest to an operator, in one of `FORMATS`."""
    handler = _Stderr(sys.stderr)
    if how == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # neither form says so, and each would be looked up for every line
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class _Stderr(logging.StreamHandler[TextIO]):
    """stderr writes a line as soon as it is whole, so that there is nothing to flush after each."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record) + self.terminator)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  as the handlers of the library do: a log that is full stops nobody
            self.handleError(record)


class Lines(logging.Formatter):
    """Local time, spelled anew once a second."""

    _second, _spelled = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        return f"{self.formatTime(record)} {record.levelname} {record.name}: {record.getMessage()}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if self._second != int(record.created):
            self._second = int(record.created)
            self._spelled = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._second))
        return f"{self._spelled},{int(record.msecs):03d}"


class JsonLines(logging.Formatter):
    """`at` (UTC), `level`, `logger` and `message`, and the `fields` that a record carries. Integers that a double
    cannot hold are strings."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            told["exception"] = type(record.exc_info[1]).__name__
        return json.dumps(json_safe(told), ensure_ascii=False, separators=(",", ":"))
