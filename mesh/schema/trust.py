"""Whom a verifier trusts, and for which time. Chosen by the verifier, never taken from what is verified.

A trust file is text, one key a line:

    ed25519:<64 hex> [from=<YYYY-MM-DDTHH:MM:SSZ>] [until=<the same>]     # a comment

`from` is the first second of a window and `until` the first after it; without them it is open on that side. Several
lines with one key are several windows. A retired key is one with an `until`: what it signed before stays good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mesh.errors import SchemaError, SignatureError, TrustFileError, UntrustedSteward
from mesh.schema.ids import steward_from_text, steward_text
from mesh.schema.keys import check_public_key
from mesh.schema.limits import MAX_TRUST_FILE_BYTES, MAX_UINT

_NS_PER_S = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})Z")


@dataclass(frozen=True, slots=True)
class Window:
    """Unix nanoseconds; None where it is open on that side."""

    from_ns: int | None = None
    until_ns: int | None = None

    def __post_init__(self) -> None:
        if self.from_ns is not None and self.until_ns is not None and self.from_ns >= self.until_ns:
            raise TrustFileError("from must be before until")

    def holds(self, at_ns: int) -> bool:
        return (self.from_ns is None or self.from_ns <= at_ns) and (self.until_ns is None or at_ns < self.until_ns)

    def __str__(self) -> str:
        sides = [("from", self.from_ns), ("until", self.until_ns)]
        return " ".join(f"{name}={time_text(ns)}" for name, ns in sides if ns is not None) or "always"


ALWAYS = Window()


class Trust:
    """A collection of 32-byte keys, with each one's windows. To `verify` any collection will do; only this one knows
    when a key was good."""

    __slots__ = ("_windows",)

    def __init__(self, windows: Mapping[bytes, Iterable[Window]]) -> None:
        self._windows = {key: tuple(dict.fromkeys(theirs)) for key, theirs in windows.items()}

    @classmethod
    def always(cls, keys: Iterable[bytes]) -> Trust:
        return cls(dict.fromkeys(keys, (ALWAYS,)))

    @classmethod
    def parse(cls, data: bytes) -> Trust:
        """Raises TrustFileError for what is no trust file, and for a key that can bind nobody."""
        if len(data) > MAX_TRUST_FILE_BYTES:
            raise TrustFileError(f"over {MAX_TRUST_FILE_BYTES} bytes")
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError:
            raise TrustFileError("not a text file of keys") from None
        windows: dict[bytes, list[Window]] = {}
        for number, line in enumerate(lines, start=1):
            words = re.split(r"[ \t]+", line.partition("#")[0].strip(" \t\r"))
            if words == [""]:
                continue
            try:
                key, window = _entry(words)
            except TrustFileError as e:
                raise TrustFileError(f"line {number}: {e}") from None
            windows.setdefault(key, []).append(window)
        if not windows:
            raise TrustFileError("holds no key")
        return cls(windows)

    def __or__(self, other: Trust) -> Trust:
        keys = self._windows.keys() | other._windows.keys()
        return Trust({key: (*self._windows.get(key, ()), *other._windows.get(key, ())) for key in keys})

    def __contains__(self, key: object) -> bool:
        return key in self._windows

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)

    def __repr__(self) -> str:
        return f"Trust({self._windows!r})"

    def windows(self, key: bytes) -> tuple[Window, ...]:
        return self._windows.get(key, ())

    def check_time(self, key: bytes, at_ns: int) -> None:
        """Raises UntrustedSteward where no window of the key holds the moment."""
        windows = self.windows(key)
        if not any(window.holds(at_ns) for window in windows):
            known = ", ".join(map(str, windows)) or "never"
            raise UntrustedSteward(f"steward {steward_text(key)}: signed for {time_text(at_ns)}, trusted {known}")


def trusted_key(text: str) -> bytes:
    """The 32 bytes of `ed25519:<64 hex>`. Raises TrustFileError for other text and for a key that can bind nobody."""
    try:
        key = steward_from_text(text)
        check_public_key(key)
    except SchemaError:
        raise TrustFileError(f"expected a key, ed25519:<64 lower-case hex>, got {text[:80]!r}") from None
    except SignatureError as e:
        raise TrustFileError(f"{text}: {e}") from None
    return key


def _entry(words: list[str]) -> tuple[bytes, Window]:
    first, *limits = words
    key = trusted_key(first)
    found: dict[str, int] = {}
    for word in limits:
        name, given, text = word.partition("=")
        if not given or name not in ("from", "until") or name in found:
            raise TrustFileError(f"expected at most one from=TIME and one until=TIME, got {word[:80]!r}")
        found[name] = time_from_text(text)
    return key, Window(found.get("from"), found.get("until"))


def time_from_text(text: str) -> int:
    """Unix nanoseconds of `2026-11-30T08:00:00Z`: RFC 3339 in UTC, whole seconds, from 1970 to 2262."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        year, month, day, hour, minute, second = map(int, match.groups())
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise TrustFileError(f"expected a time like 2026-11-30T08:00:00Z, got {text[:80]!r}") from None
    ns = (moment - _EPOCH) // timedelta(seconds=1) * _NS_PER_S
    if not 0 <= ns <= MAX_UINT:
        raise TrustFileError(f"a time outside 1970 to 2262: {text}")
    return ns


def time_text(ns: int) -> str:
    """The same text for Unix nanoseconds, with the decimals that are not 0."""
    seconds, rest = divmod(ns, _NS_PER_S)
    whole = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return whole + (f".{rest:09d}".rstrip("0") if rest else "") + "Z"
