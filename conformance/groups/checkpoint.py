"""Checkpoints on their own."""

from __future__ import annotations

from conformance.case import Group, dashed
from conformance.digests import b3, content_id
from conformance.material import MAX_UINT, Map, checkpoint, digest, domain_totals, small_checkpoint
from conformance.sizes import PAYLOAD_BYTES, checkpoint_of
from conformance.writer import Raw, item

SIXTY_FIVE = [domain_totals(domain=f"gpu-{n:02d}") for n in range(65)]

GOOD: list[tuple[str, Map, str]] = [
    ("empty", small_checkpoint(), "Of a ledger that holds nothing yet."),
    ("full", checkpoint(), "Every field there."),
    ("no-epoch", small_checkpoint(count=1, head=digest(30)), "Without any meter."),
    ("epoch-no-domain", small_checkpoint(epoch=bytes(16), epoch_seq=0), "An epoch with no domain in it."),
    ("domains", checkpoint(domains=[domain_totals(domain=name) for name in ("Z", "a", "é")]), "Three domains."),
    ("domains-64", checkpoint(domains=SIXTY_FIVE[:64]), "64 domains."),
    ("totals-apart", checkpoint(domains=[domain_totals(last_uj=0)]), "Totals are not compared without the receipts."),
    ("longest", checkpoint_of(PAYLOAD_BYTES), "32768 bytes."),
    ("highest", checkpoint(count=MAX_UINT, at_ns=MAX_UINT, epoch_seq=MAX_UINT), "Numbers at their highest."),
]

SHAPES: list[tuple[str, Map, str]] = [
    *((f"no-{dashed(name)}", small_checkpoint(**{name: None}), f"{name} is missing.") for name in small_checkpoint()),
    *(
        (
            f"domain-no-{dashed(name)}",
            checkpoint(domains=[domain_totals(**{name: None})]),
            f"{name} is missing.",
        )
        for name in domain_totals()
    ),
    ("version", checkpoint(v="mesh/2"), "Another version."),
    ("unknown-field", checkpoint(seq=1), "A field that is not in the CDDL."),
    ("domain-unknown", checkpoint(domains=[domain_totals(watts=1)]), "A field that is not in the CDDL."),
    ("steward-short", checkpoint(steward=bytes(31)), "31 bytes."),
    ("at-negative", checkpoint(at_ns=-1), "Before 1970."),
    ("count-high", checkpoint(count=MAX_UINT + 1), "2^63."),
    ("count-negative", checkpoint(count=-1), "Below 0."),
    ("head-short", checkpoint(head=bytes(31)), "31 bytes."),
    ("epoch-short", checkpoint(epoch=bytes(15)), "15 bytes."),
    ("open-negative", checkpoint(domains=[domain_totals(open_uj=-1)]), "Below 0."),
    ("domain-name-control", checkpoint(domains=[domain_totals(domain="a\tb")]), "A control character in a name."),
    ("domains-65", checkpoint(domains=SIXTY_FIVE), "65 domains."),
    ("domains-map", checkpoint(domains={}), "A map is no array."),
]

BEYOND: list[tuple[str, Map, str]] = [
    ("head-at-zero", small_checkpoint(head=digest(30)), "The last of no receipts."),
    ("head-missing", checkpoint(head=None), "Eight receipts, and no last one."),
    ("epoch-alone", small_checkpoint(epoch=bytes(16)), "An epoch that begins nowhere."),
    ("epoch-seq-alone", small_checkpoint(epoch_seq=0), "A beginning of no epoch."),
    ("domain-no-epoch", small_checkpoint(domains=[domain_totals()]), "Totals of no epoch."),
    ("domain-order", checkpoint(domains=[domain_totals(domain="b"), domain_totals(domain="a")]), "In another order."),
    ("domain-twice", checkpoint(domains=[domain_totals()] * 2), "One domain twice."),
]


def cases() -> Group:
    group = Group("checkpoint")
    for name, value, comment in GOOD:
        line = b3(content_id("checkpoint", value))
        group.accept(name, "checkpoint input.cbor", line, "checkpoint.3", comment, {"input.cbor": item(value)})
    for rule, faults in ((2, SHAPES), (3, BEYOND)):
        for name, value, comment in faults:
            files = {"input.cbor": item(value)}
            group.reject(name, "checkpoint input.cbor", "schema", f"checkpoint.{rule}", comment, files)
    for name, data, comment in (
        ("null", item(small_checkpoint(head=Raw(b"\xf6"))), "A null where the field should be left out."),
        ("wide", item(small_checkpoint(count=Raw(b"\x18\x00"))), "0 in two bytes."),
        ("not-a-map", item([]), "An array where a map has to be."),
        ("too-long", item(checkpoint_of(PAYLOAD_BYTES + 1)), "32769 bytes."),
    ):
        group.reject(name, "checkpoint input.cbor", "encoding", "checkpoint.1", comment, {"input.cbor": data})
    return group
