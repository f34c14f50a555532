"""Rows 6 and 7 of the decision table: whether the replayer's engine is the receipt's, and one to hold to its claim."""

from __future__ import annotations

from itertools import combinations

from conformance.case import Group
from conformance.groups.replay import GGUF, HONEST, MATCHED, Table, gguf_replayer, gguf_serve, replayer
from conformance.material import Map, Serve, changed, digest


def cases() -> Group:
    table = Table()
    serve = gguf_serve()
    for name, field, value, comment in (
        ("backend", "backend_id", "gguf/1.1/0123456789abcdef/x86_64-avx2/cpu/none", "Another build."),
        ("backend-told", "backend_id", f"told:{GGUF['backend_id']}", "The same, but only told."),
        ("recipe", "recipe_id", "smollm2-360m", "Another model by name."),
        ("weights", "weights_digest", digest(12), "Other weights."),
        ("weights-absent", "weights_digest", None, "The replayer names no weights."),
        ("settings", "settings", {"threads": 2}, "Another setting."),
        ("settings-more", "settings", {"threads": 1, "flash": True}, "One setting more."),
    ):
        line = f"not-replayable 6 other-{name.partition('-')[0]}"
        by = gguf_replayer()
        by = {key: content for key, content in {**by, field: value}.items() if content is not None}
        table.row(name, line, comment, serve, by=by)
    unnamed = Serve(engine=GGUF)
    table.row(
        "weights-only-here", "not-replayable 6 other-weights", "The receipt names none.", unnamed, by=gguf_replayer()
    )
    planned = gguf_serve(engine={"blueprint_id": digest(13)})
    table.row("blueprint", "not-replayable 6 other-blueprint", "It ran under a blueprint.", planned, by=gguf_replayer())
    all_other = gguf_replayer(backend_id="x/1/none/none/none/none", recipe_id="x", settings={})
    table.row("first", "not-replayable 6 other-backend", "The first of several that differ.", serve, by=all_other)
    _rows_6_in_order(table)
    _recipes(table)
    named = changed(HONEST.disclosure(), settings={"engine": "another"})
    table.row("settings-disclosed", MATCHED, "The settings disclosed decide nothing.", disclosed=named)
    unclaimed = Serve(engine={"deterministic": False})
    table.row("not-claimed", "not-replayable 7 not-claimed", "The receipt claims no determinism.", unclaimed)
    sampling = replayer(deterministic=False)
    table.row("engine-samples", "not-replayable 7 engine-samples", "The engine has none for this.", by=sampling)
    table.row("both", "not-replayable 7 not-claimed", "Neither has it.", unclaimed, by=sampling)
    return table.group


# What row 6 compares, in its order: the word of its reason, and what a replayer has otherwise.
FACTS: list[tuple[str, Map]] = [
    ("backend", {"backend_id": "x/1/none/none/none/none"}),
    ("recipe", {"recipe_id": "x"}),
    ("weights", {"weights_digest": digest(12)}),
    ("blueprint", {}),
    ("settings", {"settings": {}}),
]


def _rows_6_in_order(table: Table) -> None:
    plain, planned = gguf_serve(), gguf_serve(engine={"blueprint_id": digest(13)})
    for (first, one), (second, other) in combinations(FACTS, 2):
        serve = planned if "blueprint" in (first, second) else plain
        comment = f"Both {first} and {second} differ."
        by = gguf_replayer(**one, **other)
        table.row(f"{first}-before-{second}", f"not-replayable 6 other-{first}", comment, serve, by=by)


def _recipes(table: Table) -> None:
    """A replayer here has no runtime recipe, so that the one of the receipt decides nothing."""
    serve = gguf_serve(engine={"runtime_recipe_digest": digest(14)})
    comment = "Only the receipt names a runtime recipe: names are compared."
    table.row("runtime-recipe", MATCHED, comment, serve, by=gguf_replayer())
    by = gguf_replayer(recipe_id="smollm2-360m")
    table.row("runtime-recipe", "not-replayable 6 other-recipe", f"{comment} They differ.", serve, by=by)
