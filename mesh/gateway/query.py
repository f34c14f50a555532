"""Parameters of a URL, each once, each known, each as it should be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from aiohttp import web

from mesh.errors import BadRequest, TrustFileError
from mesh.schema.limits import MAX_UINT
from mesh.schema.trust import time_from_text

T = TypeVar("T")

MAX_CHARS = 256


class Query:
    """Raises BadRequest for a parameter that is not among `known`, or there twice."""

    def __init__(self, request: web.Request, known: Collection[str]) -> None:
        self._given: Mapping[str, str] = dict(request.query)
        if len(self._given) != len(request.query):
            raise BadRequest("query: a parameter is there twice", code="duplicate_key")
        for name, value in self._given.items():
            if name not in known:
                raise BadRequest(
                    f"query: unknown parameter {name[:80]!r}; known: {', '.join(known)}",
                    code="unknown_parameter", param=name[:80],
                )  # fmt: skip
            if len(value) > MAX_CHARS:
                raise _fault(name, f"over {MAX_CHARS} characters")

    def text(self, name: str) -> str | None:
        """None where it is not given or empty."""
        return self._given.get(name) or None

    def one_of(self, name: str, words: Collection[str]) -> str | None:
        word = self.text(name)
        if word is not None and word not in words:
            raise _fault(name, f"expected one of {', '.join(words)}, not {word[:80]!r}")
        return word

    def integer(self, name: str, default: int, *, least: int = 0, most: int = MAX_UINT) -> int:
        return self._read(name, lambda text: _integer(name, text, least, most), default)

    def time_ns(self, name: str, default: int) -> int:
        """Unix nanoseconds of a time like 2026-11-30T08:00:00Z."""
        return self._read(name, lambda text: _time_ns(name, text), default)

    def _read(self, name: str, read: Callable[[str], T], default: T) -> T:
        text = self.text(name)
        return default if text is None else read(text)


def _fault(name: str, why: str) -> BadRequest:
    return BadRequest(f"{name}: {why}", code="invalid_value", param=name)


def _integer(name: str, text: str, least: int, most: int) -> int:
    # no more digits than the largest has: what they would be is not worth the work
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not least <= value <= most:
        raise _fault(name, f"expected a whole number from {least} to {most}, not {text[:80]!r}")
    return value


def _time_ns(name: str, text: str) -> int:
    try:
        return time_from_text(text)
    except TrustFileError as e:
        raise _fault(name, str(e)) from None
