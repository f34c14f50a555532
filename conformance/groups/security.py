"""What the security section says of keys and of names."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id, steward_text
from conformance.material import KEY, Map, protected, receipt, sign1, signed_receipt, trust_file
from conformance.writer import bstr, item, text

# Neutral, of orders 2, 4 and 8: every signature that begins with such a key fits some message.
WEAK = (
    ("neutral", (1).to_bytes(32, "little")),
    ("order-2", (2**255 - 20).to_bytes(32, "little")),
    ("order-4", bytes(32)),
    ("order-8", bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")),
)
# Each turns, joins or hides what is shown around it. None is a control character, so each may stand in a name.
NAMES = (
    ("override", "gpt\u202e4-\u202c", "RIGHT-TO-LEFT OVERRIDE"),
    ("isolate", "a\u2066b\u2069", "LEFT-TO-RIGHT ISOLATE"),
    ("zero-width", "a\u200bb", "ZERO WIDTH SPACE"),
    ("mark-before", "\ufeffa", "a byte order mark"),
    ("tag", "a\U000e0041", "TAG LATIN CAPITAL LETTER A"),
    ("private", "\ue000", "a private character"),
    ("spaces", "\u00a0 \u3000", "several kinds of space"),
)


def named(name: str) -> Map:
    return receipt(engine={**receipt()["engine"], "recipe_id": name})


def cases() -> Group:
    group = Group("security")
    for name, key in WEAK:
        header = protected(kid=bstr(key), iss=text(steward_text(key)))
        forged = sign1(item(receipt(steward=key)), header, signature=key + bytes(32))
        trust = f"{steward_text(KEY.public)}\n{steward_text(key)}\n".encode()
        comment = "A key that binds nobody is refused where it is named, before any signature is looked at."
        group.reject(f"weak-{name}", "envelope receipt input.cbor trust.txt", "trust-file", "security", comment, {
            "input.cbor": forged, "trust.txt": trust})  # fmt: skip
    for name, recipe, what in NAMES:
        value = named(recipe)
        comment = f"A name with {what} is a name: it is whoever shows it that has to escape it."
        files = {"input.cbor": signed_receipt(value), "trust.txt": trust_file(KEY)}
        line = b3(content_id("receipt", value))
        group.accept(f"name-{name}", "envelope receipt input.cbor trust.txt", line, "security", comment, files)
    return group
