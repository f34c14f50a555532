"""Grants against serves: what each caveat admits, which refusal is named, and what stands outside of the chain."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, steward_text
from conformance.grants import BACKEND, ISSUER, SECOND_NS, STEWARD, Chain, frame
from conformance.material import MAX_UINT, OTHER, STARTED_NS, Map, digest, trust_file
from conformance.writer import item

TRUST = trust_file(ISSUER)
ONE_STEWARD = {"steward-in": [STEWARD]}
W, X, BLUEPRINT = digest(0x0A), digest(0x0B), digest(0x0C)
NOW = STARTED_NS
THREE = Chain({"max-tokens": 50}, {"model-in": [W]}, {})

# caveats, changes of the frame, whether it is admitted, why
DECIDED: tuple[tuple[str, Map, Map, bool, str], ...] = (
    ("model", {"model-in": [W]}, {}, True, "The weights of the frame."),
    ("model-other", {"model-in": [X]}, {}, False, "Other weights."),
    ("model-none", {"model-in": [W]}, {"weights_digest": None}, False, "An engine that names no model."),
    ("recipe-name", {"recipe-in": ["smollm2-135m"]}, {}, True, "The model's name."),
    ("recipe-other", {"recipe-in": ["smollm2"]}, {}, False, "Another name."),
    ("recipe-digest", {"recipe-in": [X]}, {"runtime_recipe_digest": X, "recipe_id": "x"}, True, "The recipe's digest."),
    ("recipe-digest-none", {"recipe-in": [X]}, {}, False, "A digest, and the frame has none."),
    ("recipe-both", {"recipe-in": [X, "smollm2-135m"]}, {"runtime_recipe_digest": W}, False,
        "Digests on both sides decide, whatever the name is."),
    ("recipe-name-only", {"recipe-in": ["smollm2-135m"]}, {"runtime_recipe_digest": W}, True,
        "A digest on one side alone does not decide."),
    ("backend", {"backend-in": [BACKEND]}, {}, True, "The backend."),
    ("backend-other", {"backend-in": [BACKEND.replace("1", "2")]}, {}, False, "Another version of the engine."),
    ("blueprint", {"blueprint-in": [BLUEPRINT]}, {}, True, "The blueprint."),
    ("blueprint-none", {"blueprint-in": [BLUEPRINT]}, {"blueprint_id": None}, False, "No blueprint."),
    ("steward", ONE_STEWARD, {}, True, "The gateway."),
    ("steward-other", ONE_STEWARD, {"steward": OTHER.public}, False, "Another gateway."),
    ("fidelity", {"fidelity-at-least": 1}, {}, True, "The rating that is asked for."),
    ("fidelity-below", {"fidelity-at-least": 2}, {}, False, "A lower one."),
    ("tokens", {"max-tokens": 50}, {}, True, "As many tokens as are allowed."),
    ("tokens-more", {"max-tokens": 49}, {}, False, "One more."),
    ("energy", {"max-uj": 1000}, {}, True, "As much energy as is allowed."),
    ("energy-more", {"max-uj": 999}, {}, False, "A microjoule more."),
    ("energy-unknown", {"max-uj": MAX_UINT}, {"est_uj": None}, False, "An engine that cannot say."),
    ("before", {"not-before": NOW + 2 * SECOND_NS}, {}, True, "Two seconds early, which clocks may differ by."),
    ("before-early", {"not-before": NOW + 2 * SECOND_NS + 1}, {}, False, "A nanosecond earlier."),
    ("after", {"not-after": NOW - 2 * SECOND_NS}, {}, True, "Two seconds late."),
    ("after-stale", {"not-after": NOW - 2 * SECOND_NS - 1}, {}, False, "A nanosecond later: stale."),
    ("total-uj", {**ONE_STEWARD, "total-uj": 1000}, {}, True, "All that is left."),
    ("total-uj-less", {**ONE_STEWARD, "total-uj": 999}, {}, False, "A microjoule less than the worst case."),
    ("total-uj-unknown", {**ONE_STEWARD, "total-uj": 999}, {"est_uj": None}, False, "A worst case that nobody knows."),
    ("total-tokens", {**ONE_STEWARD, "total-tokens": 150}, {}, True, "The prompt and every token that may come."),
    ("total-tokens-less", {**ONE_STEWARD, "total-tokens": 149}, {}, False, "One less."),
    ("unknown", {"of-tomorrow": True}, {}, False, "A caveat that is not known never holds."),
)  # fmt: skip


def cases() -> Group:
    group = Group("grant")

    def decide(name: str, grant: bytes, line: str, comment: str, fields: Map, *more: str, **files: bytes) -> None:
        inputs = {"input.cbor": grant, "trust.txt": TRUST, "frame.cbor": item(frame(**fields)), **{
            key.replace("_", "."): data for key, data in files.items()}}  # fmt: skip
        call = " ".join(("grant-decide input.cbor trust.txt frame.cbor", *more))
        group.accept(f"decide-{name}", call, line, "grants", comment, inputs, feature="grant")

    for name, caveats, fields, admitted, comment in DECIDED:
        about = [caveat for caveat in caveats if caveat != "steward-in"] or ["steward-in"]
        line = "admitted" if admitted else f"refused 1 {about[0]}"
        decide(name, Chain({}, caveats).open(), line, comment, fields)
    narrow = {"max-tokens": 49}
    wider = Chain(narrow, {"max-tokens": 500})
    decide("widened", wider.open(), "refused 0 max-tokens", "A later block widens nothing.", {})
    decide("closed", Chain(narrow).closed(), "admitted", "A closed grant admits as an open one.", {"max_tokens": 49})
    decide("first", Chain({"recipe-in": ["x"]}, {"backend-in": ["x/x/x/x/x/x"]}).open(), "refused 0 recipe-in",
        "Of two that refuse, the earlier block is named.", {})  # fmt: skip
    decide("by-name", Chain({"max-uj": 1, "max-tokens": 1}).open(), "refused 0 max-tokens",
        "Of two in one block, the first by name.", {})  # fmt: skip
    revoked = f"# lost\n{b3(THREE.ids[1])}\n".encode()
    decide("revoked", THREE.open(), "refused 1 revoked", "A block on the list.", {}, "revoked.txt", revoked_txt=revoked)
    parent = Chain({"max-tokens": 50})
    decide("revoked-child", parent.open(), "admitted", "A child that is revoked leaves its parent be.", {},
        "revoked.txt", revoked_txt=revoked)  # fmt: skip
    total = Chain({**ONE_STEWARD, "total-tokens": 400}).open()
    decide("left", total, "admitted", "Just enough is left.", {}, "-", "250")
    decide("used", total, "refused 0 total-tokens", "One token too few is left.", {}, "-", "251")
    files = {"input.cbor": Chain({}).open(), "frame.cbor": item(frame())}
    call = "grant-decide input.cbor trust.txt frame.cbor"
    key = steward_text(ISSUER.public)
    now, later = (f"{key} until=2026-09-21T14:13:{second}Z\n".encode() for second in (20, 21))
    group.reject("decide-retired", call, "trust", "grants.6", "An issuer who was trusted until now.",
        {**files, "trust.txt": now}, feature="grant")  # fmt: skip
    group.accept("decide-in-time", call, "admitted", "grants", "An issuer who is trusted for a second more.",
        {**files, "trust.txt": later}, feature="grant")  # fmt: skip
    return group
