"""What takes a recipe out of the dark: a real forward over several hosts, from the first layer to a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from mesh.errors import SchemaError
from mesh.identity.coverage import coverage_gap
from mesh.identity.document import parse_document
from mesh.identity.fields import check_integer, check_object, check_text, kind_of

MIN_NODES: Final = 2
MAX_NODES: Final = 1024

_FIELDS = (
    "route_session_id", "route_epoch", "node_ids", "shard_ranges", "tokens_generated", "layer_count", "synthetic",
    "certified_at_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why evidence certifies nothing: one of `synthetic`, `nodes`, `repeated-node`, `ranges`, `tokens`, `coverage`, and
    the same in words."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ForwardEvidence:
    """One forward: `node_ids` are the hosts in the order of the route, `shard_ranges` the layers that each computed
    (the first, and the one after the last), `certified_at_ns` is Unix time, told by whoever saw it. `synthetic` says
    that a stand-in computed. Raises SchemaError."""

    route_session_id: str
    route_epoch: int
    node_ids: tuple[str, ...]
    shard_ranges: tuple[tuple[int, int], ...]
    tokens_generated: int
    layer_count: int
    certified_at_ns: int
    synthetic: bool = False

    def __post_init__(self) -> None:
        check_text(self.route_session_id, "evidence.route_session_id")
        check_integer(self.route_epoch, "evidence.route_epoch", 0)
        check_integer(self.tokens_generated, "evidence.tokens_generated", 0)
        check_integer(self.layer_count, "evidence.layer_count", 1)
        if type(self.certified_at_ns) is not int or not 0 <= self.certified_at_ns < 2**63:
            raise SchemaError("evidence.certified_at_ns: expected Unix nanoseconds, 0 to 2^63-1")
        if not isinstance(self.synthetic, bool):
            raise SchemaError(f"evidence.synthetic: {kind_of(self.synthetic)}, expected true or false")
        for index, node in enumerate(self.node_ids):
            check_text(node, f"evidence.node_ids[{index}]")
        for index, (start, end) in enumerate(self.shard_ranges):
            check_integer(start, f"evidence.shard_ranges[{index}][0]", 0)
            check_integer(end, f"evidence.shard_ranges[{index}][1]", 1)
            if end <= start:
                raise SchemaError(f"evidence.shard_ranges[{index}]: {start} to {end}, expected at least one layer")

    def rejection(self) -> Rejection | None:
        """Why this certifies nothing; None where it does."""
        distinct = len(set(self.node_ids))
        if self.synthetic:
            return Rejection("synthetic", "a synthetic worker computed, expected a real forward")
        if distinct < MIN_NODES:
            return Rejection("nodes", f"{distinct} distinct nodes computed, expected at least {MIN_NODES}")
        if distinct != len(self.node_ids):
            return Rejection("repeated-node", "a node is counted more than once")
        if len(self.shard_ranges) != distinct:
            return Rejection("ranges", f"{len(self.shard_ranges)} ranges of layers, expected one for each node")
        if self.tokens_generated < 1:
            return Rejection("tokens", "no token was generated, expected at least 1")
        gap = coverage_gap(self.shard_ranges, self.layer_count)
        return None if gap is None else Rejection("coverage", gap)

    def to_map(self) -> dict[str, Any]:
        """The JSON form; nanoseconds as text, since JSON's readers do not hold them exactly."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        ranges = [list(pair) for pair in self.shard_ranges]
        return {
            **fields,
            "node_ids": list(self.node_ids),
            "shard_ranges": ranges,
            "certified_at_ns": str(self.certified_at_ns),
        }

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises EncodingError, SchemaError."""
        return cls.from_map(parse_document(data, "evidence"))

    @classmethod
    def from_map(cls, value: object) -> Self:
        fields = check_object(value, "evidence", _FIELDS)
        nodes, ranges, at = fields["node_ids"], fields["shard_ranges"], fields["certified_at_ns"]
        for name, items in (("node_ids", nodes), ("shard_ranges", ranges)):
            if not isinstance(items, list) or len(items) > MAX_NODES:
                raise SchemaError(f"evidence.{name}: {kind_of(items)}, expected a list of at most {MAX_NODES}")
        for index, pair in enumerate(ranges):
            if not isinstance(pair, list) or len(pair) != 2:
                raise SchemaError(f"evidence.shard_ranges[{index}]: {kind_of(pair)}, expected a list of two layers")
        if not isinstance(at, str) or not at.isascii() or not at.isdigit() or len(at) > 19 or str(int(at)) != at:
            raise SchemaError("evidence.certified_at_ns: expected Unix nanoseconds as decimal digits in a text")
        made = {"node_ids": tuple(nodes), "shard_ranges": tuple(map(tuple, ranges)), "certified_at_ns": int(at)}
        return cls(**{**fields, **made})
