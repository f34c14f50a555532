"""What a receipt, its outcome and its energy may say together."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3

from mesh.errors import SchemaError
from mesh.schema.energy import BASES, Energy
from mesh.schema.outcome import FINISHES, Fidelity, ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from tests.schema import handmade, samples

ABSENT: dict[str, Any] = {"basis": "absent", "sources": [], "reason": "no-meter"}
ALONE = {name: value for name, value in samples.energy().items() if name not in ("rule", "window_uj", "peak_sharers")}


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def test_receipt_id_is_the_digest_of_the_payload():
    fields = samples.receipt()
    receipt = Receipt.from_map(fields)
    assert receipt.id == blake3(handmade.item(fields), derive_key_context="mesh/1 receipt").digest()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"v": "mesh/2"}, "v"),
        ({"seq": 0}, "prev must be absent at seq 0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 63}, "tokens_out 64 exceeds max_tokens 63"),
        ({"outcome": {**samples.outcome(), "finish": "refused"}}, "refused serve has no output_commitment"),
        ({"outcome": without(samples.outcome(), "tokens_out")}, "although tokens_out is not"),
        ({"outcome": {**samples.outcome(), "finish": "done"}}, "finish"),
        ({"outcome": {**samples.outcome(), "counted_by": "nobody"}}, "counted_by"),
        ({"outcome": {**samples.outcome(), "counted_by": "none"}}, "although counted_by is none"),
        ({"outcome": {**samples.outcome(), "spec_accepted": 31}}, "spec_accepted exceeds"),
        ({"outcome": without(samples.outcome(), "spec_proposed")}, "spec_accepted exceeds"),
        ({"outcome": {**samples.outcome(), "tokens_in": 2**31}}, "tokens_in"),
        ({"engine": {**samples.engine(), "backend_id": "gguf"}}, "backend_id"),
        ({"engine": {**samples.engine(), "backend_id": "a/b/c/d/e/f/g"}}, "backend_id"),
        ({"engine": {**samples.engine(), "backend_id": "a/b/c/d/e/"}}, "backend_id"),
        ({"engine": {**samples.engine(), "backend_id": "a/b/c/d/e/f g"}}, "backend_id"),
        ({"engine": {**samples.engine(), "backend_id": "a/b/c/d/e/told:told:f"}}, "backend_id"),
        ({"engine": {**samples.engine(), "backend_id": "a/b/c/d/e/" + "f" * 65}}, "backend_id"),
        ({"engine": "gguf"}, "engine"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_receipt_refuses(changes, fault):
    with pytest.raises(SchemaError, match=fault):
        Receipt.from_map({**samples.receipt(), **changes})


def test_first_receipt_has_no_predecessor():
    first = Receipt.from_map({**without(samples.receipt(), "prev"), "seq": 0})
    assert first.prev is None
    with pytest.raises(SchemaError, match="prev must be absent at seq 0 and there at any other"):
        Receipt.from_map(without(samples.receipt(), "prev"))


def test_backend_parts_may_be_hearsay():
    told = "vllm/told:0.9.1/told:none/x86_64/told:H200/told:580.1"
    assert EngineBlock.from_map({**samples.engine(), "backend_id": told}).backend_id == told


@pytest.mark.parametrize("finish", FINISHES)
def test_every_ending_can_be_sealed(finish):
    fields = {**without(samples.receipt(), "output_commitment"), "energy": ABSENT}
    fields["outcome"] = {"finish": finish, "counted_by": "none", "reason": "so-it-was"}
    assert Receipt.from_map(fields).to_map() == fields


def test_a_counted_zero_is_there_and_an_unknown_count_is_not():
    counted = ServeOutcome.of(finish="cancelled", counted_by="gateway", tokens_out=0)
    unknown = ServeOutcome.of(finish="interrupted", counted_by="none")
    assert counted.to_map() == {"finish": "cancelled", "counted_by": "gateway", "tokens_out": 0}
    assert unknown.to_map() == {"finish": "interrupted", "counted_by": "none"}


def test_values_made_before_are_taken_as_they_are():
    block, outcome = EngineBlock.from_map(samples.engine()), ServeOutcome.from_map(samples.outcome())
    receipt = Receipt.of(**{**samples.receipt(), "engine": block, "outcome": outcome})
    assert receipt.engine is block
    assert receipt == Receipt.from_map(samples.receipt())
    with pytest.raises(SchemaError, match="engine"):
        Receipt.of(**{**samples.receipt(), "engine": outcome})


@pytest.mark.parametrize(
    ("bits", "rating"), [(1.5, 1), (4.5, 1), (4.99, 1), (5.0, 2), (8.5, 2), (8.99, 2), (9.0, 0), (16.0, 0), (32.0, 0)]
)
def test_fidelity_is_never_as_published_by_width(bits, rating):
    assert Fidelity.of_bits_per_weight(bits) == rating


@pytest.mark.parametrize("basis", BASES)
def test_a_figure_is_there_exactly_where_the_basis_has_one(basis):
    figured = {**ALONE, "basis": basis}
    bare = {**ABSENT, "basis": basis, "span_ns": 5}
    good, bad = (bare, figured) if basis in ("unresolved", "absent") else (figured, bare)
    assert Energy.from_map(good).to_map() == good
    with pytest.raises(SchemaError, match="uj must be"):
        Energy.from_map(bad)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({**ALONE, "uj": 122}, "not the sum"),
        ({**ALONE, "uj": 0, "sources": samples.energy()["sources"]}, "not the sum"),
        ({**ALONE, "reason": "why"}, "reason must be absent"),
        ({**ALONE, "basis": "guessed"}, "basis"),
        ({**ALONE, "sources": samples.energy()["sources"][::-1]}, "sorted by domain"),
        ({**ALONE, "sources": samples.energy()["sources"][:1] * 2, "uj": 200}, "each once"),
        ({**ALONE, "sources": [samples.energy()["sources"][0]] * 65, "uj": 6500}, "sources"),
        (without(ALONE, "span_ns", "covered_ns"), "span_ns must be there"),
        ({**ALONE, "covered_ns": ALONE["span_ns"] + 1}, "covered_ns exceeds"),
        ({**ABSENT, "covered_ns": 1}, "covered_ns exceeds"),
        (without(ABSENT, "reason"), "reason must be there"),
        ({**ABSENT, "reason": "No Meter"}, "reason"),
        ({**ABSENT, "uj": 0}, "uj must be absent"),
        ({**ABSENT, "sources": samples.energy()["sources"]}, "sources must be empty"),
        ({**ABSENT, "basis": "unresolved"}, "span_ns must be there"),
        (without(samples.energy(), "rule"), "come together"),
        (without(samples.energy(), "window_uj"), "come together"),
        (without(samples.energy(), "peak_sharers"), "come together"),
        (without(samples.energy(), "rule", "window_uj"), "come together"),
        ({**samples.energy(), "peak_sharers": 0}, "peak_sharers"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_energy_refuses(fields, fault):
    with pytest.raises(SchemaError, match=fault):
        Energy.from_map(fields)


def test_a_measured_nothing_is_zero_and_not_absent():
    source = {"domain": "gpu-0", "method": "nvml-total", "uj": 0, "resolution_ns": 1}
    energy = Energy.of(basis="measured", sources=[source], span_ns=1, uj=0)
    assert energy.to_map()["uj"] == 0
    assert "uj" not in Energy.from_map(ABSENT).to_map()
