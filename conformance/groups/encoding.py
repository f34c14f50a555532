"""Each spelling that a value could have, and the one that it has."""

from __future__ import annotations

from conformance.case import Group
from conformance.writer import (
    ARRAY,
    BREAK,
    BSTR,
    FALSE,
    MAP,
    NULL,
    TEXT,
    UNDEFINED,
    array,
    bstr,
    head,
    indefinite,
    integer,
    item,
    mapping,
    tag,
    text,
)

A, B = text("a"), text("b")
ONE = integer(1)

GOOD = {
    "empty-map": (item({}), "The smallest map."),
    "empty-array": (item([]), "A value need not be a map."),
    "true": (item(True), "A boolean alone."),
    "zero": (item(0), "The integer 0 in one byte."),
    "integers": (
        item([0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
        "Each width of a head at its borders, up to 2^64-1.",
    ),
    "negatives": (
        item([-1, -24, -25, -256, -257, -65536, -65537, -(2**32), -(2**32) - 1, -(2**63)]),
        "The same below 0, down to -2^63.",
    ),
    "byte-strings": (item([bytes(n) for n in (0, 1, 23, 24, 255, 256)]), "Lengths at the borders of their heads."),
    "texts": (item(["", "a" * 23, "a" * 24, "a" * 255, "a" * 256]), "Lengths at the borders of their heads."),
    "unicode": (
        item(["ü", "\u212b", "A\u030a", "🙂", "\x00\n\ufeff", "\U0010ffff"]),
        "Any UTF-8 text, control characters and unnormalised forms included: nothing is normalised.",
    ),
    "text-byte-order-mark": (
        item(["\ufeff", "\ufeffa", {"\ufeffa": 1, "a": 2}]),
        "U+FEFF at the beginning of a text is a character of it like any other.",
    ),
    "long-array": (item([False] * 24), "24 items need a second byte in the head."),
    "long-map": (item({f"k{n:02d}": n for n in range(24)}), "24 pairs need a second byte in the head."),
    "key-order-length": (item({"b": 1, "aa": 2, "": 3}), "A shorter key comes first."),
    "key-order-bytes": (
        item({"é": 1, "zz": 2, "aé": 3, "zzz": 4}),
        "Keys are ordered by their bytes, and their length is that of their UTF-8.",
    ),
    "nested-maps": (item({"a": {"b": {"c": [{"d": {}}]}}}), "Maps and arrays in each other."),
    "nested-16": (b"\x81" * 15 + b"\x80", "16 arrays inside one another."),
    "nested-16-maps": (b"\xa1\x61a" * 15 + b"\xa0", "16 maps inside one another."),
}

# Name, the bytes, the step that they break, and how.
BAD = [
    ("too-long", bstr(bytes(65534)), 1, "65537 bytes, one more than is read here."),
    ("empty", b"", 2, "No bytes are no item."),
    ("truncated-head", b"\x19\x01", 2, "A head of three bytes that ends after two."),
    ("truncated-bytes", b"\x43\x00\x00", 2, "Three bytes announced, two there."),
    ("truncated-text", b"\x62a", 2, "Two bytes announced, one there."),
    ("truncated-array", b"\x82\x01", 2, "Two items announced, one there."),
    ("truncated-map", b"\xa1\x61a", 2, "A key without its value."),
    ("huge-array", head(ARRAY, 2**64 - 1), 2, "2^64-1 items announced: nothing may be reserved for them."),
    ("huge-bytes", head(BSTR, 2**63), 2, "2^63 bytes announced: nothing may be reserved for them."),
    ("huge-map", head(MAP, 2**32), 2, "2^32 pairs announced: nothing may be reserved for them."),
    ("indefinite-bytes", indefinite(BSTR, bstr(b"a") + bstr(b"b")), 2, "A byte string in chunks."),
    ("indefinite-text", indefinite(TEXT, A + B), 2, "A text string in chunks."),
    ("indefinite-array", indefinite(ARRAY, ONE), 2, "An array of indefinite length."),
    ("indefinite-map", indefinite(MAP, A + ONE), 2, "A map of indefinite length."),
    ("indefinite-empty", indefinite(MAP, b""), 2, "An empty map of indefinite length."),
    ("indefinite-inside", mapping([(A, indefinite(ARRAY, b""))]), 2, "An array of indefinite length as a value."),
    ("break-alone", BREAK, 2, "A break that ends nothing."),
    ("reserved-28", b"\x1c", 2, "Additional information 28 is not assigned."),
    ("reserved-30", b"\x7e", 2, "Additional information 30 is not assigned."),
    ("integer-31", b"\x1f", 2, "An integer has no indefinite form."),
    ("text-not-utf8", text(b"\xff"), 2, "A byte that UTF-8 does not have."),
    ("text-overlong", text(b"\xc0\x80"), 2, "NUL in two bytes."),
    ("text-surrogate", text(b"\xed\xa0\x80"), 2, "U+D800 is half a character."),
    ("text-beyond", text(b"\xf4\x90\x80\x80"), 2, "U+110000 is not a character."),
    ("text-cut", text(b"\xc3"), 2, "A character that lacks its second byte."),
    ("key-not-utf8", mapping([(text(b"\xff"), ONE)]), 2, "A map key that is not UTF-8."),
    ("nested-17", b"\x81" * 16 + b"\x80", 2, "17 arrays inside one another."),
    ("nested-17-maps", b"\xa1\x61a" * 16 + b"\xa0", 2, "17 maps inside one another."),
    ("nested-10000", b"\x81" * 10000 + b"\x80", 2, "10001 arrays inside one another: no decoder may crash on them."),
    ("float-16", b"\xf9\x3c\x00", 3, "1.0 as a half float."),
    ("float-32", b"\xfa\x3f\x80\x00\x00", 3, "1.0 as a single float."),
    ("float-64", b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a", 3, "1.1 as a double float."),
    ("float-nan", b"\xf9\x7e\x00", 3, "Not a number."),
    ("float-infinity", b"\xf9\x7c\x00", 3, "Infinity."),
    ("float-inside", mapping([(A, b"\xf9\x00\x00")]), 3, "A float as a value."),
    ("null", NULL, 3, "There is no null: what is absent is left out."),
    ("null-inside", mapping([(A, NULL)]), 3, "A null as a value."),
    ("undefined", UNDEFINED, 3, "There is no undefined."),
    ("simple-16", b"\xf0", 3, "A simple value that is not assigned."),
    ("simple-32", b"\xf8\x20", 3, "A simple value in two bytes."),
    ("simple-255", b"\xf8\xff", 3, "The last simple value."),
    ("tag-0", tag(0, text("2026-01-01T00:00:00Z")), 3, "A date: no tags."),
    ("tag-2", tag(2, bstr(b"\x01" + bytes(8))), 3, "A big integer: no tags."),
    ("tag-18", tag(18, array([])), 3, "The tag of an envelope has no place in a payload."),
    ("tag-35", tag(35, text("(a+)+$")), 3, "A regular expression, which no decoder may compile."),
    ("tag-256", tag(256, array([])), 3, "A namespace of references to strings: no tags."),
    ("tag-55799", tag(55799, item({})), 3, "The self-describing mark: no tags."),
    ("tag-inside", array([tag(1, ONE)]), 3, "A tag as an item."),
    ("negative-too-low", b"\x3b\x80" + bytes(7), 3, "-2^63-1."),
    ("negative-lowest", b"\x3b" + b"\xff" * 8, 3, "-2^64, which CBOR can still hold."),
    ("key-integer", mapping([(ONE, ONE)]), 3, "An integer as a key."),
    ("key-bytes", mapping([(bstr(b"a"), ONE)]), 3, "A byte string as a key."),
    ("key-boolean", mapping([(FALSE, ONE)]), 3, "A boolean as a key."),
    ("key-array", mapping([(array([]), ONE)]), 3, "An array as a key."),
    ("key-map", mapping([(item({}), ONE)]), 3, "A map as a key."),
    ("key-integer-inside", array([mapping([(integer(0), ONE)])]), 3, "An integer as a key, deeper."),
    ("duplicate-key", mapping([(A, ONE), (A, ONE)]), 4, "One key twice, with one value."),
    ("duplicate-key-other", mapping([(A, ONE), (A, integer(2))]), 4, "One key twice, with two values."),
    ("duplicate-key-inside", array([mapping([(A, ONE), (A, ONE)])]), 4, "One key twice, deeper."),
    ("order-reversed", mapping([(B, ONE), (A, ONE)]), 4, "Two keys of one length, the greater first."),
    ("order-alphabetic", mapping([(text("aa"), ONE), (B, ONE)]), 4, "Alphabetic order, where the shorter comes first."),
    ("order-inside", mapping([(A, mapping([(B, ONE), (A, ONE)]))]), 4, "The order of a map within a map."),
    ("wide-integer-1", integer(23, 1), 5, "23 in two bytes."),
    ("wide-integer-2", integer(255, 2), 5, "255 in three bytes."),
    ("wide-integer-4", integer(65535, 4), 5, "65535 in five bytes."),
    ("wide-integer-8", integer(2**32 - 1, 8), 5, "2^32-1 in nine bytes."),
    ("wide-negative", integer(-1, 1), 5, "-1 in two bytes."),
    ("wide-bytes", bstr(b"a", 1), 5, "The length of a byte string in two bytes."),
    ("wide-text", text("a", 2), 5, "The length of a text in three bytes."),
    ("wide-array", array([ONE], 1), 5, "The length of an array in two bytes."),
    ("wide-map", mapping([(A, ONE)], 4), 5, "The length of a map in five bytes."),
    ("wide-key", mapping([(text("a", 1), ONE)]), 5, "A key with a wide head."),
    ("wide-inside", array([array([integer(0, 8)])]), 5, "0 in nine bytes, deeper."),
    ("trailing-byte", item({}) + b"\x00", 6, "An item after the item."),
    ("trailing-copy", item({"a": 1}) * 2, 6, "The same item again."),
    ("trailing-break", item([]) + BREAK, 6, "A break after the item."),
]


def cases() -> Group:
    group = Group("encoding")
    for name, (data, comment) in GOOD.items():
        group.accept(name, "decode input.cbor", None, "encoding.5", comment, {"input.cbor": data})
    for name, data, rule, comment in BAD:
        group.reject(name, "decode input.cbor", "encoding", f"encoding.{rule}", comment, {"input.cbor": data})
    group.reject(
        "boolean-wide", "decode input.cbor", "encoding", "encoding.2", "False in two bytes, which is no CBOR at all.",
        {"input.cbor": b"\xf8\x14"},
    )  # fmt: skip
    return group
