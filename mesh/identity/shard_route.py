"""A route of shards that was looked at: who computes which layers, as one document that a receipt names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mesh.identity.evidence import MIN_NODES, ForwardEvidence
from mesh.identity.mismatch import Mismatch, explain
from mesh.identity.route import check_route
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId

MAX_SHARDS: Final = 128  # so that the document stays within what a gateway hands out
NODES: Final = "nodes"
REPEATED_NODE: Final = "repeated-node"


@dataclass(frozen=True, slots=True)
class ShardRoute:
    """`shards` in the order of the layers, `nodes` the name of each one's host, `machines` what tells the machine of
    one from another's, for people: several hosts of a network may be on one. Empty where nobody said."""

    shards: tuple[ShardIdentity, ...]
    nodes: tuple[str, ...]
    machines: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """Of each shard its fingerprint, its layers and the digest of what its host holds; where a host is, is not in
        it. For canonical CBOR, with digests as hex digits."""
        return {
            "shards": [
                {
                    "model_artifact_digest": shard.artifact.model_artifact_digest,
                    "runtime_recipe_digest": shard.recipe.runtime_recipe_digest,
                    "content_digest": shard.artifact.content_digest,
                    "shard_start": shard.shard_start,
                    "shard_end": shard.shard_end,
                }
                for shard in self.shards
            ]
        }

    @property
    def digest(self) -> ContentId:
        return ContentId.of("route", self.document)

    def mismatches(self, whole: ShardIdentity) -> tuple[Mismatch, ...]:
        """Every reason why this may not compute the model that `whole` is; none where it may."""
        held = explain(whole, self.shards[0], shard_index=0) if self.shards else ()
        return (*held, *check_route(self.shards), *self._hosts())

    def _hosts(self) -> list[Mismatch]:
        distinct = len(set(self.nodes))
        out = []
        if distinct != len(self.nodes):
            twice = sorted({node for node in self.nodes if self.nodes.count(node) > 1})
            out.append(Mismatch(REPEATED_NODE, NODES, f"{', '.join(twice)} counted more than once, expected once"))
        if distinct < MIN_NODES:
            out.append(Mismatch(NODES, NODES, f"{distinct} distinct hosts, expected at least {MIN_NODES}"))
        return out

    def evidence(self, *, session: str, tokens: int, at_ns: int) -> ForwardEvidence:
        """Of a forward over this route that gave so many tokens. Raises SchemaError."""
        return ForwardEvidence(
            route_session_id=session,
            route_epoch=0,
            node_ids=self.nodes,
            shard_ranges=tuple((shard.shard_start, shard.shard_end) for shard in self.shards),
            tokens_generated=tokens,
            layer_count=self.shards[0].artifact.layer_count,
            certified_at_ns=at_ns,
        )

    def to_map(self) -> dict[str, Any]:
        """The JSON form, for operators: hosts and whole identities."""
        return {
            "route_digest": self.digest.text,
            "nodes": list(self.nodes),
            "machines": list(self.machines),
            "shards": [shard.to_map() for shard in self.shards],
        }
