"""What came of the replays of an audit: one line a receipt, and all of them added up."""

from __future__ import annotations

import math
from array import array
from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mesh.errors import SchemaError
from mesh.replay.score import Score
from mesh.replay.verdict import EXIT_DIVERGED, EXIT_NOT_REPLAYABLE, EXIT_VERIFIED, Kind, Verdict
from mesh.schema.ids import ContentId, steward_from_text, steward_text

LISTED = 1000  # verdicts of each kind that a report names one by one; all are counted
_OWN = ("tokens", "serve_ns", "replay_ns", "disclosure", "disclosure_fault")
RAN = 8  # the row from which on the engine has computed


@dataclass(frozen=True, slots=True)
class Judged:
    """One replay. `replay_ns` is what it took; `serve_ns` the span of the serve by its receipt. `tokens` are those that
    the receipt counts. `score` is no verdict. `disclosure` says where the disclosure came from, or why there was none;
    `disclosure_fault` what was wrong with something that was given as one."""

    steward: bytes
    seq: int
    receipt_id: ContentId
    model: str
    verdict: Verdict
    tokens: int | None = None
    serve_ns: int | None = None
    replay_ns: int | None = None
    score: Score | None = None
    disclosure: str | None = None
    disclosure_fault: str | None = None

    @property
    def ratio(self) -> float | None:
        """The time of the replay over that of the serve."""
        if self.verdict.kind == "not-replayable" or not self.serve_ns or self.replay_ns is None:
            return None
        return self.replay_ns / self.serve_ns if self.verdict.row >= RAN else None

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "steward": steward_text(self.steward), "seq": self.seq, "receipt_id": self.receipt_id.text,
            "model": self.model, **self.verdict.to_json(),
        }  # fmt: skip
        for name in _OWN:
            if getattr(self, name) is not None:
                told[name] = getattr(self, name)
        if self.score is not None:
            told["score"] = self.score.to_json()
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Judged:
        """Raises SchemaError for what `to_json` does not give."""
        fields = dict(told)
        try:
            score = fields.pop("score", None)
            own = {name: fields.pop(name, None) for name in _OWN}
            steward, seq = steward_from_text(fields.pop("steward")), int(fields.pop("seq"))
            receipt_id, model = ContentId.from_text(fields.pop("receipt_id")), str(fields.pop("model"))
            kind = fields.pop("verdict")
            if kind not in get_args(Kind):
                raise SchemaError(f"verdict is {kind!r:.80}")
            verdict = Verdict(kind=kind, **fields)
            read = None if score is None else Score.from_json(score)
        except (KeyError, TypeError, ValueError, AttributeError, SchemaError) as e:
            raise SchemaError(f"replay: {type(e).__name__}: {e}") from None
        return cls(steward, seq, receipt_id, model, verdict, score=read, **own)


class Judgements:
    """All replays of an audit. The lists are in the order of the receipts, whatever order they came in."""

    __slots__ = (
        "disclosures", "diverged", "methods", "models", "ratios", "reasons", "replay_ns", "scored", "scores",
        "serve_ns", "undecided", "verdicts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.disclosures: Counter[str] = Counter()
        self.models: dict[str, Counter[str]] = {}
        self.ratios: dict[str, array[float]] = {}
        self.serve_ns = 0
        self.replay_ns = 0
        self.diverged: list[Judged] = []
        self.undecided: list[Judged] = []
        self.scored: list[Judged] = []
        self.scores: dict[str, ScoreSum] = {}

    def add(self, one: Judged) -> None:
        verdict = one.verdict
        word = "output-differs" if verdict.kind == "verified" and verdict.exit_code else verdict.kind
        self.verdicts[word] += 1
        self.models.setdefault(one.model, Counter())[word] += 1
        if one.disclosure is not None:
            self.disclosures[one.disclosure] += 1
        if verdict.reason is not None:
            self.reasons[verdict.reason] += 1
        if verdict.method is not None:
            self.methods[verdict.method] += 1
        if one.ratio is not None:
            self.ratios.setdefault(verdict.method or "decode", array("d")).append(one.ratio)
            self.serve_ns += one.serve_ns or 0
            self.replay_ns += one.replay_ns or 0
        if word in ("diverged", "output-differs"):
            _keep(self.diverged, one)
        elif word == "not-replayable":
            _keep(self.undecided, one)
        if one.score is not None:
            _keep(self.scored, one)
            self.scores.setdefault(one.model, ScoreSum()).add(one.score)

    @property
    def count(self) -> int:
        return self.verdicts.total()

    @property
    def exit_code(self) -> int:
        if self.verdicts["diverged"] or self.verdicts["output-differs"]:
            return EXIT_DIVERGED
        return EXIT_NOT_REPLAYABLE if self.verdicts["not-replayable"] else EXIT_VERIFIED


class ScoreSum:
    """The scores of one model, added up."""

    __slots__ = ("margins", "matching", "receipts", "tokens")

    def __init__(self) -> None:
        self.receipts = 0
        self.tokens = 0
        self.matching = 0
        self.margins: array[float] = array("d")

    def add(self, score: Score) -> None:
        self.receipts += 1
        self.tokens += score.tokens
        self.matching += score.matching
        self.margins.extend(one.margin for one in score.mismatches if one.margin is not None)


def quantile(ordered: array[float] | list[float], part: float) -> float:
    """The value that `part` of them do not exceed, of those that are there."""
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)]


def _keep(listed: list[Judged], one: Judged) -> None:
    insort(listed, one, key=lambda judged: (judged.steward, judged.seq))
    if len(listed) > LISTED:
        listed.pop()
