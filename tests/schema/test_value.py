"""What holds for every value: closed, strict, never null, and one message for one fault."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mesh.errors import EncodingError, SchemaError
from mesh.schema import canonical
from mesh.schema.checkpoint import Checkpoint, DomainTotals
from mesh.schema.disclosure import Disclosure
from mesh.schema.energy import Energy, EnergySource
from mesh.schema.limits import MAX_UINT
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.schema.request import Sampling, ServeRequest
from mesh.schema.value import Value
from tests.schema import handmade, samples

LIMIT = 1 << 20

KINDS: dict[type[Value], dict[str, Any]] = {
    Sampling: samples.sampling(),
    ServeRequest: samples.request(),
    EngineBlock: samples.engine(),
    ServeOutcome: samples.outcome(),
    EnergySource: samples.energy()["sources"][0],
    Energy: samples.energy(),
    Receipt: samples.receipt(),
    DomainTotals: samples.checkpoint()["domains"][0],
    Checkpoint: samples.checkpoint(),
    Disclosure: samples.disclosure(),
}
FIELDS = [(kind, name) for kind in KINDS for name in kind.required()]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
every_field = pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{k.__name__}.{n}" for k, n in FIELDS])


def fields(kind: type[Value], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(KINDS[kind]), **changes}


@every_kind
def test_samples_fill_every_field(kind):
    # a receipt's figure has no reason: the one field that another excludes
    missing = set(kind.required()) - set(fields(kind))
    assert missing == ({"reason"} if kind is Energy else set())


@every_kind
def test_values_go_to_bytes_and_back(kind):
    value = kind.from_map(fields(kind))
    data = value.to_cbor()
    assert data == handmade.item(fields(kind))
    assert value.to_map() == fields(kind)
    again = kind.from_cbor(data, max_bytes=LIMIT)
    assert again == value
    assert again.to_cbor() == data


@every_kind
def test_maps_are_in_canonical_order_at_every_depth(kind):
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            assert list(value) == sorted(value, key=canonical.key_order)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    out = kind.from_map(fields(kind)).to_map()
    if kind is Disclosure:
        del out["settings"]  # an open map: sorted when it is encoded
    walk(out)


@every_kind
def test_absent_fields_are_left_out(kind):
    required = {n: v for n, v in fields(kind).items() if kind.required()[n]}
    required |= {Receipt: {"seq": 0}, Checkpoint: {"count": 0, "domains": []}, Energy: {}}.get(kind, {})
    if kind is Energy:
        required = {"basis": "absent", "sources": [], "reason": "no-meter"}
    value = kind.from_map(required)
    assert value.to_map() == required
    assert value.to_cbor() == handmade.item(required)
    for name in set(kind.required()) - set(required):
        assert getattr(value, name) is None


@every_kind
def test_of_drops_none(kind):
    optional = {name for name in kind.required() if not kind.required()[name]}
    given = fields(kind)
    for name in optional - set(given):
        assert kind.of(**given, **{name: None}) == kind.from_map(given)


@every_field
def test_null_is_refused(kind, name):
    if kind.required()[name]:
        with pytest.raises(SchemaError, match=name):
            kind.from_map(fields(kind, **{name: None}))
    data = handmade.item(fields(kind, **{name: "PLACEHOLDER"})).replace(handmade.text("PLACEHOLDER"), b"\xf6")
    with pytest.raises(EncodingError, match="null"):
        kind.from_cbor(data, max_bytes=LIMIT)


@every_field
def test_missing_fields_are_named(kind, name):
    given = fields(kind)
    given.pop(name, None)
    if kind.required()[name]:
        with pytest.raises(SchemaError, match=f"{name}: missing"):
            kind.from_map(given)


@every_kind
def test_unknown_fields_are_refused(kind):
    with pytest.raises(SchemaError, match="note: unknown field"):
        kind.from_map(fields(kind, note=1))
    with pytest.raises(SchemaError, match="unknown field"):
        kind.from_cbor(handmade.item(fields(kind, zz=1)), max_bytes=LIMIT)
    with pytest.raises(SchemaError):
        kind.from_map({**fields(kind), 1: 2})


@every_kind
@pytest.mark.parametrize("other", [None, 1, "a", b"a", [], True, 1.5, [1], ()], ids=repr)
def test_a_value_is_a_map(kind, other):
    with pytest.raises(SchemaError):
        kind.from_map(other)


INTS = [(k, n) for k, n in FIELDS if type(KINDS[k].get(n)) is int]
WRONG = [True, False, 1.0, 0.0, "1", b"\x01", [1], {}, -(2**63), 2**63, 2**64 - 1, 10**30, float("nan")]


@pytest.mark.parametrize(("kind", "name"), INTS, ids=[f"{k.__name__}.{n}" for k, n in INTS])
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_integers_take_integers_in_range_alone(kind, name, wrong):
    with pytest.raises(SchemaError, match=name):
        kind.from_map(fields(kind, **{name: wrong}))


BYTES = [(k, n) for k, n in FIELDS if type(KINDS[k].get(n)) is bytes and (k, n) not in
         [(Disclosure, "payload"), (Disclosure, "output")]]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), BYTES, ids=[f"{k.__name__}.{n}" for k, n in BYTES])
def test_byte_strings_have_one_length(kind, name):
    good = KINDS[kind][name]
    for wrong in (b"", good[:-1], good + b"\0", good * 2, good.hex(), list(good), 0, True):
        with pytest.raises(SchemaError, match=name):
            kind.from_map(fields(kind, **{name: wrong}))


TEXTS = [(k, n) for k, n in FIELDS if type(KINDS[k].get(n)) is str and n != "prompt"] + [(Energy, "reason")]


@pytest.mark.parametrize(("kind", "name"), TEXTS, ids=[f"{k.__name__}.{n}" for k, n in TEXTS])
@pytest.mark.parametrize(
    "wrong",
    ["", "\n", "a\nb", "a\n", "a\0", "a\x1b[31m", "a\x7f", "a\x85", "a\u2028", "\ud800", "x" * 257, b"a", 1],
    ids=ascii,
)
def test_text_is_one_line_without_control_characters(kind, name, wrong):
    changes: dict[str, Any] = {name: wrong}
    if (kind, name) == (Energy, "reason"):
        changes |= {"basis": "absent", "sources": [], "uj": None}
    given = {k: v for k, v in fields(kind, **changes).items() if v is not None}
    with pytest.raises(SchemaError, match=rf"{name}|not valid unicode"):
        kind.from_map(given)


BOOLS = [(EngineBlock, "deterministic"), (Sampling, "ignore_eos")]


@pytest.mark.parametrize(("kind", "name"), BOOLS, ids=[n for _, n in BOOLS])
@pytest.mark.parametrize("wrong", [0, 1, "true", None, b"\x01", 1.0], ids=repr)
def test_booleans_take_booleans_alone(kind, name, wrong):
    with pytest.raises(SchemaError, match=name):
        kind.from_map(fields(kind, **{name: wrong}))


@pytest.mark.parametrize("value", [0, 2**53, 2**53 + 1, MAX_UINT])
def test_large_integers_keep_every_digit(value):
    receipt = Receipt.from_map({**samples.receipt(), "started_ns": value})
    assert Receipt.from_cbor(receipt.to_cbor(), max_bytes=LIMIT).started_ns == value


@every_kind
def test_values_are_frozen(kind):
    value = kind.from_map(fields(kind))
    name = next(iter(kind.required()))
    with pytest.raises(AttributeError, match="immutable"):
        setattr(value, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(value, name)


def test_the_first_fault_is_told():
    with pytest.raises(SchemaError, match=r"^energy source: uj: missing$"):
        EnergySource.from_map({})
    with pytest.raises(SchemaError, match=r"^receipt: engine\.fidelity: "):
        Receipt.from_map({**samples.receipt(), "engine": {**samples.engine(), "fidelity": 4}})


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "\u202e", "x" * 5000, "\u2028"], ids=ascii)
def test_a_strangers_field_name_cannot_write_to_a_terminal(name):
    with pytest.raises(SchemaError) as caught:
        ServeOutcome.from_map({**samples.outcome(), name: 1})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_faults_do_not_repeat_what_was_given():
    with pytest.raises(SchemaError) as caught:
        Disclosure.from_map({**samples.disclosure(), "prompt": ["a secret question"]})
    assert "secret" not in str(caught.value)
    with pytest.raises(SchemaError) as caught:
        ServeRequest.from_map({**samples.request(), "model": "a secret question\n"})
    assert "secret" not in str(caught.value)


def test_a_changed_value_still_has_to_hold_together():
    source = EnergySource.of(domain="cpu", method="m", uj=0, resolution_ns=1)
    energy = Energy.of(basis="measured", sources=[source], span_ns=1, uj=0)
    assert energy.changed(span_ns=2) == Energy.of(basis="measured", sources=[source], span_ns=2, uj=0)
    with pytest.raises(ValueError, match="not the sum"):
        energy.changed(uj=1)


def test_a_value_beside_another_differs_by_that_field_alone():
    source = EnergySource.of(domain="cpu", method="m", uj=3, resolution_ns=1)
    assert source.beside("uj", 4) == EnergySource.of(domain="cpu", method="m", uj=4, resolution_ns=1)
    assert source.uj == 3
    with pytest.raises(AttributeError):
        source.beside("watts", 4)


def test_an_energy_that_lasted_longer_still_covers_no_more_than_its_span():
    source = EnergySource.of(domain="cpu", method="m", uj=3, resolution_ns=1)
    energy = Energy.of(basis="allocated", sources=[source], span_ns=9, uj=3, covered_ns=5)
    assert energy.lasting(7) == Energy.of(basis="allocated", sources=[source], span_ns=7, uj=3, covered_ns=5)
    with pytest.raises(ValueError, match="covered_ns exceeds span_ns"):
        energy.lasting(4)
    whole = Energy.of(basis="allocated", sources=[source], span_ns=9, uj=3)
    assert whole.lasting(4) == Energy.of(basis="allocated", sources=[source], span_ns=4, uj=3)
    assert whole.span_ns == 9
