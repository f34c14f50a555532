"""Envelopes: whom a verifier trusts, for which time, and which of two faults it names."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id, steward_text
from conformance.groups.envelope import GOOD, PAYLOAD, RECEIPT, H, P, S, four, under, with_payload
from conformance.material import (
    ENDED_NS,
    KEY,
    OTHER,
    STARTED_NS,
    protected,
    receipt,
    signed_checkpoint,
    signed_receipt,
    small_checkpoint,
    trust_file,
)
from conformance.writer import bstr, integer

A, B = steward_text(KEY.public), steward_text(OTHER.public)
# The receipt ends at 14:13:21.25.
assert (STARTED_NS, ENDED_NS) == (1_790_000_000_000_000_000, 1_790_000_001_250_000_000)

IN_TIME = [
    ("from", f"{A} from=2026-09-21T14:13:21Z", "It ends in the second in which its key begins to be good."),
    ("until", f"{A} until=2026-09-21T14:13:22Z", "It ends in the last second in which its key is good."),
    ("window", f"{A} from=2026-09-21T14:13:20Z until=2026-09-21T14:13:22Z", "It ends in a window."),
    (
        "first-window", f"{A} from=2026-09-01T00:00:00Z until=2026-10-01T00:00:00Z\n{A} from=2027-01-01T00:00:00Z",
        "It ends in the first of two windows.",
    ),
    (
        "second-window", f"{A} until=2026-01-01T00:00:00Z\n{A} from=2026-09-01T00:00:00Z",
        "It ends in the second of two windows.",
    ),
    ("always-too", f"{A} until=2026-01-01T00:00:00Z\n{A}", "A line without a window is all time."),
    ("other-retired", f"{B} until=2026-01-01T00:00:00Z\n{A}", "Another key's window is no concern of this one."),
]  # fmt: skip

OUT_OF_TIME = [
    ("from", f"{A} from=2026-09-21T14:13:22Z", "It ends before its key begins to be good."),
    ("until", f"{A} until=2026-09-21T14:13:21Z", "It ends after its key was retired."),
    ("window", f"{A} from=2026-09-21T14:13:22Z until=2026-09-21T14:13:23Z", "It ends before the window."),
    (
        "between", f"{A} until=2026-09-21T14:13:20Z\n{A} from=2026-09-21T14:13:22Z",
        "It ends between two windows.",
    ),
    ("other-in-time", f"{A} until=2026-01-01T00:00:00Z\n{B}", "Another key is good for all time."),
]  # fmt: skip


def cases() -> Group:
    group = Group("envelope")
    call, line = "envelope receipt input.cbor trust.txt", b3(content_id("receipt", RECEIPT))
    other = {"input.cbor": GOOD, "trust.txt": trust_file(OTHER)}
    group.reject("trust-unknown", call, "trust", "envelope.4", "A steward whom the verifier does not know.", other)
    both = {"input.cbor": signed_receipt(receipt(steward=OTHER.public), OTHER), "trust.txt": trust_file(KEY, OTHER)}
    of_other = b3(content_id("receipt", receipt(steward=OTHER.public)))
    group.accept("trust-second", call, of_other, "envelope.4", "The second of two stewards that are trusted.", both)
    for name, trust, comment in IN_TIME:
        files = {"input.cbor": GOOD, "trust.txt": f"{trust}\n".encode()}
        group.accept(f"in-time-{name}", call, line, "envelope.7", comment, files)
    for name, trust, comment in OUT_OF_TIME:
        files = {"input.cbor": GOOD, "trust.txt": f"{trust}\n".encode()}
        group.reject(f"trust-time-{name}", call, "trust", "envelope.7", comment, files)
    of = small_checkpoint()
    asked = "envelope checkpoint input.cbor trust.txt"
    for name, limit in (("in-time-checkpoint", "22"), ("trust-time-checkpoint", "21")):
        files = {"input.cbor": signed_checkpoint(of), "trust.txt": f"{A} until=2026-09-21T14:13:{limit}Z\n".encode()}
        if limit == "22":
            comment = "A checkpoint is judged by the time that it names."
            group.accept(name, asked, b3(content_id("checkpoint", of)), "envelope.7", comment, files)
        else:
            group.reject(name, asked, "trust", "envelope.7", "A checkpoint of a key retired before.", files)
    _borders(group, call)
    _order(group, call)
    return group


def _borders(group: Group, call: str) -> None:
    """A window holds its `from` and not its `until`, to the nanosecond."""
    second = STARTED_NS + 1_000_000_000
    at, before = receipt(ended_ns=second), receipt(ended_ns=second - 1)
    for name, side, value, comment in (
        ("from-exactly", "from", at, "It ends at the nanosecond with which its key begins to be good."),
        ("until-exactly", "until", before, "It ends in the last nanosecond in which its key is good."),
    ):
        files = {"input.cbor": signed_receipt(value), "trust.txt": f"{A} {side}=2026-09-21T14:13:21Z\n".encode()}
        group.accept(f"in-time-{name}", call, b3(content_id("receipt", value)), "envelope.7", comment, files)
    for name, side, value, comment in (
        ("from-exactly", "from", before, "It ends a nanosecond before its key begins to be good."),
        ("until-exactly", "until", at, "It ends at the nanosecond with which its key is no longer good."),
    ):
        files = {"input.cbor": signed_receipt(value), "trust.txt": f"{A} {side}=2026-09-21T14:13:21Z\n".encode()}
        group.reject(f"trust-time-{name}", call, "trust", "envelope.7", comment, files)


def _order(group: Group, call: str) -> None:
    """These break two steps each, to show which comes first."""
    retired = f"{A} until=2026-01-01T00:00:00Z\n".encode()
    wide, forged = bstr(PAYLOAD, 4), bstr(bytes(64))
    old = protected(alg=integer(-8))
    for name, error, rule, data, trust, comment in (
        (
            "structure",
            "structure",
            1,
            four(H, b"\xa0", wide, bstr(b"")),
            trust_file(),
            "No signature, and a wide head.",
        ),
        (
            "canonical",
            "canonical",
            2,
            four(bstr(old), b"\xa0", wide, S),
            trust_file(),
            "A wide head, another algorithm.",
        ),
        ("header", "header", 3, under(old), trust_file(OTHER), "Another algorithm, and an unknown steward."),
        ("trust", "trust", 4, four(H, b"\xa0", P, forged), trust_file(OTHER), "An unknown steward, and a forgery."),
        ("signature", "signature", 5, four(H, b"\xa0", bstr(b"\xff"), S), trust_file(), "A forgery, and no receipt."),
        ("payload", "payload", 6, with_payload(b"\xff"), retired, "No receipt, and a retired key."),
    ):
        files = {"input.cbor": data, "trust.txt": trust}
        group.reject(f"first-{name}", call, error, f"envelope.{rule}", comment, files)
