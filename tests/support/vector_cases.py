"""The conformance cases, made once for the files that ask about them, and not before: they take seconds."""

from functools import cache

from conformance.case import Case
from conformance.regenerate import all_cases, tree


@cache
def cases() -> tuple[Case, ...]:
    return tuple(all_cases())


@cache
def files() -> dict[str, bytes]:
    """Every file under `vectors/v1`."""
    return tree(cases())
