from __future__ import annotations

from typing import Any

import pytest

from mesh.cli.words import energy_words, finish_words, joules, per_token, receipt_words, tokens_words, utc
from mesh.schema.energy import Energy
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import Receipt
from tests.schema import samples

SOURCE = {"domain": "cpu", "method": "cpu-time@10W", "uj": 1_234_567, "resolution_ns": 10_000_000}


@pytest.mark.parametrize(
    ("uj", "words"),
    [(0, "0.000000 J"), (1, "0.000001 J"), (1_500_000, "1.500000 J"), (2**62, "4611686018427.387904 J")],
)
def test_joules_are_exact(uj: int, words: str) -> None:
    assert joules(uj) == words


def test_joules_per_token_round_to_the_nearest_microjoule() -> None:
    assert per_token(10, 3) == "0.000003"
    assert per_token(11, 3) == "0.000004"
    assert per_token(3_000_000, 2) == "1.500000"


def test_energy_says_its_basis_and_its_source() -> None:
    energy = Energy.of(basis="modelled", sources=[SOURCE], span_ns=10**9, uj=1_234_567)
    words = energy_words(energy, 8)
    assert words == ("1.234567 J modelled (an estimate, not a measurement), 0.154321 J per token, cpu by cpu-time@10W")
    assert "per token" not in energy_words(energy, 0)
    assert "per token" not in energy_words(energy, None)


def test_energy_in_company_says_so() -> None:
    shared: dict[str, Any] = {"rule": "equal/1", "window_uj": 3_000_000, "peak_sharers": 2}
    energy = Energy.of(basis="allocated", sources=[SOURCE], span_ns=10**9, uj=1_234_567, **shared)
    assert energy_words(energy, 8).endswith("shared by equal/1, at most 2 at once")


def test_energy_without_a_figure_gives_none() -> None:
    energy = Energy.of(basis="absent", sources=[], span_ns=1, reason="no-meter")
    assert energy_words(energy, 8) == "absent (no figure): no-meter"


def test_counts_that_nobody_took_are_not_told() -> None:
    assert tokens_words(ServeOutcome.of(finish="interrupted", counted_by="none"), 8) == "not counted"
    outcome = ServeOutcome.of(finish="stop", counted_by="both", tokens_in=2, tokens_out=0)
    assert tokens_words(outcome, 8) == "2 in, 0 out of at most 8 (counted by both)"


def test_finish_gives_its_reason() -> None:
    outcome = ServeOutcome.of(finish="engine-error", counted_by="none", reason="engine-failed")
    assert finish_words(outcome) == "engine-error: the engine failed (engine-failed)"


def test_times_reach_to_the_end_of_the_format() -> None:
    assert utc(0) == "1970-01-01 00:00:00 UTC"
    assert utc(2**63 - 1) == "2262-04-11 23:47:16 UTC"


def test_blueprint_is_told_as_its_commands_spell_it_and_only_where_there_was_one() -> None:
    fields = samples.receipt()
    receipt = Receipt.from_map(fields)
    told = receipt_words(receipt, receipt.id).splitlines()
    assert f"blueprint  sha256:{samples.digest(13).hex()}" in told
    del fields["engine"]["blueprint_id"]
    receipt = Receipt.from_map(fields)
    assert "blueprint" not in receipt_words(receipt, receipt.id)
