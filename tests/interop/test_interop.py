"""Our bytes under other people's libraries, and theirs under ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from mesh.errors import HeaderError, MeshError, SignatureError
from mesh.schema import canonical
from mesh.schema.envelope import RECEIPT_TYPE, seal, verify
from mesh.schema.ids import steward_text
from mesh.schema.receipt import Receipt
from tests.schema import samples
from tests.schema.test_properties import receipts, values
from tests.support.examples import examples

KEY, OTHER = samples.KEY, samples.OTHER_KEY
TRUST = {KEY.public}
PAYLOAD = Receipt.from_map(samples.receipt()).to_cbor()
once = settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])


def cose_key(key: Any = KEY, *, alg: int = -19, secret: bool = True) -> dict[str, Any]:
    fields = {"alg": alg, "kid": KEY.public.hex(), "x": key.public.hex()}
    return fields | ({"d": key.seed.hex()} if secret else {})


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {"map": [[key, shown(item)] for key, item in value.items()]}
    return value


def header(**changes: Any) -> list[list[Any]]:
    """The protected header as we want it, entries by `h<label>` changed or left out by None."""
    entries: dict[str, Any] = {
        "h1": -19, "h3": RECEIPT_TYPE, "h4": KEY.public,
        "h15": {1: steward_text(KEY.public), 2: samples.engine()["recipe_id"]}, **changes,
    }  # fmt: skip
    return [[int(name[1:]), shown(value)] for name, value in entries.items() if value is not None]


@given(fields=receipts())
@once
def test_cwt_verifies_our_envelopes(peer, fields):
    receipt = Receipt.from_map(fields)
    sealed = seal(receipt, KEY)
    told = peer("verify", envelope=sealed.envelope.hex(), key=cose_key(secret=False))
    assert told == {"payload": receipt.to_cbor().hex(), "unprotected": 0, "subject": receipt.engine.recipe_id}
    assert "error" in peer("verify", envelope=sealed.envelope.hex(), key=cose_key(OTHER, secret=False))


def test_another_language_verifies_our_envelopes_with_a_foreign_cbor(foreign):
    sealed = [samples.sealed_receipt(seq=seq) for seq in range(1, 50)]
    told = foreign(KEY.public, [one.envelope for one in sealed])
    assert told == [
        {"holds": True, "algorithm": -19, "subject": "smollm2-135m", "seq": seq, "recipe": "smollm2-135m"}
        for seq in range(1, 50)
    ]
    assert [one["holds"] for one in foreign(OTHER.public, [sealed[0].envelope])] == [False]


def test_envelope_made_by_cwt_is_ours_byte_for_byte(peer):
    made = peer("sign", payload=PAYLOAD.hex(), key=cose_key(), protected=header(), unprotected=[])
    envelope = bytes.fromhex(made["envelope"])
    assert envelope == seal(Receipt.from_map(samples.receipt()), KEY).envelope
    assert verify(envelope, RECEIPT_TYPE, TRUST).value.seq == samples.receipt()["seq"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"protected": header(h3="application/cose")}, HeaderError),
        ({"protected": header(h15=None)}, HeaderError),
        ({"protected": header(h15={1: steward_text(OTHER.public), 2: "smollm2-135m"})}, HeaderError),
        ({"protected": header(h16="application/receipt")}, HeaderError),
        ({"protected": header(h4=None), "unprotected": [[4, shown(KEY.public)]]}, HeaderError),
        ({"unprotected": [[16, RECEIPT_TYPE]]}, HeaderError),
        ({"protected": header(h1=-8), "key": cose_key(alg=-8)}, HeaderError),
        ({"key": cose_key(OTHER)}, SignatureError),
    ],
    ids=["type", "no-claims", "issuer", "one-more", "unprotected-kid", "unprotected-type", "eddsa", "other-key"],
)
def test_envelope_made_otherwise_by_cwt_is_judged_by_its_first_fault(peer, changes, error):
    asked = {"payload": PAYLOAD.hex(), "key": cose_key(), "protected": header(), "unprotected": [], **changes}
    made = peer("sign", **asked)
    with pytest.raises(MeshError) as caught:
        verify(bytes.fromhex(made["envelope"]), RECEIPT_TYPE, TRUST)
    assert type(caught.value) is error, caught.value


@given(value=values)
@once
def test_canonical_bytes_are_an_independent_encoders(peer, value):
    assert peer("encode", value=shown(value)) == {"cbor": canonical.encode(value).hex()}
