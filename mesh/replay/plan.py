"""What an audit replays: everything at hand, or a sample drawn from a public seed, up to a head that was named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mesh.errors import SequenceError
from mesh.replay.census import Census
from mesh.replay.draw import draw
from mesh.replay.holding import Held, Holding
from mesh.schema.ids import ContentId, steward_text


@dataclass(frozen=True, slots=True)
class Asked:
    """What the auditor wants replayed: `size` receipts of each stratum by `seed`, or, where they are None, all; up to
    `heads`, which he `named`, or which are those of a run that goes on. Strata are stewards, or, with `each_model`,
    their models."""

    size: int | None = None
    seed: bytes | None = None
    heads: tuple[ContentId, ...] = ()
    named: bool = False
    each_model: bool = False


@dataclass(frozen=True, slots=True)
class Stratum:
    """What was drawn of one steward, or of one of its models: `drawn` are numbers, of `population` receipts up to
    `head`, which is number `head_seq`. `committed`: the auditor named the head, rather than take the last at hand."""

    steward: bytes
    head: ContentId
    head_seq: int
    committed: bool
    population: int
    drawn: tuple[int, ...]
    model: str | None = None

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "steward": steward_text(self.steward), "head": self.head.text, "head_seq": self.head_seq,
            "committed": self.committed, "population": self.population, "drawn": list(self.drawn),
        }  # fmt: skip
        return told if self.model is None else {**told, "model": self.model}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is replayed: all receipts that are at hand, or, with `size` and `seed`, those that were drawn. `engine` says
    what replays, None where nothing does."""

    strata: tuple[Stratum, ...]
    size: int | None = None
    seed: bytes | None = None
    engine: str | None = None

    @property
    def chosen(self) -> int:
        return sum(len(one.drawn) if self.size is not None else one.population for one in self.strata)

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"what": "all" if self.size is None else "sample", "receipts": self.chosen}
        if self.size is not None and self.seed is not None:
            told |= {"size": self.size, "seed": self.seed.hex()}
        if self.engine is not None:
            told["engine"] = self.engine
        strata = [one.to_json() for one in self.strata]
        if self.size is None:  # all of them need no list
            for one in strata:
                del one["drawn"]
        return told | {"strata": strata}


def planned(census: Census, asked: Asked, engine: str | None = None) -> Plan:
    """Draw. A named head that is not at hand is a fault: the sequence is not the one that its steward named."""
    at: dict[bytes, tuple[ContentId, int]] = {}
    for head in asked.heads:
        found = [(one, seq) for one, holding in census.holdings.items() if (seq := holding.seq_of(head)) is not None]
        if not found:
            census.fault("head", SequenceError(f"head {head}: no receipt at hand has this id"), "--head")
        at.update({steward: (head, seq) for steward, seq in found})
    strata: list[Stratum] = []
    for steward in sorted(census.holdings):
        holding = census.holdings[steward]
        last, last_seq = holding.head, holding.last
        if last is None or last_seq is None:
            continue
        head, seq = at.get(steward, (last, last_seq))
        committed = asked.named and steward in at
        names = {census.groups[held.group].recipe_id for held in holding.upto(seq + 1)} if asked.each_model else ()
        models: list[str | None] = [*sorted(names)] if asked.each_model else [None]
        for model in models:
            population = sum(1 for _ in _of_model(census, holding, seq, model))
            drawn: list[int] = []
            if asked.size is not None and asked.seed is not None:
                seqs = (held.seq for held in _of_model(census, holding, seq, model))
                drawn = draw(head, asked.seed, seqs, asked.size)
            strata.append(Stratum(steward, head, seq, committed, population, tuple(drawn), model))
    return Plan(tuple(strata), asked.size, asked.seed, engine)


def chosen(census: Census, plan: Plan) -> dict[int, set[bytes]]:
    """The ids of what is replayed, by the number of its group in the census."""
    found: dict[int, set[bytes]] = {}
    for stratum in plan.strata:
        holding = census.holdings[stratum.steward]
        wanted = None if plan.size is None else frozenset(stratum.drawn)
        for held in _of_model(census, holding, stratum.head_seq, stratum.model):
            if wanted is None or held.seq in wanted:
                found.setdefault(held.group, set()).add(held.receipt_id)
    return found


def _of_model(census: Census, holding: Holding, head_seq: int, model: str | None) -> Iterator[Held]:
    for held in holding.upto(head_seq + 1):
        if model is None or census.groups[held.group].recipe_id == model:
            yield held
