"""How a serve ended, and what was counted."""

from __future__ import annotations

from conformance.case import Group, dashed
from conformance.material import MAX_COUNT, MAX_UINT, Map, digest, outcome, small_outcome
from conformance.writer import Raw, item

COUNTS = (
    "tokens_in",
    "tokens_out",
    "tokens_accepted",
    "tokens_delivered",
    "cache_hit_tokens",
    "spec_proposed",
    "spec_accepted",
)

GOOD: list[tuple[str, Map, str]] = [
    ("minimal", small_outcome(), "Nothing but the two fields that must be there."),
    ("full", outcome(), "Every field there."),
    *((f"finish-{word}", small_outcome(finish=word), f"Finish {word}.") for word in (
        "stop", "length", "cancelled", "engine-error", "refused"
    )),
    *((f"counted-by-{word}", small_outcome(counted_by=word, tokens_out=1), f"Counted by {word}.") for word in (
        "engine", "gateway", "both"
    )),
    *((f"with-{dashed(name)}", small_outcome(counted_by="engine", **{name: 0}), f"{name} alone, and 0.")
      for name in (*COUNTS, "decision", "delivered_fidelity")),
    ("with-weights", small_outcome(weights_digest=digest(11)), "With a weights digest."),
    ("with-precision", small_outcome(precision="BF16+q8_0.k-v"), "With a precision."),
    ("with-reason", small_outcome(reason="a"), "With a reason of one letter."),
    ("reason-64", small_outcome(reason="a" + "-._0" * 15 + "aaa"), "A reason of 64 characters."),
    ("highest", small_outcome(counted_by="both", decision=MAX_UINT, **dict.fromkeys(COUNTS, MAX_COUNT)),
     "Every count at its highest."),
    ("counts-apart", outcome(tokens_accepted=100, tokens_delivered=0), "Counts are not compared with each other."),
]  # fmt: skip

SHAPES: list[tuple[str, Map, str]] = [
    ("no-finish", small_outcome(finish=None), "finish is missing."),
    ("no-counted-by", small_outcome(counted_by=None), "counted_by is missing."),
    ("finish-unknown", small_outcome(finish="done"), "A word that is not in the list."),
    ("finish-capital", small_outcome(finish="Stop"), "A capital."),
    ("counted-by-unknown", small_outcome(counted_by="client"), "A word that is not in the list."),
    *((f"{dashed(name)}-negative", outcome(**{name: -1}), f"{name} below 0.") for name in COUNTS),
    *((f"{dashed(name)}-high", outcome(**{name: MAX_COUNT + 1}), f"{name} is 2^31.") for name in COUNTS[:5]),
    ("decision-high", outcome(decision=MAX_UINT + 1), "2^63."),
    ("fidelity-high", outcome(delivered_fidelity=4), "There are 0 to 3."),
    ("weights-short", outcome(weights_digest=bytes(31)), "31 bytes."),
    ("precision-space", outcome(precision="Q4 1"), "A space."),
    ("precision-empty", outcome(precision=""), "No character."),
    ("precision-long", outcome(precision="Q" * 65), "65 characters."),
    ("precision-line", outcome(precision="Q4_1\n"), "A line break at the end, which some patterns let pass."),
    ("reason-capital", outcome(reason="No-meter"), "A capital."),
    ("reason-edge", outcome(reason="no-"), "A hyphen at the end."),
    ("reason-start", outcome(reason=".no"), "A dot at the start."),
    ("reason-long", outcome(reason="a" * 65), "65 characters."),
    ("reason-empty", outcome(reason=""), "No character."),
    ("reason-line", outcome(reason="no\n"), "A line break at the end, which some patterns let pass."),
    ("unknown-field", outcome(note="x"), "A field that is not in the CDDL."),
    ("count-boolean", outcome(tokens_out=True), "A boolean is no integer."),
]  # fmt: skip

BEYOND: list[tuple[str, Map, str]] = [
    ("counted-by-none", small_outcome(tokens_out=0), "A count that nobody counted."),
    ("spec-accepted-high", outcome(spec_proposed=30, spec_accepted=31), "More accepted than proposed."),
    ("spec-accepted-alone", outcome(spec_proposed=None, spec_accepted=1), "Some accepted of none proposed."),
]


def cases() -> Group:
    group = Group("outcome")
    for name, value, comment in GOOD:
        group.accept(name, "outcome input.cbor", None, "outcome.3", comment, {"input.cbor": item(value)})
    for rule, faults in ((2, SHAPES), (3, BEYOND)):
        for name, value, comment in faults:
            files = {"input.cbor": item(value)}
            group.reject(name, "outcome input.cbor", "schema", f"outcome.{rule}", comment, files)
    for name, data, comment in (
        ("null", item(small_outcome(reason=Raw(b"\xf6"))), "A null where the field should be left out."),
        ("wide", item(outcome(tokens_in=Raw(b"\x1a\x00\x00\x01\xaf"))), "431 in five bytes."),
        ("not-a-map", item("stop"), "Text where a map has to be."),
    ):
        group.reject(name, "outcome input.cbor", "encoding", "outcome.1", comment, {"input.cbor": data})
    return group
