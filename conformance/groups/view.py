"""The JSON view of receipts, as a gateway answers them, and of settings documents, which may hold anything."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id, plain
from conformance.json_view import members, quoted, spelled
from conformance.material import (
    KEY,
    MAX_UINT,
    OTHER,
    REFERENCE_SETTINGS,
    Map,
    Serve,
    checkpoint,
    digest,
    energy,
    receipt,
    signed_checkpoint,
    signed_receipt,
    small_receipt,
    source,
    trust_file,
)
from conformance.writer import item

TRUST = trust_file(KEY)
SAFE = 2**53 - 1

RECEIPTS: tuple[tuple[str, Map, str], ...] = (
    ("worked", Serve().receipt, "The worked receipt."),
    ("minimal", small_receipt(), "Without any optional field."),
    ("full", receipt(), "Every field there: keys, digests, hex and a serve id, each in its form."),
    ("safe", small_receipt(started_ns=SAFE, ended_ns=SAFE + 1), "The last number, and the first that is text."),
    ("highest", receipt(seq=MAX_UINT), "A sequence number of 2^63-1 is text."),
    (
        "names",
        receipt(energy=energy(uj=3, sources=[source(domain='a"\\/é\u202e🙂', uj=3)])),
        "Characters that are escaped, and those that are not.",
    ),
)

SETTINGS: tuple[tuple[str, Map, str], ...] = (
    ("empty", {}, "Nothing in it."),
    ("reference", REFERENCE_SETTINGS, "The reference engine's."),
    ("numbers", {"a": [SAFE, SAFE + 1, -SAFE, -SAFE - 1, 2**64 - 1, -(2**63), 0]}, "Numbers on both sides of 2^53."),
    ("bytes", {"a": b"", "b": bytes(31), "c": digest(1), "d": [digest(2), b"\xff"]}, "32 bytes are an id, others hex."),
    (
        "named",
        {"steward": KEY.public, "serve_id": bytes(range(16)), "nonce": digest(3), "a": {"opening": [digest(4)]}},
        "Names that decide about the form, in whatever map, and for what an array of that name holds.",
    ),
    ("named-short", {"steward": bytes(31), "serve_id": digest(5)}, "Another length than the name's is as any other."),
    ("escapes", {"a": "\x00\x08\t\n\x0c\r\x1f\"\\/\x7f\u2028\ud7ff"}, "What is escaped, and how."),
    ("keys", {"\ufb33": 1, "😀": 2, "": 3, "é": 4, "1": 5, "10": 6, "2": 7}, "Keys in the order of UTF-16."),
    ("prototype", {"__proto__": {"a": 1}, "constructor": True}, "Names that mean something to JavaScript."),
)  # fmt: skip


def cases() -> Group:
    group = Group("view")
    for name, value, comment in RECEIPTS:
        told = {"view_of": quoted("application/cose"), "receipt_id": quoted(b3(content_id("receipt", value)))}
        text = members({**told, "receipt": spelled(value)}).encode()
        files = {"input.cbor": signed_receipt(value), "trust.txt": TRUST}
        call = "receipt-view input.cbor trust.txt"
        group.accept(f"receipt-{name}", call, b3(plain(text)), "http", comment, files, shown=text)
    for name, value, comment in SETTINGS:
        told = {"view_of": quoted("application/cbor"), "digest": quoted(b3(content_id("settings", value)))}
        text = members({**told, "settings": spelled(value)}).encode()
        call = "settings-view input.cbor"
        line, files = b3(plain(text)), {"input.cbor": item(value)}
        group.accept(f"settings-{name}", call, line, "http", comment, files, shown=text)
    for name, data, trust, error, comment in (
        ("stranger", signed_receipt(receipt()), trust_file(OTHER), "trust", "Nobody trusts the key."),
        ("checkpoint", signed_checkpoint(checkpoint()), TRUST, "header", "A checkpoint is no receipt."),
        ("payload", item(receipt()), TRUST, "structure", "A receipt that nobody signed."),
    ):
        files = {"input.cbor": data, "trust.txt": trust}
        group.reject(f"receipt-{name}", "receipt-view input.cbor trust.txt", error, "http", comment, files)
    for name, data in (("array", item([1])), ("float", b"\xa1\x61a\xf9\x3c\x00")):
        comment = "What is no settings document has no view."
        group.reject(f"settings-{name}", "settings-view input.cbor", "encoding", "http", comment, {"input.cbor": data})
    return group
