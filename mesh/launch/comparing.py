"""Whether the ranks of a launch are of one kind. Pure: what was found on each node is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh.errors import RanksDiffer
from mesh.launch.ranks import Rank, comparable_argv, comparable_environment

Facts = Mapping[str, str]
"""What was found on one node: by what it is of, the lines that were printed."""


def check_ranks(ranks: Sequence[Rank], facts: Mapping[str, Facts]) -> None:
    """`facts` maps nodes to theirs. Raises RanksDiffer naming the first thing that differs, and on which nodes."""
    first = ranks[0]
    for rank in ranks[1:]:
        where = f"rank {rank.rank} on {rank.node.name} and rank 0 on {first.node.name}"
        if _kind(rank) != _kind(first):
            continue  # Ray's workers are started by another program, which gets the engine's argv from its head
        if comparable_argv(rank.argv) != comparable_argv(first.argv):
            raise RanksDiffer(f"argv: {where}: {_first(comparable_argv(first.argv), comparable_argv(rank.argv))}")
        mine, theirs = comparable_environment(rank.environment), comparable_environment(first.environment)
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise RanksDiffer(f"environment: {where}: {name} is {mine.get(name)!r}, not {theirs.get(name)!r}")
    for rank in ranks[1:]:
        mine, theirs = dict(facts.get(rank.node.name, {})), dict(facts.get(first.node.name, {}))
        for what in sorted(mine.keys() | theirs.keys()):
            if mine.get(what) != theirs.get(what):
                ours, other = (theirs.get(what) or "").splitlines(), (mine.get(what) or "").splitlines()
                where = f"rank {rank.rank} on {rank.node.name} and rank 0 on {first.node.name}"
                raise RanksDiffer(f"{what}: {where}: {_first(ours, other)}")


def _kind(rank: Rank) -> str:
    return rank.argv[0]


def _first(expected: Sequence[str], got: Sequence[str]) -> str:
    for one, other in zip(expected, got, strict=False):
        if one != other:
            return f"{other[:200]!r}, not {one[:200]!r}"
    more = [*expected[len(got) :], *got[len(expected) :]]
    return f"{more[0][:200]!r} is on one alone" if more else "the same"
