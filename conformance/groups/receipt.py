"""Receipts on their own: with and without each field."""

from __future__ import annotations

from conformance.case import Group, dashed
from conformance.digests import b3, content_id
from conformance.material import (
    ENGINE_OPTIONS,
    MAX_COUNT,
    MAX_UINT,
    Map,
    changed,
    digest,
    energy,
    receipt,
    small_engine,
    small_outcome,
    small_receipt,
)
from conformance.sizes import PAYLOAD_BYTES, receipt_of
from conformance.writer import Raw, item


def with_backend(text: str) -> Map:
    return small_receipt(engine=small_engine(backend_id=text))


COUNTED = small_outcome(finish="stop", counted_by="both", tokens_out=4)

GOOD: list[tuple[str, Map, str]] = [
    ("minimal", small_receipt(), "The first of a steward, without any optional field."),
    ("full", receipt(), "Every field there."),
    ("prev", small_receipt(seq=1, prev=digest(22)), "The second of a steward."),
    ("grant", small_receipt(grant_id=digest(23)), "With a grant."),
    ("commitment", small_receipt(outcome=COUNTED, output_commitment=digest(24)), "With a commitment."),
    *(
        (f"engine-{dashed(name)}", small_receipt(engine=small_engine(**{name: digest(11)})), f"With {name}.")
        for name in ENGINE_OPTIONS
    ),
    ("sampling-engine", small_receipt(engine=small_engine(deterministic=False)), "An engine that claims nothing."),
    (
        "backend-told",
        with_backend("told:vllm/told:0.32.0/none/none/told:NVIDIA-H200/told:580.1+x_y"),
        "Parts that were claimed and not seen.",
    ),
    ("backend-longest", with_backend("/".join(["told:" + "a" * 64] * 6)), "Six parts of 64 characters."),
    ("recipe-unicode", small_receipt(engine=small_engine(recipe_id="模型 é")), "A name may hold any text in one line."),
    ("out-is-max", small_receipt(max_tokens=4, outcome=COUNTED), "As many tokens as were allowed."),
    ("delivered-lower", small_receipt(outcome=small_outcome(delivered_fidelity=0)), "Less was delivered than rated."),
    ("clock-back", small_receipt(started_ns=5, ended_ns=4), "A clock may step back: times are not compared."),
    ("longest", receipt_of(PAYLOAD_BYTES), "32768 bytes."),
    ("highest", receipt(seq=MAX_UINT, started_ns=MAX_UINT, ended_ns=MAX_UINT, max_tokens=MAX_COUNT), "At the highest."),
]

SHAPES: list[tuple[str, Map, str]] = [
    *((f"no-{dashed(name)}", small_receipt(**{name: None}), f"{name} is missing.") for name in small_receipt()),
    *(
        (f"no-engine-{dashed(name)}", small_receipt(engine=small_engine(**{name: None})), f"{name} is missing.")
        for name in small_engine()
    ),
    ("version", small_receipt(v="mesh/2"), "Another version."),
    ("version-integer", small_receipt(v=1), "An integer is no text."),
    ("unknown-field", small_receipt(note="x"), "A field that is not in the CDDL."),
    ("unknown-engine", small_receipt(engine=small_engine(note="x")), "A field that is not in the CDDL."),
    ("steward-short", small_receipt(steward=bytes(31)), "31 bytes."),
    ("steward-text", small_receipt(steward="ed25519:" + "00" * 32), "The text form, which CBOR never holds."),
    ("seq-negative", small_receipt(seq=-1), "Below 0."),
    ("seq-high", receipt(seq=MAX_UINT + 1), "2^63."),
    ("serve-id-short", small_receipt(serve_id=bytes(15)), "15 bytes."),
    ("request-id-long", small_receipt(request_id=bytes(33)), "33 bytes."),
    ("prompt-hash-short", small_receipt(prompt_hash=bytes(31)), "31 bytes."),
    ("max-tokens-zero", small_receipt(max_tokens=0), "No tokens at all."),
    ("max-tokens-high", small_receipt(max_tokens=MAX_COUNT + 1), "2^31."),
    ("started-negative", small_receipt(started_ns=-1), "Before 1970."),
    ("ended-high", small_receipt(ended_ns=MAX_UINT + 1), "2^63."),
    ("prev-short", receipt(prev=bytes(31)), "31 bytes."),
    ("grant-short", receipt(grant_id=bytes(31)), "31 bytes."),
    ("commitment-short", receipt(output_commitment=bytes(31)), "31 bytes."),
    ("engine-array", small_receipt(engine=[]), "An array is no map."),
    ("deterministic-integer", small_receipt(engine=small_engine(deterministic=1)), "An integer is no boolean."),
    ("fidelity-high", small_receipt(engine=small_engine(fidelity=4)), "There are 0 to 3."),
    ("process-short", small_receipt(engine=small_engine(process=bytes(15))), "15 bytes."),
    ("settings-short", small_receipt(engine=small_engine(settings_digest=bytes(31))), "31 bytes."),
    ("blueprint-short", small_receipt(engine=small_engine(blueprint_id=bytes(31))), "31 bytes."),
    ("recipe-empty", small_receipt(engine=small_engine(recipe_id="")), "A name has a character."),
    ("recipe-control", small_receipt(engine=small_engine(recipe_id="a\x7fb")), "A control character in a name."),
    ("backend-five", with_backend("a/b/c/d/e"), "Five parts."),
    ("backend-seven", with_backend("a/b/c/d/e/f/g"), "Seven parts."),
    ("backend-empty-part", with_backend("a//c/d/e/f"), "A part without a character."),
    ("backend-space", with_backend("a/b/c d/d/e/f"), "A space."),
    ("backend-told-alone", with_backend("a/b/told:/d/e/f"), "A mark without a part."),
    ("backend-told-twice", with_backend("a/b/told:told:c/d/e/f"), "Two marks."),
    ("backend-long-part", with_backend("a/b/c/d/e/" + "f" * 65), "A part of 65 characters."),
    ("backend-line", with_backend("a/b/c/d/e/f\n"), "A line break at the end, which some patterns let pass."),
]  # fmt: skip

BEYOND: list[tuple[str, int, Map, str]] = [
    ("outcome-spec", 3, small_receipt(outcome=small_outcome(spec_accepted=1)), "Its outcome breaks step 3 of its own."),
    ("energy-sum", 3, small_receipt(energy=energy(uj=1)), "Its energy breaks step 3 of its own."),
    ("energy-rule", 3, small_receipt(energy=energy(rule=None)), "Its energy breaks step 4 of its own."),
    ("energy-span", 3, small_receipt(energy=energy(span_ns=1)), "Its energy breaks step 5 of its own."),
    ("prev-at-zero", 4, small_receipt(prev=digest(22)), "The first names one before it."),
    ("prev-missing", 4, receipt(prev=None), "The eighth names none before it."),
    (
        "commitment-refused", 5,
        small_receipt(outcome=changed(COUNTED, finish="refused"), output_commitment=digest(24)),
        "A refused serve commits to nothing.",
    ),
    ("commitment-uncounted", 5, small_receipt(output_commitment=digest(24)), "A commitment to nobody knows how many."),
    ("out-exceeds-max", 5, small_receipt(max_tokens=3, outcome=COUNTED), "More tokens than were allowed."),
    (
        "delivered-higher", 5, small_receipt(outcome=small_outcome(delivered_fidelity=2)),
        "More was delivered than rated.",
    ),
]  # fmt: skip


def cases() -> Group:
    group = Group("receipt")
    for name, value, comment in GOOD:
        line = b3(content_id("receipt", value))
        group.accept(name, "receipt input.cbor", line, "receipt.5", comment, {"input.cbor": item(value)})
    faults = [*((name, 2, value, comment) for name, value, comment in SHAPES), *BEYOND]
    for name, rule, value, comment in faults:
        files = {"input.cbor": item(value)}
        group.reject(name, "receipt input.cbor", "schema", f"receipt.{rule}", comment, files)
    for name, data, comment in (
        ("null", item(small_receipt(prev=Raw(b"\xf6"))), "A null where the field should be left out."),
        ("wide", item(small_receipt(seq=Raw(b"\x18\x00"))), "0 in two bytes."),
        ("trailing", item(small_receipt()) + b"\xa0", "A second map after it."),
        ("not-a-map", item([small_receipt()]), "An array where a map has to be."),
        ("too-long", item(receipt_of(PAYLOAD_BYTES + 1)), "A receipt that matches the CDDL, and takes 32769 bytes."),
    ):
        group.reject(name, "receipt input.cbor", "encoding", "receipt.1", comment, {"input.cbor": data})
    return group
