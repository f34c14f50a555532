"""Identities beside each other: what differs, what makes up a route, what certifies it, and who is let in."""

from __future__ import annotations

from conformance.case import Group, dashed
from conformance.groups.identity import FEATURE, PLAIN, VERSIONS
from conformance.identities import AXES, B, binding, cut, document, evidence, fingerprint, identity
from conformance.material import Map

REASONS = {
    "weight_quantization": "weight-quantization",
    "activation_dtype": "activation-recipe",
    "compute_dtype": "activation-recipe",
    "kv_dtype": "cache-layout",
    "kv_layout": "cache-layout",
    "tokenizer_revision": "tokenizer",
    "architecture_adapter": "architecture",
    "backend_id": "backend",
    "runtime_version": "runtime",
    "boundary_schema_version": "boundary-schema",
    "protocol_schema_version": "boundary-schema",
}


def cases() -> Group:
    group = Group("identity-route")
    _explain(group)
    _routes(group)
    _evidence(group)
    _handshakes(group)
    return group


def _explain(group: Group) -> None:
    def explain(name: str, other: Map, answer: str, comment: str) -> None:
        files = {"a.txt": document(PLAIN), "b.txt": document(other)}
        group.accept(
            f"explain-{name}", "identity-explain a.txt b.txt", answer, "identity", comment, files, feature=FEATURE
        )

    explain("same", cut(1, 2, recipe__recipe_id="x"), "same", "A cut of the same, under another name.")
    for axis in AXES:
        other = identity(**{f"recipe__{axis}": 9 if axis in VERSIONS else "other"})
        explain(dashed(axis), other, f"{REASONS[axis]}:{axis}", f"Another {axis}.")
    for field, value, answer in (
        ("content_digest", B, "artifact:source_digest"),
        ("architecture", "qwen2", "architecture:architecture"),
        ("architecture_digest", B, "architecture:architecture_digest"),
        ("layer_count", 5, "artifact:layer_count"),
    ):
        explain(dashed(field), identity(**{f"artifact__{field}": value}), answer, f"Another {field}.")
    several = identity(recipe__runtime_version="2", recipe__kv_dtype="f16", artifact__layer_count=5)
    explain("several", several, "artifact:layer_count cache-layout:kv_dtype runtime:runtime_version",
            "All that differs, the artifact first, then the axes in their order.")  # fmt: skip
    files = {"a.txt": document(PLAIN), "b.txt": document(identity(shard_end=5))}
    group.reject("explain-bad", "identity-explain a.txt b.txt", "layers", "identity.4", "One that contradicts itself.",
                 files, feature=FEATURE)  # fmt: skip


def _routes(group: Group) -> None:
    def route(
        name: str, shards: list[Map], answer: str, comment: str, known: str = "-", purpose: str = "serve"
    ) -> None:
        files = {f"{number}.txt": document(shard) for number, shard in enumerate(shards)}
        call = " ".join(("identity-route", known, purpose, *files))
        group.accept(f"route-{name}", call, answer, "identity", comment, files, feature=FEATURE)

    near, far, wide = cut(0, 2), cut(2, 4), cut(2, 4, recipe__kv_dtype="f16")
    route("halves", [near, far], "admitted", "Two halves.")
    route("order", [far, near], "admitted", "Their order is not their layers'.")
    route("alone", [PLAIN], "admitted", "A whole model alone.")
    route("mixed", [identity(shard_end=1), cut(1, 4)], "admitted", "One with the whole file, one with a cut.")
    route("overlap", [cut(0, 3), cut(1, 4)], "admitted", "An overlap is for the route to resolve.")
    route("inside", [PLAIN, cut(1, 2)], "admitted", "One has all that the other has.")
    route("hole-first", [cut(1, 2), far], "refused range:layers", "The first layer is on no host.")
    route("hole", [cut(0, 1), far], "refused range:layers", "A hole.")
    route("hole-last", [near], "refused range:layers", "The last layers are on no host.")
    foreign = cut(2, 4, artifact__derived_from=binding(2, 4, B))
    route("foreign", [near, foreign], "refused 1:artifact:source_digest", "A half of another model.")
    route("axis", [near, wide], "refused 1:cache-layout:kv_dtype", "A half with another cache.")
    every = "refused 1:cache-layout:kv_dtype 2:artifact:source_digest range:layers"
    route("several", [cut(0, 1), wide, foreign], every, "Every reason of every host.")
    longer = identity(artifact__layer_count=9, shard_end=9)
    route("beyond", [PLAIN, longer], "refused 1:artifact:layer_count range:layers",
          "More layers than the first one's model has.")  # fmt: skip
    for known, serve, certify in (
        ("unknown", "refused uncertified:status", "refused uncertified:status"),
        ("dark", "refused uncertified:status", "admitted"),
        ("certified", "admitted", "admitted"),
    ):
        for purpose, answer in (("serve", serve), ("certify", certify)):
            comment = f"A recipe that is {known}, on a route to {purpose}."
            route(f"{known}-{purpose}", [near, far], answer, comment, known, purpose)
    route("dark-hole", [near], "refused range:layers uncertified:status", "A hole in the dark.", "dark")


def _evidence(group: Group) -> None:
    def shown(name: str, value: Map, answer: str, comment: str) -> None:
        files = {"input.txt": document(value)}
        group.accept(
            f"evidence-{name}", "identity-evidence input.txt", answer, "identity", comment, files, feature=FEATURE
        )

    shown("two", evidence(), "certifies", "Two hosts, every layer, a token.")
    shown("overlap", evidence(shard_ranges=[[0, 3], [1, 4]]), "certifies", "An overlap.")
    three = {"node_ids": ["a", "b", "c"], "shard_ranges": [[0, 1], [1, 2], [2, 4]]}
    shown("three", evidence(**three), "certifies", "Three hosts.")
    shown("synthetic", evidence(synthetic=True), "refused synthetic", "A stand-in computed.")
    shown("one-node", evidence(node_ids=["near"], shard_ranges=[[0, 4]]), "refused nodes", "One host.")
    shown("no-node", evidence(node_ids=[], shard_ranges=[]), "refused nodes", "No host.")
    shown("same-node", evidence(node_ids=["near", "near"]), "refused nodes", "One host under one name twice.")
    shown(
        "repeated-node",
        evidence(**{**three, "node_ids": ["a", "b", "a"]}),
        "refused repeated-node",
        "One of three is there twice.",
    )
    shown("idle-node", evidence(shard_ranges=[[0, 4]]), "refused ranges", "A host that computed nothing.")
    shown("no-token", evidence(tokens_generated=0), "refused tokens", "No token came of it.")
    shown("hole", evidence(shard_ranges=[[0, 1], [2, 4]]), "refused coverage", "A hole.")
    shown("end", evidence(shard_ranges=[[0, 2], [2, 3]]), "refused coverage", "The last layer is missing.")
    shown("start", evidence(shard_ranges=[[1, 2], [2, 4]]), "refused coverage", "The first layer is missing.")
    shown("beyond", evidence(shard_ranges=[[0, 2], [2, 5]]), "refused coverage", "A layer that the model has not.")
    shown(
        "first",
        evidence(synthetic=True, node_ids=[], tokens_generated=0),
        "refused synthetic",
        "The first reason counts.",
    )
    for name, value in (
        ("no-synthetic", evidence(synthetic=None)),
        ("synthetic-1", evidence(synthetic=1)),
        ("empty-range", evidence(shard_ranges=[[0, 2], [2, 2]])),
        ("range-of-three", evidence(shard_ranges=[[0, 2], [2, 4, 4]])),
        ("node-empty", evidence(node_ids=["near", ""])),
        ("time-number", evidence(certified_at_ns=5)),
        ("time-zeros", evidence(certified_at_ns="05")),
        ("time-large", evidence(certified_at_ns=str(2**63))),
        ("layers-0", evidence(layer_count=0)),
        ("unknown-field", evidence(more=1)),
    ):
        group.reject(f"evidence-{name}", "identity-evidence input.txt", "schema", "identity.2",
                     "Evidence that is not of its shape.", {"input.txt": document(value)}, feature=FEATURE)  # fmt: skip


def _handshakes(group: Group) -> None:
    def handshake(name: str, shown: object, answer: str, comment: str) -> None:
        files = {"local.txt": document(PLAIN), "peer.txt": document(shown)}
        call = "identity-handshake local.txt peer.txt"
        group.accept(f"handshake-{name}", call, answer, "identity", comment, files, feature=FEATURE)

    artifact, recipe = identity(artifact__layer_count=5), identity(recipe__kv_dtype="f16")
    both = identity(artifact__layer_count=5, recipe__kv_dtype="f16")
    handshake("same", fingerprint(PLAIN), "match", "The same.")
    handshake("renamed", fingerprint(PLAIN, recipe_id="x", recipe_version="y"), "match", "The same under another name.")
    handshake("artifact", fingerprint(artifact), "refused artifact:model_artifact_digest", "Another model.")
    handshake("recipe", fingerprint(recipe), "refused fingerprint:runtime_recipe_digest", "Another recipe.")
    handshake(
        "both", fingerprint(both), "refused artifact:model_artifact_digest fingerprint:runtime_recipe_digest", "Both."
    )
    for name, shown in (
        ("none", {}), ("no-label", fingerprint(PLAIN, recipe_id=None)), ("null", None),
        ("bad-digest", fingerprint(PLAIN, model_artifact_digest="aa")), ("unknown-field", fingerprint(PLAIN, more=1)),
    ):  # fmt: skip
        handshake(f"unusable-{name}", shown, "refused fingerprint:fingerprint", "A fingerprint that cannot be used.")
