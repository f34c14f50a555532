"""Runs of receipts, and checkpoints beside them."""

from __future__ import annotations

from typing import Any

from conformance.case import Group
from conformance.digests import content_id
from conformance.ed25519 import Key
from conformance.material import (
    KEY,
    OTHER,
    Map,
    changed,
    digest,
    signed_checkpoint,
    signed_receipt,
    small_checkpoint,
    small_receipt,
    trust_file,
)

ORDER = "abcdefgh"


def chain(length: int, *, key: Key = KEY, first: int = 0) -> list[Map]:
    """Receipts that follow one another; those from `first` on where it is not 0."""
    out: list[Map] = []
    for seq in range(first, first + length):
        prev = content_id("receipt", out[-1]) if out else digest(22) if seq else None
        out.append(small_receipt(steward=key.public, seq=seq, prev=prev, serve_id=bytes([seq]) * 16))
    return out


def counting(receipts: list[Map], **fields: Any) -> Map:
    last = receipts[-1]
    value = small_checkpoint(steward=last["steward"], count=last["seq"] + 1, head=content_id("receipt", last))
    return changed(value, **fields)


FIVE = chain(5)
LATER = chain(3, first=4)
FORKED = changed(FIVE[2], ended_ns=1)
SKIPPING = changed(FIVE[2], prev=content_id("receipt", FIVE[0]))


def sealed(value: Map) -> bytes:
    key = KEY if value["steward"] == KEY.public else OTHER
    return signed_checkpoint(value, key) if "count" in value else signed_receipt(value, key)


GOOD: list[tuple[str, list[Map], str]] = [
    ("five", FIVE, "Five receipts from the first on."),
    ("one", FIVE[:1], "The first alone."),
    ("later", LATER, "Three receipts from the fifth on: what comes before is not asked for."),
    ("checkpoint", [*FIVE, counting(FIVE)], "With a checkpoint that counts them all."),
    ("checkpoint-first", [counting(FIVE[:3]), *FIVE], "With a checkpoint that counts three of them."),
    ("checkpoint-empty", [small_checkpoint(), *FIVE[:2]], "With a checkpoint from before the first."),
    ("checkpoint-before", [counting(FIVE[:2]), *LATER], "With a checkpoint of what is not at hand."),
    ("checkpoints", [small_checkpoint(), *FIVE[:3], counting(FIVE[:3]), *FIVE[3:], counting(FIVE)], "With several."),
]

BAD: list[tuple[str, int, list[Map], str]] = [
    ("two-stewards", 1, [*FIVE[:2], changed(FIVE[2], steward=OTHER.public)], "The third is of another steward."),
    ("checkpoint-steward", 1, [*FIVE, counting(FIVE, steward=OTHER.public)], "A checkpoint of another steward."),
    ("fork", 2, [*FIVE[:3], FORKED], "Two receipts with one number."),
    ("twice", 2, [*FIVE[:3], FIVE[2]], "One receipt twice."),
    ("first-twice", 2, [FIVE[0], *FIVE[:2]], "The first receipt twice."),
    ("gap", 3, [FIVE[0], *FIVE[2:]], "The second is missing."),
    ("gap-later", 3, [*FIVE[:3], FIVE[4]], "The fourth is missing."),
    ("gap-linked", 3, [FIVE[0], SKIPPING], "The second number is left out, and the link is right."),
    ("backwards", 3, FIVE[::-1], "All there, the last first."),
    ("swapped", 3, [FIVE[0], FIVE[2], FIVE[1], *FIVE[3:]], "All there, two of them in the wrong order."),
    ("prev", 4, [*FIVE[:2], changed(FIVE[2], prev=digest(99))], "The third names another one before it."),
    ("prev-self", 4, [*FIVE[:2], SKIPPING], "The third names the first."),
    ("prev-replaced", 4, [FIVE[0], changed(FIVE[1], ended_ns=1), FIVE[2]], "The second was replaced, the third kept."),
    ("checkpoint-more", 5, [*FIVE[:4], counting(FIVE)], "A checkpoint counts five, four are there."),
    ("checkpoint-head", 5, [*FIVE, counting(FIVE, head=digest(99))], "A checkpoint names another last one."),
    ("checkpoint-head-inside", 5, [*FIVE, counting(FIVE[:3], head=digest(99))], "The same, of the third."),
    ("checkpoint-fork", 5, [*FIVE, counting([*FIVE[:2], FORKED])], "A checkpoint names the other side of a fork."),
]


def cases() -> Group:
    group = Group("sequence")
    for name, values, comment in GOOD:
        files = named(values)
        line = str(sum("seq" in value for value in values))
        group.accept(name, call_with(files), line, "sequence.5", comment, files | {"trust.txt": trust_file()})
    for name, rule, values, comment in BAD:
        files = named(values)
        trust = {"trust.txt": trust_file(KEY, OTHER)}
        group.reject(name, call_with(files), "sequence", f"sequence.{rule}", comment, files | trust)
    _serve_twice(group)
    _envelopes(group)
    return group


def named(values: list[Map]) -> dict[str, bytes]:
    return {f"{letter}.cbor": sealed(value) for letter, value in zip(ORDER, values, strict=False)}


def call_with(files: dict[str, bytes]) -> str:
    return " ".join(["sequence trust.txt", *files])


def _serve_twice(group: Group) -> None:
    again = changed(FIVE[1], serve_id=FIVE[0]["serve_id"])
    files = named([FIVE[0], again]) | {"trust.txt": trust_file()}
    comment = "One serve with two receipts, which follow one another."
    group.reject("serve-twice", "sequence trust.txt a.cbor b.cbor", "sequence", "sequence.2", comment, files)


def _envelopes(group: Group) -> None:
    """What is wrong with an envelope comes before how they follow."""
    files = named(FIVE[:3])
    call = call_with(files)
    cut = files | {"b.cbor": files["b.cbor"][:-1], "trust.txt": trust_file()}
    group.reject("envelope-cut", call, "structure", "envelope.1", "The second breaks off.", cut)
    forged = files | {"c.cbor": files["c.cbor"][:-1] + b"\x00", "trust.txt": trust_file()}
    group.reject("envelope-forged", call, "signature", "envelope.5", "The third is forged.", forged)
    strange = files | {"trust.txt": trust_file(OTHER)}
    group.reject("envelope-unknown", call, "trust", "envelope.4", "A steward whom the verifier does not know.", strange)
