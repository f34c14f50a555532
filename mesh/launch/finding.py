"""What is wrong, missing or worth knowing about a recipe: one finding each, and none of them lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable, for programs; `where` is the key or flag; `message` is for people, in lower case."""

    level: Level
    code: str
    where: str
    message: str

    def words(self) -> str:
        return f"{self.level}: {self.where}: {self.message}"

    def to_map(self) -> dict[str, str]:
        return {"level": self.level, "code": self.code, "where": self.where, "message": self.message}


def error(code: str, where: str, message: str) -> Finding:
    return Finding("error", code, where, message)


def warning(code: str, where: str, message: str) -> Finding:
    return Finding("warning", code, where, message)


def note(code: str, where: str, message: str) -> Finding:
    return Finding("note", code, where, message)


def advisory(findings: Iterable[Finding]) -> list[Finding]:
    """The same, none of them an error: what an archived recipe gets."""
    return [replace(one, level="warning") if one.level == "error" else one for one in findings]


def has_error(findings: Sequence[Finding]) -> bool:
    return any(one.level == "error" for one in findings)
