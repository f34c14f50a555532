"""What a replay says. The row numbers are those of the decision table in SPEC.md, section Replay."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

Kind = Literal["verified", "diverged", "not-replayable"]
Reason = Literal[
    "other-request",
    "incomplete-serve",
    "no-commitment",
    "no-opening",
    "other-backend",
    "other-recipe",
    "other-weights",
    "other-blueprint",
    "other-settings",
    "not-claimed",
    "engine-samples",
    "engine-failed",
    "unattributed",
    "unstable",
    "tie",
]
Method = Literal["prefill", "decode"]
Prompt = Literal["checked", "unchecked"]
Output = Literal["matches", "differs", "not-given"]
Ending = Literal["cut"]
Cache = Literal["cold"]

EXIT_VERIFIED, EXIT_DIVERGED, EXIT_NOT_REPLAYABLE = 0, 10, 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One of three kinds, and the row that decided. Fields that do not belong to a verdict are None.

    Verified: `method` (prefill: the disclosed output was checked in one pass; decode: it was made again), `prompt`
    (checked: its text, or the ids the client gave, is what `prompt_hash` addresses and what the engine was handed),
    `output` (the disclosed one against the commitment), `ending` (cut: the serve was cancelled, so where it ends was
    not judged).
    Diverged: either `field`, the receipt's field that is not true, or `first_difference`, the index of the first
    output id that differs, with the id `served` and the id `replayed` there (None: that side had ended), and
    `margin`, the distance in logits between the best two at that index in the re-run, None where unknown.
    Both after a re-run: `cache` (cold: the engine was kept from using what its prefix cache had of other serves).
    NotReplayable: `reason`, and `field` where a part of what was given is at fault.
    `detail` is for people.
    """

    kind: Kind
    row: int
    reason: Reason | None = None
    field: str | None = None
    method: Method | None = None
    prompt: Prompt | None = None
    output: Output | None = None
    ending: Ending | None = None
    cache: Cache | None = None
    first_difference: int | None = None
    served: int | None = None
    replayed: int | None = None
    margin: float | None = None
    detail: str | None = None

    @property
    def exit_code(self) -> int:
        """0 verified; 10 diverged, or verified while the disclosed output is another one; 11 not replayable."""
        match self.kind:
            case "verified":
                return EXIT_DIVERGED if self.output == "differs" else EXIT_VERIFIED
            case "diverged":
                return EXIT_DIVERGED
            case "not-replayable":
                return EXIT_NOT_REPLAYABLE

    def to_json(self) -> dict[str, Any]:
        """The view for JSON: `kind` is called `verdict`, and what is None is left out."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: value for name, value in told.items() if value is not None}
        return {"verdict": told.pop("kind"), **told}


def verified(row: int, method: Method, *, prompt: Prompt, output: Output, cut: bool) -> Verdict:
    ending: Ending | None = "cut" if cut else None
    return Verdict(kind="verified", row=row, method=method, prompt=prompt, output=output, ending=ending)


def field_diverged(row: int, field: str, detail: str) -> Verdict:
    return Verdict(kind="diverged", row=row, field=field, detail=detail)


def output_diverged(
    row: int, *, first_difference: int, served: int | None, replayed: int | None, margin: float | None
) -> Verdict:
    return Verdict(
        kind="diverged",
        row=row,
        first_difference=first_difference,
        served=served,
        replayed=replayed,
        margin=margin,
    )


def not_replayable(row: int, reason: Reason, *, field: str | None = None, detail: str | None = None) -> Verdict:
    return Verdict(kind="not-replayable", row=row, reason=reason, field=field, detail=detail)
