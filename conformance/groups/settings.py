"""Settings documents on their own."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id
from conformance.material import REFERENCE_SETTINGS, SETTINGS
from conformance.writer import NULL, Raw, item


def cases() -> Group:
    group = Group("settings")
    for name, value in (("empty", {}), ("reference", REFERENCE_SETTINGS), ("nested", SETTINGS)):
        line = b3(content_id("settings", value))
        group.accept(name, "settings input.cbor", line, "engines.1", "A map with whatever is in it.", {
            "input.cbor": item(value)})  # fmt: skip
    for name, data, comment in (
        ("array", item(["engine", "reference"]), "An array is no map."),
        ("text", item("reference"), "A text is no map."),
        ("null", item({"dtype": Raw(NULL)}), "What is not known is left out."),
        ("key-number", b"\xa1\x01\x02", "A key that is a number."),
        ("float", item({"temperature": Raw(b"\xf9\x3c\x00")}), "A float."),
        ("order", b"\xa2\x61b\x01\x61a\x01", "Keys in another order."),
    ):
        group.reject(name, "settings input.cbor", "encoding", "engines.1", comment, {"input.cbor": data})
    return group
