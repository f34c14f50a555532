"""How the log is written: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from mesh.cli.console import json_safe

FORMATS = ("text", "json")


def to_stderr(how: str) -> None:
    """Log what is of interest to an operator, in one of `FORMATS`."""
    handler = logging.StreamHandler(sys.stderr)
    if how == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


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
