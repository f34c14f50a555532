"""Trust files."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import steward_text
from conformance.material import KEY, OTHER

A, B = steward_text(KEY.public), steward_text(OTHER.public)
NOON, LATER = "2026-09-21T12:00:00Z", "2026-09-22T12:00:00Z"

P = 2**255 - 19
ORDER_8 = (
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
)


def key(y: int, sign: int = 0) -> str:
    return steward_text((y | sign << 255).to_bytes(32, "little"))


GOOD = (
    ("one", f"{A}\n", 1, "One key."),
    ("no-line-end", A, 1, "The last line need not end."),
    ("two", f"{A}\n{B}\n", 2, "Two keys."),
    ("comments", f"# who we know\n\n  \n{A} # the first\n   {B}#the second\n", 2, "Comments, empty lines and spaces."),
    ("crlf", f"{A}\r\n\r\n{B}\r\n", 2, "Lines that end as on Windows."),
    ("unicode-comment", f"{A} # 鍵 🙂\n", 1, "Any text in a comment."),
    ("from", f"{A} from={NOON}\n", 1, "A key that is good since a time."),
    ("until", f"{A} until={NOON}\n", 1, "A retired key."),
    ("window", f"{A} from={NOON} until={LATER}\n", 1, "A key that was good for a time."),
    ("window-turned", f"{A} until={LATER} from={NOON}\n", 1, "The two in the other order."),
    ("windows", f"{A} until={NOON}\n{A} from={LATER}\n", 1, "One key with two windows is one key."),
    ("same-line-twice", f"{A}\n{A}\n", 1, "One line twice."),
    ("spaces", f"{A}   from={NOON}  \n", 1, "Several spaces."),
    ("tabs", f"\t{A}\tfrom={NOON} \tuntil={LATER}\t\n\t\n", 1, "Tabs do as spaces do."),
    ("leap-day", f"{A} from=2024-02-29T00:00:00Z\n", 1, "A day that is there every fourth year."),
    ("epoch", f"{A} from=1970-01-01T00:00:00Z\n", 1, "The first time that there is."),
    ("last", f"{A} until=2262-04-11T23:47:16Z\n", 1, "The last second whose nanoseconds are at most 2^63-1."),
)

SHAPES = (
    ("no-prefix", A[8:], "A key without its prefix."),
    ("upper-case", A.upper(), "Hex digits in capitals."),
    ("short", A[:-2], "31 bytes."),
    ("content-id", f"b3:{A[8:]}", "A content id is no key."),
    ("two-keys", f"{A} {B}", "Two keys in one line."),
    ("comma", f"{A},", "A character after the key."),
    ("unknown-word", f"{A} since={NOON}", "A word that is not known."),
    ("word-without-value", f"{A} from", "A word without its time."),
    ("empty-value", f"{A} from=", "An empty time."),
    ("from-twice", f"{A} from={NOON} from={NOON}", "One word twice."),
    ("until-twice", f"{A} until={NOON} until={LATER}", "One word twice."),
    ("window-first", f"from={NOON} {A}", "The key comes first."),
    ("window-empty", f"{A} from={NOON} until={NOON}", "A window of no length."),
    ("window-backwards", f"{A} from={LATER} until={NOON}", "A window that ends before it begins."),
    ("date-only", f"{A} from=2026-09-21", "A date without a time."),
    ("no-zone", f"{A} from=2026-09-21T12:00:00", "A time that is nobody's."),
    ("offset", f"{A} from=2026-09-21T12:00:00+00:00", "An offset, where only Z is known."),
    ("lower-case", f"{A} from=2026-09-21t12:00:00z", "Small letters."),
    ("decimals", f"{A} from=2026-09-21T12:00:00.5Z", "Decimals of a second."),
    ("no-such-day", f"{A} from=2026-02-29T00:00:00Z", "A day that 2026 does not have."),
    ("no-such-month", f"{A} from=2026-13-01T00:00:00Z", "A month that there is not."),
    ("hour-24", f"{A} from=2026-09-21T24:00:00Z", "Hours end at 23."),
    ("leap-second", f"{A} from=2016-12-31T23:59:60Z", "A leap second, which Unix time does not have."),
    ("before-1970", f"{A} from=1969-12-31T23:59:59Z", "Before Unix time."),
    ("after-2262", f"{A} until=2262-04-11T23:47:17Z", "Beyond 2^63-1 nanoseconds."),
    ("spaced-equals", f"{A} from ={NOON}", "A space before the equals sign."),
    ("byte-order-mark", f"\ufeff{A}", "A byte order mark before the first key."),
    ("other-space", f"{A}\u00a0from={NOON}", "A space that is not the plain one."),
)

KEYS = (
    ("key-zero", key(0), "y = 0, a point of order 4."),
    ("key-zero-sign", key(0, 1), "y = 0 with the sign bit: the other point of order 4."),
    ("key-one", key(1), "y = 1, the neutral point."),
    ("key-one-sign", key(1, 1), "y = 1 with a sign that x = 0 does not have."),
    ("key-minus-one", key(P - 1), "y = -1, the point of order 2."),
    *((f"key-order-8-{n}", key(y, n), "A point of order 8.") for n, y in enumerate(ORDER_8)),
    ("key-p", key(P), "y = p, another spelling of 0."),
    ("key-p-plus-1", key(P + 1), "y = p + 1, another spelling of 1."),
    ("key-p-plus-3", key(P + 3), "y = p + 3, another spelling of a point that would do."),
    ("key-highest", key(2**255 - 1, 1), "Every bit set."),
    ("key-no-point", key(2), "y = 2, which no point of the curve has."),
)


def cases() -> Group:
    group = Group("trust")
    for name, text, keys, comment in GOOD:
        group.accept(name, "trust trust.txt", str(keys), "trust.2", comment, {"trust.txt": text.encode()})
    for name, data, comment in (
        ("empty", b"", "Nothing in it."),
        ("comments-only", b"# nobody\n\n", "No key in it."),
        ("not-utf8", A.encode() + b" # \xff\n", "A byte that UTF-8 does not have, even in a comment."),
        ("utf-16", A.encode("utf-16"), "Text in another encoding."),
        ("too-long", A.encode() + b"\n" + b"#" * (1024 * 1024 - len(A)), "1048577 bytes."),
    ):
        group.reject(name, "trust trust.txt", "trust-file", "trust.1", comment, {"trust.txt": data})
    for rule, faults in ((2, SHAPES), (3, KEYS)):
        for name, line, comment in faults:
            files = {"trust.txt": f"{B}\n{line}\n".encode() if name != "byte-order-mark" else f"{line}\n".encode()}
            group.reject(name, "trust trust.txt", "trust-file", f"trust.{rule}", comment, files)
    return group
