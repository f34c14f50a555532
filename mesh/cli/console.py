"""Printing: data to stdout, text for people about the run to stderr, nothing that could drive a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from mesh.cli.newfile import naming

STDOUT = "standard output"  # as errors call it
JSON_SAFE_INT = 2**53 - 1  # what a double, and so JavaScript, holds exactly


def say(text: str = "") -> None:
    """Print lines of data for people."""
    with naming(STDOUT):
        sys.stdout.write("".join(f"{printable(line)}\n" for line in text.split("\n")))


def note(text: str) -> None:
    """Print one line about the run: progress, a warning, an error. A stderr that takes nothing stops no command."""
    flush()
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(" ".join(text.split())) + "\n")
        sys.stderr.flush()


def stream_out(text: str) -> None:
    """Print a piece of a model's answer as it comes. It must not drive a terminal; a file gets it as it is."""
    if text:
        with naming(STDOUT):
            sys.stdout.write(printable_text(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()


def emit(value: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command."""
    with naming(STDOUT):
        sys.stdout.write(json.dumps(json_safe(value), indent=2, allow_nan=False) + "\n")


def flush() -> None:
    """Let go of what was printed. Raises OSError where stdout does not take it."""
    with naming(STDOUT):
        sys.stdout.flush()


def counted(count: int, noun: str) -> str:
    """`1 receipt`, `2 receipts`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """One line with control and direction-changing characters escaped: names and messages may come from others."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_text(text: str) -> str:
    """`printable` for text of many lines."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def json_safe(value: Any) -> Any:
    """The value with fractions, and integers that a double cannot hold, as decimal strings."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")
    if isinstance(value, int):
        return int(value) if -JSON_SAFE_INT <= value <= JSON_SAFE_INT else str(value)
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    return value
