"""Frames of a decision that are none, and decisions that the grants before them leave open."""

from __future__ import annotations

from conformance.case import Group, dashed
from conformance.grants import ISSUER, Chain, frame
from conformance.material import MAX_COUNT, MAX_UINT, Map, digest, trust_file
from conformance.writer import NULL, Raw, item

GRANT = Chain({"max-tokens": MAX_COUNT}).open()
CALL = "grant-decide input.cbor trust.txt frame.cbor"
REQUIRED = ("steward", "recipe_id", "backend_id", "fidelity", "prompt_tokens", "max_tokens", "now_ns")
SMALL: Map = {"weights_digest": None, "blueprint_id": None, "est_uj": None}

GOOD: tuple[tuple[str, Map, str], ...] = (
    ("small", frame(**SMALL), "Without any optional field."),
    ("full", frame(runtime_recipe_digest=digest(1)), "Every field there."),
    ("lowest", frame(fidelity=0, prompt_tokens=0, max_tokens=1, now_ns=0, est_uj=0), "The lowest of each."),
    (
        "highest",
        frame(fidelity=3, prompt_tokens=MAX_COUNT, max_tokens=MAX_COUNT, now_ns=MAX_UINT, est_uj=MAX_UINT),
        "The highest of each.",
    ),
)
BAD: tuple[tuple[str, Map, str], ...] = (
    *((f"no-{dashed(name)}", frame(**{name: None}), f"{name} is missing.") for name in REQUIRED),
    ("unknown", frame(note=1), "A field that is not in the CDDL."),
    ("steward-short", frame(steward=bytes(31)), "A key of 31 bytes."),
    ("backend-parts", frame(backend_id="gguf/1"), "A backend id of two parts."),
    ("recipe-empty", frame(recipe_id=""), "An empty name."),
    ("fidelity-4", frame(fidelity=4), "Fidelity 4."),
    ("max-tokens-0", frame(max_tokens=0), "No token at all."),
    ("prompt-tokens-high", frame(prompt_tokens=MAX_COUNT + 1), "2^31."),
    ("now-ns-high", frame(now_ns=MAX_UINT + 1), "2^63."),
    ("est-uj-negative", frame(est_uj=-1), "Less than nothing."),
    ("weights-short", frame(weights_digest=bytes(31)), "A digest of 31 bytes."),
)


def cases() -> Group:
    group = Group("frame")
    files = {"input.cbor": GRANT, "trust.txt": trust_file(ISSUER)}
    for name, value, comment in GOOD:
        inputs = {**files, "frame.cbor": item(value)}
        group.accept(name, CALL, "admitted", "grants.2", comment, inputs, feature="grant")
    for name, value, comment in BAD:
        inputs = {**files, "frame.cbor": item(value)}
        group.reject(name, CALL, "schema", "grants.2", comment, inputs, feature="grant")
    for name, data, comment in (
        ("array", item([1]), "An array is no frame."),
        ("null", item(frame(est_uj=Raw(NULL))), "A null where the field should be left out."),
        ("cut", item(frame())[:-1], "A byte less."),
    ):
        inputs = {**files, "frame.cbor": data}
        group.reject(name, CALL, "encoding", "grants.1", comment, inputs, feature="grant")
    return group
