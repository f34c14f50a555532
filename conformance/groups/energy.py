"""Energy records: what a figure needs beside it, and what has no figure."""

from __future__ import annotations

from typing import Any

from conformance.case import Group, dashed
from conformance.material import MAX_UINT, Map, absent_energy, changed, energy, small_energy, source
from conformance.sizes import PAYLOAD_BYTES, energy_of
from conformance.writer import Raw, item


def with_sources(*sources: Map, **fields: Any) -> Map:
    return energy(sources=list(sources), uj=sum(each["uj"] for each in sources), **fields)


SIXTY_FOUR = [source(domain=f"gpu-{n:02d}", uj=n) for n in range(65)]

GOOD: list[tuple[str, Map, str]] = [
    ("full", energy(), "A share of two domains, with every field that goes with one."),
    ("modelled", small_energy(), "An estimate of one domain."),
    ("measured", small_energy(basis="measured"), "Alone on its domain."),
    ("allocated", small_energy(basis="allocated"), "A share that says nothing of its window."),
    ("unresolved", absent_energy(basis="unresolved", span_ns=5, reason="short-span"), "Too short for the meter."),
    ("absent", absent_energy(), "Nobody lived to see the end, so there is no span either."),
    ("absent-span", absent_energy(span_ns=0), "A span without a figure."),
    ("counted-zero", small_energy(uj=0, sources=[source(uj=0)]), "A figure of 0 is a figure."),
    ("epoch", small_energy(epoch=bytes(16)), "With an epoch."),
    ("covered-all", small_energy(covered_ns=1_250_000_000), "Covered from end to end."),
    ("covered-none", absent_energy(covered_ns=0), "0 is at most a span that is absent and counts as 0."),
    ("rule", small_energy(rule="a" * 55 + "/9999", window_uj=0, peak_sharers=2**31), "A rule's name at its longest."),
    ("highest", small_energy(uj=MAX_UINT, sources=[source(uj=MAX_UINT)], span_ns=MAX_UINT), "At the highest."),
    ("sources-64", with_sources(*SIXTY_FOUR[:64]), "64 domains."),
    (
        "domain-order", with_sources(source(domain="Z"), source(domain="a"), source(domain="ab"), source(domain="é")),
        "Domains in the order of their code points.",
    ),
    (
        "domain-order-astral", with_sources(source(domain="\uffee"), source(domain="\U0001f642")),
        "A code point beyond 2^16 comes after U+FFEE, although its first half in UTF-16 is lower.",
    ),
    ("longest", energy_of(PAYLOAD_BYTES), "32768 bytes."),
    ("window-below", energy(window_uj=1), "The window is not compared with the share."),
]  # fmt: skip

SHAPES: list[tuple[str, Map, str]] = [
    ("no-basis", energy(basis=None), "basis is missing."),
    ("no-sources", absent_energy(sources=None), "sources is missing."),
    ("basis-unknown", energy(basis="guessed"), "A word that is not in the list."),
    ("unknown-field", energy(watts=1), "A field that is not in the CDDL."),
    ("uj-negative", small_energy(uj=-1, sources=[source(uj=-1)]), "Below 0."),
    ("uj-high", small_energy(uj=MAX_UINT + 1, sources=[source(uj=MAX_UINT), source(domain="d", uj=1)]), "2^63."),
    ("span-high", small_energy(span_ns=MAX_UINT + 1), "2^63."),
    ("rule-version", energy(rule="equal/0"), "Versions count from 1."),
    ("rule-no-version", energy(rule="equal"), "A rule has a version."),
    ("rule-capital", energy(rule="Equal/1"), "A capital."),
    ("rule-long", energy(rule="a" * 56 + "/1"), "A name of 56 characters."),
    ("rule-line", energy(rule="equal/1\n"), "A line break at the end, which some patterns let pass."),
    ("sharers-zero", energy(peak_sharers=0), "The serve itself is one."),
    ("sharers-high", energy(peak_sharers=2**31 + 1), "2^31+1."),
    ("epoch-short", energy(epoch=bytes(15)), "15 bytes."),
    ("reason-capital", absent_energy(reason="No meter"), "A capital and a space."),
    ("sources-65", with_sources(*SIXTY_FOUR), "65 domains."),
    ("source-array", energy(sources=[["cpu", "m", 123, 1]]), "A source is a map."),
    *(
        (f"source-no-{dashed(name)}", small_energy(sources=[source(**{name: None})]), f"{name} is missing.")
        for name in source()
    ),
    ("source-unknown", small_energy(sources=[source(watts=1)]), "A field that is not in the CDDL."),
    ("source-domain-empty", small_energy(sources=[source(domain="")]), "A name has a character."),
    ("source-method-control", small_energy(sources=[source(method="a\x1b[2J")]), "A control character in a name."),
    ("source-method-long", small_energy(sources=[source(method="m" * 257)]), "257 characters."),
    ("source-resolution", small_energy(sources=[source(resolution_ns=-1)]), "Below 0."),
]

BEYOND: list[tuple[str, int, Map, str]] = [
    ("absent-figure", 3, changed(absent_energy(), uj=0), "A figure where there is none: a missing meter is not 0."),
    ("unresolved-figure", 3, absent_energy(basis="unresolved", span_ns=5, uj=1), "A figure where it was not resolved."),
    ("absent-no-reason", 3, absent_energy(reason=None), "No figure, and no reason."),
    ("absent-sources", 3, absent_energy(sources=[source(uj=0)]), "No figure, but a source."),
    ("measured-no-figure", 3, small_energy(basis="measured", uj=None), "Measured, but no figure."),
    ("modelled-reason", 3, small_energy(reason="why"), "A figure with a reason for its absence."),
    ("figure-no-sources", 3, small_energy(uj=0, sources=[]), "A figure from nowhere."),
    ("sum-low", 3, energy(uj=122), "One less than the sum of the sources."),
    ("sum-high", 3, energy(uj=124), "One more than the sum of the sources."),
    (
        "domain-order-wrong", 3, with_sources(source(domain="gpu-0"), source(domain="cpu")),
        "Domains in another order.",
    ),
    ("domain-twice", 3, with_sources(source(uj=1), source(uj=2)), "One domain twice."),
    (
        "domain-order-utf16", 3, with_sources(source(domain="\U0001f642"), source(domain="\uffee")),
        "The order of UTF-16 units, which is not that of code points.",
    ),
    ("rule-alone", 4, small_energy(rule="equal/1"), "A rule without its window."),
    ("rule-missing", 4, energy(rule=None), "A window without its rule."),
    ("window-missing", 4, energy(window_uj=None), "Sharers without their window."),
    ("sharers-missing", 4, energy(peak_sharers=None), "A window without its sharers."),
    ("span-missing", 5, small_energy(span_ns=None), "A figure without a span."),
    ("span-missing-unresolved", 5, absent_energy(basis="unresolved"), "Unresolved without a span."),
    ("covered-more", 5, small_energy(covered_ns=1_250_000_001), "More covered than there was."),
    ("covered-no-span", 5, absent_energy(covered_ns=1), "Some covered of nothing."),
]  # fmt: skip


def cases() -> Group:
    group = Group("energy")
    for name, value, comment in GOOD:
        group.accept(name, "energy input.cbor", None, "energy.5", comment, {"input.cbor": item(value)})
    faults = [*((name, 2, value, comment) for name, value, comment in SHAPES), *BEYOND]
    for name, rule, value, comment in faults:
        files = {"input.cbor": item(value)}
        group.reject(name, "energy input.cbor", "schema", f"energy.{rule}", comment, files)
    for name, data, comment in (
        ("null", item(changed(absent_energy(), uj=Raw(b"\xf6"))), "A null where the field should be left out."),
        ("float", item(small_energy(uj=Raw(b"\xf9\x57\xb0"))), "123.0 as a float."),
        ("not-a-map", item([energy()]), "An array where a map has to be."),
        ("too-long", item(energy_of(PAYLOAD_BYTES + 1)), "32769 bytes."),
    ):
        group.reject(name, "energy input.cbor", "encoding", "energy.1", comment, {"input.cbor": data})
    return group
