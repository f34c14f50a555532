"""One case of the vectors, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.diagnostic import diagnostic

ACCEPT, REJECT = 0, 10
NOTHING = "-"
MAX_DIAGNOSED_BYTES = 8192


def dashed(field: str) -> str:
    """A field's name as part of a case's."""
    return field.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Case:
    """`answer` is the line on stdout (None: none) or, where it is refused, the error class. `rule` is the step of the
    section's list, None where it has none. `shown` is what the answer is the digest of, for readers."""

    id: str
    op: str
    arguments: tuple[str, ...]
    exit: int
    answer: str | None
    spec: str
    rule: int | None
    comment: str
    files: Mapping[str, bytes]
    feature: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    shown: bytes | None = None

    @property
    def line(self) -> str:
        """Its line in INDEX.tsv."""
        rule = NOTHING if self.rule is None else str(self.rule)
        return "\t".join(
            (
                self.id,
                self.op,
                " ".join(self.arguments) or NOTHING,
                str(self.exit),
                self.answer or NOTHING,
                self.spec,
                rule,
                self.feature or NOTHING,
            )
        )

    def folder(self) -> dict[str, bytes]:
        """Every file of its folder."""
        out = dict(self.files)
        for name, data in self.files.items():
            if name.endswith(".cbor") and len(data) <= MAX_DIAGNOSED_BYTES:
                out[f"{name}.diag"] = diagnostic(data).encode()
        if self.shown is not None:
            out["view.json"] = self.shown
        told = {
            "id": self.id,
            "op": self.op,
            "arguments": list(self.arguments),
            "exit": self.exit,
            "expect": self.answer,
            "spec": self.spec,
            "rule": self.rule,
            "feature": self.feature,
            "comment": self.comment,
            **self.more,
        }
        told = {name: value for name, value in told.items() if value is not None}
        out["vector.json"] = (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode()
        return out


@dataclass(slots=True)
class Group:
    """Collects the cases of one folder of `vectors/v1`."""

    name: str
    cases: list[Case] = field(default_factory=list)

    def accept(
        self,
        name: str,
        call: str,
        line: str | None,
        where: str,
        comment: str,
        files: Mapping[str, bytes] | None = None,
        **rest: Any,
    ) -> None:
        self._add(name, call, ACCEPT, line, where, comment, files, rest)

    def reject(
        self,
        name: str,
        call: str,
        error: str,
        where: str,
        comment: str,
        files: Mapping[str, bytes] | None = None,
        **rest: Any,
    ) -> None:
        self._add(name, call, REJECT, error, where, comment, files, rest)

    def _add(
        self,
        name: str,
        call: str,
        code: int,
        answer: str | None,
        where: str,
        comment: str,
        files: Mapping[str, bytes] | None,
        rest: dict[str, Any],
    ) -> None:
        """`call` is the operation and its arguments; `where` the section's anchor and, after a dot, the step."""
        op, *arguments = call.split(" ")
        spec, _, rule = where.partition(".")
        number = int(rule) if rule else None
        name, inputs = f"{self.name}/{name}", dict(files or {})
        self.cases.append(Case(name, op, tuple(arguments), code, answer, spec, number, comment, inputs, **rest))
