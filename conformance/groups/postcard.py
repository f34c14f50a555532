"""Postcard: the tables of its specification, and what a reader of one encoding refuses beyond them."""

from __future__ import annotations

from conformance.case import Group

FEATURE, WHERE = "blueprint", "blueprints"
TEN = "80" * 9
GOOD = (
    ("u16", "zero", "00", "0", "Zero is one byte."),
    ("u16", "seven-bits", "7f", "127", "Seven bits."),
    ("u16", "eight-bits", "8001", "128", "An eighth bit takes a second byte."),
    ("u16", "fourteen-bits", "ff7f", "16383", "Fourteen bits."),
    ("u16", "fifteen-bits", "808001", "16384", "A third byte."),
    ("u16", "most", "ffff03", "65535", "The largest."),
    ("u8", "raw", "ff", "255", "A u8 is no varint."),
    ("u32", "most", "ffffffff0f", "4294967295", "The largest."),
    ("u64", "most", "ff" * 9 + "01", str(2**64 - 1), "The largest."),
    ("u128", "most", "ff" * 18 + "03", str(2**128 - 1), "The largest."),
    ("i8", "raw", "80", "-128", "An i8 is no varint."),
    ("i16", "minus-one", "01", "-1", "Zigzag."),
    ("i16", "one", "02", "1", "Zigzag."),
    ("i16", "sixty-three", "7e", "63", "One byte."),
    ("i16", "minus-sixty-four", "7f", "-64", "One byte."),
    ("i16", "sixty-four", "8001", "64", "Two bytes."),
    ("i16", "most", "feff03", "32767", "The largest."),
    ("i16", "least", "ffff03", "-32768", "The smallest."),
    ("i128", "least", "ff" * 18 + "03", str(-(2**127)), "The smallest."),
    ("bool", "false", "00", "false", "No."),
    ("bool", "true", "01", "true", "Yes."),
    ("char", "two-bytes", "02c3a9", "c3a9", "One code point, as a string."),
    ("string", "plain", "0468c3a96a", "68c3a96a", "A length in bytes, then UTF-8."),
    ("string", "empty", "00", "empty", "Nothing."),
    ("bytes", "two", "020102", "0102", "A length, then the bytes."),
    ("option-u8", "none", "00", "none", "None."),
    ("option-u8", "some", "0105", "5", "Some."),
    ("seq-u16", "two", "02018001", "1 128", "A count, then the items."),
    ("seq-u16", "empty", "00", "empty", "No items."),
    ("map-u8-u8", "two", "0201020304", "1:2 3:4", "Keys ascend."),
)
BAD = (
    ("u16", "four-bytes", "80808000", "More bytes than a u16 has."),
    ("u16", "above", "ffff07", "More than a u16 holds."),
    ("u16", "above-and-long", "ffff8300", "Both."),
    ("u16", "two-for-zero", "8000", "A varint longer than it need be."),
    ("u16", "three-for-zero", "808000", "And longer still."),
    ("u16", "ends", "80", "It ends within."),
    ("u16", "nothing", "", "Nothing is there."),
    ("u16", "behind", "0000", "A byte behind it."),
    ("u32", "above", "ffffffff1f", "More than a u32 holds."),
    ("u64", "above", "ff" * 9 + "03", "More than a u64 holds."),
    ("u64", "eleven-bytes", TEN + "8000", "More bytes than a u64 has."),
    ("u128", "above", "ff" * 18 + "07", "More than a u128 holds."),
    ("i16", "above", "ffff07", "More than an i16 holds."),
    ("bool", "two", "02", "Neither."),
    ("char", "two-code-points", "026161", "Two code points."),
    ("char", "none", "00", "No code point."),
    ("string", "not-utf8", "02c328", "Not UTF-8."),
    ("string", "surrogate", "03eda080", "Half of a surrogate pair."),
    ("string", "ends", "0561", "Longer than what is left."),
    ("string", "long-length", "8100" + "61", "A length longer than it need be."),
    ("bytes", "huge", "ff" * 9 + "01", "A length beyond anything."),
    ("option-u8", "two", "0205", "Neither none nor some."),
    ("seq-u16", "ends", "05000000", "More items than bytes are left."),
    ("seq-u16", "huge", "ff" * 9 + "01", "A count beyond anything."),
    ("map-u8-u8", "descending", "0203040102", "Keys descend."),
    ("map-u8-u8", "twice", "0201020103", "A key twice."),
)


def cases() -> Group:
    group = Group("postcard")
    for kind, name, data, line, comment in GOOD:
        group.accept(
            f"{kind}-{name}", f"postcard {kind} input.bin", line, f"{WHERE}.13", f"{kind}. {comment}",
            {"input.bin": bytes.fromhex(data)}, feature=FEATURE,
        )  # fmt: skip
    for kind, name, data, comment in BAD:
        group.reject(
            f"{kind}-not-{name}", f"postcard {kind} input.bin", "postcard", f"{WHERE}.13", f"{kind}. {comment}",
            {"input.bin": bytes.fromhex(data)}, feature=FEATURE,
        )  # fmt: skip
    return group
