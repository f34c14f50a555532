"""The published CDDL and the models say the same: field by field, and about the same bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cddl_verifier import Validator
from hypothesis import given, settings

from mesh.errors import MeshError
from mesh.grant.block import GrantBlock
from mesh.grant.caveats import CAVEATS
from mesh.grant.chain import Grant, verify_grant
from mesh.grant.frame import Frame
from mesh.grant.making import close
from mesh.schema import limits
from mesh.schema.checkpoint import Checkpoint, DomainTotals
from mesh.schema.disclosure import Disclosure
from mesh.schema.energy import BASES, Energy, EnergySource
from mesh.schema.ids import KINDS, RESERVED_KINDS
from mesh.schema.launch import Launch, LaunchRank
from mesh.schema.outcome import FINISHES, ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.schema.request import Sampling, ServeRequest
from mesh.schema.value import Value
from tests.grant import chains as grants
from tests.schema import handmade, samples
from tests.schema.envelopes import envelope, protected
from tests.schema.test_properties import receipts
from tests.support.examples import examples

FILE = Path(__file__).parents[2] / "vectors" / "mesh.cddl"
TEXT = FILE.read_text()
VALIDATOR = Validator(FILE)

RULES: dict[str, type[Value]] = {
    "receipt": Receipt,
    "engine-block": EngineBlock,
    "serve-outcome": ServeOutcome,
    "energy": Energy,
    "energy-source": EnergySource,
    "serve-request": ServeRequest,
    "sampling": Sampling,
    "checkpoint": Checkpoint,
    "domain-totals": DomainTotals,
    "disclosure": Disclosure,
    "grant": Grant,
    "grant-block": GrantBlock,
    "frame": Frame,
    "launch": Launch,
    "launch-rank": LaunchRank,
}
WHOLE = {
    "receipt": samples.receipt(),
    "serve-request": samples.request(),
    "checkpoint": samples.checkpoint(),
    "disclosure": samples.disclosure(),
    "grant-block": samples.grant_block(),
    "frame": samples.frame(),
    "launch": samples.launch(),
}


def agrees(rule: str, data: bytes) -> bool:
    return bool(VALIDATOR.validate(data, root_type=rule).valid)


def fields_of(rule: str) -> dict[str, bool]:
    """Each field of a map rule, and whether it is optional."""
    found = re.search(rf"^{rule} = \{{\n(.*?)^\}}", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"{rule} is not in the file"
    return {name: bool(mark) for mark, name in re.findall(r"^  (\? )?([a-z_0-9]+): ", found[1], re.MULTILINE)}


@pytest.mark.parametrize("rule", RULES)
def test_fields_are_those_of_the_model(rule):
    model = RULES[rule]
    assert fields_of(rule) == {name: not required for name, required in model.required().items()}


def test_every_model_has_a_rule():
    assert set(RULES.values()) == set(Value.__subclasses__())


def test_caveats_are_those_that_are_known():
    found = re.search(r"^caveats = \{\n(.*?)^\}", TEXT, re.MULTILINE | re.DOTALL)
    assert found
    assert set(re.findall(r'^  \? "([a-z-]+)": ', found[1], re.MULTILINE)) == set(CAVEATS)
    assert set(samples.caveats()) >= set(CAVEATS)


def test_closed_lists_are_those_of_the_models():
    for values in (FINISHES, BASES):
        assert " / ".join(f'"{value}"' for value in values) in TEXT
    for kind in KINDS:
        assert f'"mesh/1 {kind}"' in TEXT or re.search(rf"reserved for .*\b{kind}\b", TEXT), kind
    for kind in RESERVED_KINDS:
        assert f'"mesh/1 {kind}"' in TEXT


def test_limits_are_those_of_the_package():
    for number in (
        limits.MAX_ENVELOPE_BYTES, limits.MAX_HEADER_BYTES, limits.MAX_PAYLOAD_BYTES, limits.MAX_SETTINGS_BYTES,
        limits.MAX_DISCLOSURE_BYTES, limits.MAX_DEPTH, limits.MAX_UINT, limits.MAX_TOKEN_ID, limits.MAX_TOKENS,
        limits.MAX_SEED, limits.MAX_STOP_STRINGS, limits.MAX_STOP_STRING_BYTES, limits.MAX_STOP_IDS,
        limits.MAX_LOGIT_BIASES, limits.MAX_NAME_CHARS, limits.MAX_SOURCES, limits.MAX_RANKS, limits.MAX_GRANT_BYTES,
        limits.MAX_GRANT_BLOCKS, limits.MAX_CAVEAT_ITEMS,
    ):  # fmt: skip
        assert re.search(rf"\b{number}\b", TEXT), number


@pytest.mark.parametrize("rule", WHOLE)
def test_samples_fit(rule):
    result = VALIDATOR.validate(handmade.item(WHOLE[rule]), root_type=rule)
    assert result.valid, result.diagnostics


def test_envelopes_fit():
    assert agrees("envelope", envelope())
    assert agrees("envelope", envelope(unprotected=handmade.item({394: [b"a proof"]})))
    for data in (
        envelope(protected(alg=handmade.integer(-8))),
        envelope(protected(kid=handmade.bstr(bytes(31)))),
        envelope(protected(sub=None)),
        envelope(protected(type=handmade.text("application/cbor"))),
        envelope(unprotected=handmade.item({1: -19})),
        envelope(unprotected=handmade.item({394: []})),
        envelope(signed=bytes(63)),
        envelope()[1:],
    ):
        assert not agrees("envelope", data)


def test_grants_fit():
    grant = grants.grant({"max-tokens": 5}, {"later": [1]})
    chain = verify_grant(grant, grants.TRUST)
    assert agrees("grant", grant)
    assert agrees("grant", close(chain))
    assert all(agrees("grant-envelope", block.envelope) for block in chain.blocks)
    assert not agrees("envelope", chain.blocks[0].envelope)
    assert not agrees("grant-envelope", envelope())
    blocks, ends = [block.envelope for block in chain.blocks], {"secret": chain.secret}
    for wrong in ({"blocks": []}, {"blocks": blocks * 5}, {"blocks": [1]}, {"secret": bytes(31)}, {"note": 1}):
        assert not agrees("grant", handmade.item({"blocks": blocks, **ends, **wrong}))
    assert not agrees("grant-envelope", chain.blocks[0].envelope[:-65] + handmade.bstr(bytes(63)))


@given(receipts())
@settings(max_examples=examples(25))
def test_random_receipts_fit(fields):
    result = VALIDATOR.validate(Receipt.from_map(fields).to_cbor(), root_type="receipt")
    assert result.valid, result.diagnostics


def _one_fault_each(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields with one of them, at any depth, dropped, added or of another kind."""
    out = [{**fields, "note": 1}]
    for name, value in fields.items():
        out.append({k: v for k, v in fields.items() if k != name})
        out += [
            {**fields, name: wrong} for wrong in (-(2**63), 2**63, 2**64 - 1, True, b"\x00", [], {}, "\n", "", [[]])
        ]
        if isinstance(value, bytes | str):
            out.append({**fields, name: value + value[:1]})
        elif isinstance(value, dict):
            out += [{**fields, name: inner} for inner in _one_fault_each(value)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            out += [{**fields, name: [inner, *value[1:]]} for inner in _one_fault_each(value[0])]
    return out


# What a schema of single fields cannot see.
BEYOND_CDDL = re.compile(
    "must (not )?be (absent|there|empty|sorted|0)|exceeds|not the sum|come together|although|has no output|each once"
    "|twice|not a multiple of 4|in the order of"
)


@pytest.mark.parametrize("rule", ["receipt", "serve-request", "checkpoint", "grant-block", "frame"])
def test_cddl_and_models_refuse_the_same(rule):
    model, both, beyond = RULES[rule], 0, 0
    for fields in _one_fault_each(WHOLE[rule]):
        data, fault = handmade.item(fields), None
        try:
            model.from_cbor(data, max_bytes=1 << 20)
        except MeshError as e:
            fault = str(e)
        if fault is None or not BEYOND_CDDL.search(fault):
            assert agrees(rule, data) == (fault is None), (fault, fields)
            both += 1
        else:
            beyond += 1
    assert both > 50
    assert beyond < both
