"""The circuit of a model: nodes, the edges between them, and the weights, blocks and state that they are about.

Everything is a list, and an index names an entry. Nodes are in an order in which they can be computed: an edge goes
from a node to a later one. Each edge has the format of what crosses it, so a change of format is a node of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mesh.blueprint import postcard as p
from mesh.blueprint.postcard_scalars import U32, U64, Text, Unsigned, Words
from mesh.errors import BodyError

MAX_NODES: Final = 1 << 20
MAX_EDGES: Final = 1 << 21
MAX_WEIGHTS: Final = 1 << 17
MAX_BLOCKS: Final = 1 << 16
MAX_FORMATS: Final = 256

KINDS: Final = (
    "input", "embedding", "norm", "linear", "rope", "rotate", "cache", "attention", "activation", "router", "experts",
    "add", "quantize", "head", "output",
)  # fmt: skip
SOURCES: Final = frozenset({"input"})  # kinds that nothing flows into


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers are kept: blocks of `block` elements, `bits` bits each block."""

    name: str
    block: int
    bits: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint, by the name that it has there; `shape` is in the checkpoint's own order."""

    name: str
    format: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What stays from one token to the next: `width` elements a token, in `format`."""

    name: str
    format: int
    width: int


@dataclass(frozen=True, slots=True)
class Node:
    """`format` is what it computes in and sums up in. `block` is the layer that it belongs to, if any."""

    name: str
    kind: str
    format: int
    block: int | None
    weights: tuple[int, ...]
    state: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """`width` elements a token, in `format`, from node `start` to node `end`."""

    start: int
    end: int
    format: int
    width: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """Raises BodyError where an index leads nowhere, an order does not hold, or something is about nothing."""

    formats: tuple[Format, ...]
    weights: tuple[Weight, ...]
    blocks: tuple[str, ...]
    states: tuple[State, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        formats, nodes = len(self.formats), len(self.nodes)
        _ascending("formats", [one.name for one in self.formats])
        _ascending("weights", [one.name for one in self.weights])
        _once("blocks", self.blocks)
        _once("states", [one.name for one in self.states])
        _once("nodes", [one.name for one in self.nodes])
        for number, node in enumerate(self.nodes):
            what = f"nodes[{number}]"
            _within(f"{what}.format", node.format, formats)
            for weight in node.weights:
                _within(f"{what}.weights", weight, len(self.weights))
            if node.block is not None:
                _within(f"{what}.block", node.block, len(self.blocks))
            if node.state is not None:
                _within(f"{what}.state", node.state, len(self.states))
        for weight_number, weight_ in enumerate(self.weights):
            _within(f"weights[{weight_number}].format", weight_.format, formats)
        for state_number, state in enumerate(self.states):
            _within(f"states[{state_number}].format", state.format, formats)
        for number, edge in enumerate(self.edges):
            _within(f"edges[{number}].format", edge.format, formats)
            _within(f"edges[{number}].end", edge.end, nodes)
            if edge.start >= edge.end:
                raise BodyError(
                    f"circuit: edges[{number}]: from node {edge.start} to {edge.end}, expected to a later one"
                )
            if edge.format != self.nodes[edge.start].format:
                raise BodyError(f"circuit: edges[{number}]: of another format than its node {edge.start} computes in")
        _ascending("edges", [(edge.end, edge.start) for edge in self.edges])
        self._check_use()

    def _check_use(self) -> None:
        reached = {edge.end for edge in self.edges}
        for number, node in enumerate(self.nodes):
            if (number in reached) == (node.kind in SOURCES):
                how = "nothing may flow" if number in reached else "nothing flows"
                raise BodyError(f"circuit: node {node.name!r} ({node.kind}): {how} into it")
        held = {weight for node in self.nodes for weight in node.weights}
        for number, weight in enumerate(self.weights):
            if number not in held:
                raise BodyError(f"circuit: weight {weight.name!r} belongs to no node")
        for what, used, listed in (
            ("block", {node.block for node in self.nodes}, self.blocks),
            ("state", {node.state for node in self.nodes}, [state.name for state in self.states]),
            (
                "format",
                {one.format for kinds in (self.nodes, self.weights, self.states, self.edges) for one in kinds},
                [one.name for one in self.formats],
            ),
        ):
            for number, name in enumerate(listed):
                if number not in used:
                    raise BodyError(f"circuit: {what} {name!r} is not used")

    @property
    def kinds(self) -> Counter[str]:
        return Counter(node.kind for node in self.nodes)


def _within(what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise BodyError(f"circuit: {what} is {index}, expected less than {count}")


def _ascending(what: str, keys: Sequence[str] | Sequence[tuple[int, int]]) -> None:
    for number, (before, after) in enumerate(pairwise(keys)):
        spelled = (before.encode(), after.encode()) if isinstance(before, str) and isinstance(after, str) else None
        if (spelled[0] >= spelled[1]) if spelled else before >= after:  # type: ignore[operator]
            raise BodyError(f"circuit: {what}[{number + 1}] is not above the one before it")


def _once(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise BodyError(f"circuit: {name!r} is {count} times among the {what}")


NAME: Final = Text(256)
CIRCUIT: Final = p.Struct(
    Circuit,
    formats=p.Seq(p.Struct(Format, name=NAME, block=Unsigned(32), bits=Unsigned(32)), MAX_FORMATS),
    weights=p.Seq(p.Struct(Weight, name=NAME, format=U32, shape=p.Seq(U64, 8)), MAX_WEIGHTS),
    blocks=p.Seq(NAME, MAX_BLOCKS),
    states=p.Seq(p.Struct(State, name=NAME, format=U32, width=U64), MAX_NODES),
    nodes=p.Seq(
        p.Struct(
            Node, name=NAME, kind=Words(*KINDS), format=U32, block=p.Option(U32), weights=p.Seq(U32, 64),
            state=p.Option(U32),
        ),
        MAX_NODES,
    ),
    edges=p.Seq(p.Struct(Edge, start=U32, end=U32, format=U32, width=U64), MAX_EDGES),
)  # fmt: skip
