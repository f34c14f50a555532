"""The report of an audit: one value that is told in words, as JSON and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mesh.replay.census import Census, Tally
from mesh.replay.conservation import EpochSum, Uncovered
from mesh.replay.holding import Holding
from mesh.replay.judged import Judgements, quantile
from mesh.replay.plan import Plan
from mesh.replay.verdict import EXIT_DIVERGED, EXIT_NOT_REPLAYABLE, EXIT_VERIFIED
from mesh.schema.ids import steward_text

LISTED_GAPS = 100
Word = Literal["good", "refused", "undecided"]


@dataclass(frozen=True, slots=True)
class Report:
    census: Census
    plan: Plan
    judged: Judgements

    @property
    def exit_code(self) -> int:
        """10 where anything is wrong, 11 where something could not be decided, else 0."""
        replayed = self.judged.exit_code
        if self.census.refused.total() or replayed == EXIT_DIVERGED:
            return EXIT_DIVERGED
        if self.census.undecided.total() or replayed == EXIT_NOT_REPLAYABLE:
            return EXIT_NOT_REPLAYABLE
        return EXIT_VERIFIED

    @property
    def word(self) -> Word:
        words: dict[int, Word] = {EXIT_VERIFIED: "good", EXIT_DIVERGED: "refused", EXIT_NOT_REPLAYABLE: "undecided"}
        return words[self.exit_code]

    def stewards(self) -> list[tuple[bytes, Holding, Tally]]:
        """Those of whom anything is at hand, in the order of their keys."""
        census = self.census
        return [
            (steward, census.holdings[steward], census.tallies.get(steward, Tally()))
            for steward in sorted(census.holdings)
        ]

    def to_json(self) -> dict[str, Any]:
        census = self.census
        uncovered = census.uncovered()
        return {
            "verdict": self.word,
            "receipts": census.good,
            "checkpoints": census.checkpoints,
            "repeated": census.repeated,
            "sources": [
                {"source": given.source.label, "envelopes": given.statements, "partial": given.source.partial}
                for given in census.sources
            ],
            "refused": dict(sorted(census.refused.items())),
            "undecided": dict(sorted(census.undecided.items())),
            "faults": [
                {"kind": one.kind, "code": one.code, "source": one.where, "message": one.message}
                for one in (*census.faults, *census.undecided_listed)
            ],
            "stewards": [
                _steward(steward, holding, tally, census.missing.get(steward, []), uncovered.get(steward))
                for steward, holding, tally in self.stewards()
            ],
            "energy": [_sum(one) for one in census.sums],
            "plan": self.plan.to_json(),
            "disclosures": dict(sorted(self.judged.disclosures.items())),
            "replays": _replays(self.judged),
            "scores": _scores(self.judged),
        }  # fmt: skip


def _steward(
    steward: bytes, holding: Holding, tally: Tally, missing: list[tuple[int, int]], uncovered: Uncovered | None
) -> dict[str, Any]:
    told: dict[str, Any] = {"steward": steward_text(steward), "receipts": len(holding)}
    if holding.head is not None:
        told |= {"first_seq": holding.first, "last_seq": holding.last, "head": holding.head.text}
        told |= {"first_ended_ns": tally.first_ns, "last_ended_ns": tally.last_ns}
    told |= {
        "missing": [{"first_seq": first, "last_seq": last} for first, last in missing[:LISTED_GAPS]],
        "finishes": dict(sorted(tally.finishes.items())),
        "bases": dict(sorted(tally.bases.items())),
        "incomplete": tally.incomplete,
        "models": {model: dict(sorted(finishes.items())) for model, finishes in sorted(tally.models.items())},
    }
    if tally.serves:
        told["incomplete_share"] = tally.incomplete / tally.serves
    if uncovered is not None:
        told["uncovered"] = {"receipts": uncovered.receipts, "uj": uncovered.uj}
    return told


def _sum(one: EpochSum) -> dict[str, Any]:
    told = {
        "steward": steward_text(one.steward), "epoch": one.epoch.hex(), "domain": one.domain, "result": one.result,
        "epoch_seq": one.epoch_seq, "count": one.count, "checkpoints": one.checkpoints, "serves": one.serves,
        "first_uj": one.first_uj, "last_uj": one.last_uj, "receipts_uj": one.receipts_uj, "idle_uj": one.idle_uj,
        "unattributed_uj": one.unattributed_uj, "open_uj": one.open_uj, "difference_uj": one.difference_uj,
    }  # fmt: skip
    return {name: value for name, value in told.items() if value is not None}


def _replays(judged: Judgements) -> dict[str, Any]:
    told: dict[str, Any] = {
        "receipts": judged.count,
        "verdicts": dict(sorted(judged.verdicts.items())),
        "reasons": dict(sorted(judged.reasons.items())),
        "methods": dict(sorted(judged.methods.items())),
        "models": {model: dict(sorted(verdicts.items())) for model, verdicts in sorted(judged.models.items())},
        "diverged": [one.to_json() for one in judged.diverged],
        "not_replayable": [one.to_json() for one in judged.undecided],
    }
    if judged.serve_ns:
        told["time"] = {
            "serve_ns": judged.serve_ns, "replay_ns": judged.replay_ns,
            "ratio": judged.replay_ns / judged.serve_ns, "by_method": {
                method: dict(zip(("receipts", "p10", "p50", "p90"), (len(ratios), *spread(ratios)), strict=True))
                for method, ratios in sorted(judged.ratios.items())
            },
        }  # fmt: skip
    return told


def spread(ratios: Any) -> tuple[float, float, float]:
    """The tenth, fiftieth and ninetieth of a hundred."""
    ordered = sorted(ratios)
    return quantile(ordered, 0.1), quantile(ordered, 0.5), quantile(ordered, 0.9)


def _scores(judged: Judgements) -> dict[str, Any]:
    """Shares of matching tokens, by model. They are no verdicts, and say so."""
    return {
        "not_verdicts": True,
        "models": {
            model: {
                "receipts": total.receipts, "tokens": total.tokens, "matching": total.matching,
                **({"share": total.matching / total.tokens} if total.tokens else {}),
                "margins_at_mismatches": len(total.margins),
                **(dict(zip(("p10", "p50", "p90"), spread(total.margins), strict=True)) if total.margins else {}),
            }
            for model, total in sorted(judged.scores.items())
        },
        "receipts": [one.to_json() for one in judged.scored],
    }  # fmt: skip
