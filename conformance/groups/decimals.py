"""Decimals that come in from outside, in millionths."""

from __future__ import annotations

from conformance.case import Group

GOOD = (
    ("zero", "0", 0, "0 is 0."),
    ("zero-minus", "-0.0", 0, "And so is this."),
    ("zero-small", "0e-400", 0, "0 has no places, however it is written."),
    ("one", "1", 1_000_000, "A whole number."),
    ("half", "0.5", 500_000, "A fraction."),
    ("six", "0.000001", 1, "Six places."),
    ("minus", "-0.7", -700_000, "Less than 0."),
    ("not-binary", "0.1", 100_000, "What no binary float is equal to."),
    ("trailing", "1.50000000", 1_500_000, "Zeros at the end are no places."),
    ("exponent", "25e-2", 250_000, "An exponent."),
    ("exponent-capital", "2.5E+1", 25_000_000, "An exponent, with a sign and a capital."),
    ("highest", "1000000", 10**12, "The highest of this operation."),
    ("lowest", "-1000000", -(10**12), "The lowest."),
    ("long", "0.7" + "0" * 60, 700_000, "More digits than a double has."),
)

BAD = (
    ("seven", "0.0000001", "Seven places."),
    ("seven-nines", "0.9999999", "Not 1: nothing is rounded."),
    ("seven-even", "0.0000010000001", "A place far behind the sixth."),
    ("exponent-small", "1e-7", "Seven places, by an exponent."),
    ("beyond-double", "1." + "0" * 40 + "1", "A place that a double would lose."),
    ("high", "1000000.000001", "Above the highest."),
    ("exponent-high", "1e400", "Far above it."),
    ("text", "one", "Text."),
    ("infinity", "Infinity", "JSON has no such number."),
    ("nan", "NaN", "Nor this."),
    ("plus", "+1", "A sign that JSON does not have."),
    ("point", "1.", "A point without places."),
    ("point-first", ".5", "A point without a digit before it."),
    ("zero-first", "01", "A zero too many."),
    ("comma", "0,5", "A comma."),
)


def cases() -> Group:
    group = Group("decimals")
    for name, text, number, comment in GOOD:
        group.accept(name, f"millionths {text}", str(number), "conventions", comment)
    for name, text, comment in BAD:
        group.reject(name, f"millionths {text}", "schema", "conventions", comment)
    return group
