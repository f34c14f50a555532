"""Disclosures on their own: they say nothing yet of a receipt."""

from __future__ import annotations

from conformance.case import Group, dashed
from conformance.digests import b3, content_id
from conformance.material import Map, digest, disclosure, greedy, small_disclosure, small_request
from conformance.writer import Raw, item, packed

LONGEST = {"note": "a" * (65536 - 1 - 5 - 3)}

GOOD: list[tuple[str, Map, str]] = [
    ("minimal", small_disclosure(), "Without an output and a prompt."),
    ("full", disclosure(), "Every field there."),
    ("output", small_disclosure(output=packed([1, 2**32 - 1])), "With an output."),
    ("output-empty", small_disclosure(output=b""), "With an output of no ids."),
    ("prompt", small_disclosure(prompt="\x00\n🙂"), "With a prompt: any text."),
    ("payload-empty", small_disclosure(payload=b""), "A payload of no ids."),
    ("settings-longest", small_disclosure(settings=LONGEST), "Settings of 65536 bytes."),
    ("prompt-long", small_disclosure(prompt="x" * 70_000), "A prompt that is longer than any payload."),
]

SHAPES: list[tuple[str, Map, str]] = [
    *(
        (f"no-{dashed(name)}", small_disclosure(**{name: None}), f"{name} is missing.")
        for name in small_disclosure()
    ),
    ("unknown-field", disclosure(note=1), "A field that is not in the CDDL."),
    ("serve-id-short", disclosure(serve_id=bytes(15)), "15 bytes."),
    ("opening-short", disclosure(opening=bytes(31)), "31 bytes."),
    ("payload-array", disclosure(payload=[104, 105]), "Ids in an array, where they are packed."),
    ("prompt-bytes", disclosure(prompt=b"hi"), "A byte string is no text."),
    ("settings-array", disclosure(settings=[]), "An array is no map."),
    ("settings-long", disclosure(settings={"note": LONGEST["note"] + "a"}), "Settings of 65537 bytes."),
    ("request-short", disclosure(request=small_request(sampling=None)), "A request that lacks a field."),
    ("request-unknown", disclosure(request=small_request(note=1)), "A field of the request that is not in the CDDL."),
    ("request-bound", disclosure(request=small_request(max_tokens=0)), "A request that is out of bounds."),
]  # fmt: skip

BEYOND: list[tuple[str, Map, str]] = [
    (
        "request-seed",
        disclosure(request=small_request(sampling=greedy(seed=1))),
        "Its request breaks step 3 of its own.",
    ),
    ("payload-cut", disclosure(payload=packed([1, 2])[:-1]), "Seven bytes are no ids of four."),
    ("output-cut", disclosure(output=b"\x00"), "One byte is no id of four."),
]


def cases() -> Group:
    group = Group("disclosure")
    for name, value, comment in GOOD:
        line = b3(content_id("request", value["request"]))
        group.accept(name, "disclosure input.cbor", line, "disclosure.3", comment, {"input.cbor": item(value)})
    for rule, faults in ((2, SHAPES), (3, BEYOND)):
        for name, value, comment in faults:
            files = {"input.cbor": item(value)}
            group.reject(name, "disclosure input.cbor", "schema", f"disclosure.{rule}", comment, files)
    deep: object = {}
    for _ in range(15):
        deep = {"a": deep}
    for name, data, comment in (
        ("null", item(small_disclosure(output=Raw(b"\xf6"))), "A null where the field should be left out."),
        ("settings-float", item(small_disclosure(settings={"t": Raw(b"\xf9\x3c\x00")})), "A float in the settings."),
        ("settings-null", item(small_disclosure(settings={"t": Raw(b"\xf6")})), "A null in the settings."),
        (
            "settings-order",
            item(small_disclosure(settings=Raw(b"\xa2\x61b\x01\x61a\x01"))),
            "Settings in another order.",
        ),
        ("settings-deep", item(small_disclosure(settings=deep)), "Settings 16 deep, which are 17 deep in here."),
        ("not-a-map", item([digest(1)]), "An array where a map has to be."),
    ):
        group.reject(name, "disclosure input.cbor", "encoding", "disclosure.1", comment, {"input.cbor": data})
    return group
