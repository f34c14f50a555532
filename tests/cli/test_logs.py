"""Lines of the log, for people and for programs."""

from __future__ import annotations

import io
import json
import logging
import sys
import time

import pytest

from mesh.cli.logs import JsonLines, Lines, _Stderr
from mesh.gateway.journal import tell

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def record(message: str, *args: object, failed: bool = False) -> logging.LogRecord:
    info = None
    if failed:
        try:
            raise ValueError("at fault")
        except ValueError:
            info = sys.exc_info()
    return logging.makeLogRecord(
        {"name": "mesh.x", "levelname": "INFO", "msg": message, "args": args, "exc_info": info, "msecs": 7.9}
    )


@pytest.mark.parametrize("failed", [False, True])
def test_a_line_for_people_is_as_the_library_spells_it(failed: bool) -> None:
    one = record("%s of %d", "1", 2, failed=failed)
    formatter = logging.Formatter(FORM)
    formatter.default_msec_format = "%s,%03d"
    assert Lines(FORM).format(one) == formatter.format(one)
    assert Lines(FORM).format(one).startswith(time.strftime("%Y-%m-%d %H:%M:%S,007", time.localtime(one.created)))
    assert ("ValueError: at fault" in Lines(FORM).format(one)) is failed


def test_a_line_is_written_whole_and_a_fault_of_one_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    handler = _Stderr(out)
    handler.setFormatter(Lines(FORM))
    faults: list[logging.LogRecord] = []
    monkeypatch.setattr(handler, "handleError", faults.append)
    handler.handle(record("%d", "no number"))
    handler.handle(record("after it"))
    assert out.getvalue().endswith(" INFO mesh.x: after it\n")
    assert len(faults) == out.getvalue().count("\n") == 1


def test_fields_of_a_line_reach_programs() -> None:
    out = io.StringIO()
    handler = _Stderr(out)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("mesh.access", logging.INFO)
    logger.addHandler(handler)
    tell(logger, "%s is %d", ("it", 1), {"status": 200, "serve": "s"})
    told = json.loads(out.getvalue())
    assert {**told, "at": ""} == {
        "at": "", "level": "info", "logger": "mesh.access", "message": "it is 1", "status": 200, "serve": "s",
    }  # fmt: skip
