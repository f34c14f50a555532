"""Lists of revoked blocks, as they may be written."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3
from conformance.grants import ISSUER, Chain, frame
from conformance.material import digest, trust_file
from conformance.writer import item

CHAIN = Chain({"max-tokens": 50}, {"max-tokens": 50})
OURS, OTHER = b3(CHAIN.ids[0]), b3(digest(1))

LISTS: tuple[tuple[str, bytes, bool, str], ...] = (
    ("empty", b"", False, "A list of nothing."),
    ("comments", f"# {OURS}\n \t\n#\n".encode(), False, "What comes after a # is for people."),
    ("other", f"{OTHER}\n".encode(), False, "Another block."),
    ("last-line", f"{OTHER}\n{OURS}".encode(), True, "A last line that does not end."),
    ("crlf", f"{OTHER}\r\n{OURS}\r\n".encode(), True, "Lines that end in CR LF."),
    ("spaces", f"\t {OURS} \t# lost\n".encode(), True, "Spaces and tabs around it, and a comment."),
    ("twice", f"{OURS}\n{OURS}\n".encode(), True, "The same block twice."),
    ("unicode", f"# 鍵 🙂\n{OURS}#é\n".encode(), True, "Any text in a comment."),
)


def cases() -> Group:
    group = Group("revocations")
    for name, data, revoked, comment in LISTS:
        files = {"input.cbor": CHAIN.open(), "trust.txt": trust_file(ISSUER), "frame.cbor": item(frame())}
        line = "refused 0 revoked" if revoked else "admitted"
        call = "grant-decide input.cbor trust.txt frame.cbor revoked.txt"
        group.accept(name, call, line, "grants", comment, {**files, "revoked.txt": data}, feature="grant")
    return group
