"""Random values, random bytes, and bytes one mutation away from good ones."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import EncodingError, MeshError
from mesh.schema import canonical
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, seal, verify
from mesh.schema.limits import MAX_TOKENS, MAX_UINT
from mesh.schema.receipt import Receipt
from mesh.schema.request import ServeRequest
from tests.schema import handmade, samples
from tests.support.examples import examples

LIMIT = 1 << 20

unicode_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, -24, -25, -256, -257, -(2**32) - 1])
    | st.binary(max_size=300)
    | unicode_text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(unicode_text, inner, max_size=5), max_leaves=25
)

uints = st.integers(0, MAX_UINT)
counts = st.integers(0, MAX_TOKENS)
digests = st.binary(min_size=32, max_size=32)
ids = st.binary(min_size=16, max_size=16)
names = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029"), min_size=1, max_size=40
)
tokens = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)


def some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


engines = some(
    {
        "backend_id": st.sampled_from(["reference/1/none/none/none/none", "vllm/told:0.9/a/x86_64/told:gpu/told:1"]),
        "recipe_id": names,
        "fidelity": st.integers(0, 3),
        "deterministic": st.booleans(),
        "settings_digest": digests,
        "process": ids,
    },
    dict.fromkeys(
        (
            "weights_digest", "template_digest", "blueprint_id", "model_artifact_digest", "runtime_recipe_digest",
            "route_digest", "launch_digest",
        ),
        digests,
    ),
)  # fmt: skip


@st.composite
def energies(draw: st.DrawFn) -> dict[str, Any]:
    out: dict[str, Any] = {
        "basis": draw(st.sampled_from(["measured", "allocated", "modelled", "unresolved", "absent"]))
    }
    out["sources"] = []
    if out["basis"] in ("unresolved", "absent"):
        out["reason"] = draw(tokens)
    else:
        source = some({"method": names, "uj": st.integers(0, 2**40), "resolution_ns": uints}, {})
        domains = draw(st.lists(names, min_size=1, max_size=4, unique=True))
        out["sources"] = [{"domain": domain, **draw(source)} for domain in sorted(domains)]
        out["uj"] = sum(s["uj"] for s in out["sources"])
    if out["basis"] != "absent" or draw(st.booleans()):
        out["span_ns"] = draw(uints)
        if draw(st.booleans()):
            out["covered_ns"] = draw(st.integers(0, out["span_ns"]))
    if draw(st.booleans()):
        out |= {"rule": "equal/1", "window_uj": draw(uints), "peak_sharers": draw(st.integers(1, 2**31))}
    if draw(st.booleans()):
        out["epoch"] = draw(ids)
    return out


@st.composite
def receipts(draw: st.DrawFn) -> dict[str, Any]:
    max_tokens = draw(st.integers(1, MAX_TOKENS))
    outcome = draw(
        some(
            {"finish": st.sampled_from(["stop", "length", "cancelled", "engine-error", "interrupted"]),
             "counted_by": st.sampled_from(["engine", "gateway", "both"])},
            {"tokens_in": counts, "tokens_out": st.integers(0, max_tokens), "tokens_accepted": counts,
             "tokens_delivered": counts, "cache_hit_tokens": counts, "spec_proposed": counts, "decision": uints,
             "delivered_fidelity": st.integers(0, 3), "weights_digest": digests,
             "precision": st.sampled_from(["Q4_1", "bf16"]), "reason": tokens},
        )
    )  # fmt: skip
    out = draw(
        some(
            {"started_ns": uints, "ended_ns": uints, "serve_id": ids, "request_id": digests, "prompt_hash": digests},
            {"grant_id": digests},
        )
    )
    seq = draw(st.integers(0, 3) | uints)
    out |= {"v": "mesh/1", "steward": samples.KEY.public, "seq": seq, "max_tokens": max_tokens, "outcome": outcome}
    out |= {"engine": draw(engines), "energy": draw(energies())}
    if "delivered_fidelity" in outcome:
        outcome["delivered_fidelity"] = min(outcome["delivered_fidelity"], out["engine"]["fidelity"])
    if seq:
        out["prev"] = draw(digests)
    if "tokens_out" in outcome and draw(st.booleans()):
        out["output_commitment"] = draw(digests)
    return out


@given(values)
def test_encode_agrees_with_cbor2_in_canonical_mode(value):
    data = canonical.encode(value)
    assert data == cbor2.dumps(value, canonical=True)
    assert cbor2.loads(data) == value


@given(values)
def test_encode_agrees_with_bytes_written_by_hand(value):
    assert canonical.encode(value) == handmade.item(value)


@given(values)
def test_decode_gives_back_what_was_encoded(value):
    data = canonical.encode(value)
    decoded = canonical.decode(data, max_bytes=LIMIT)
    assert decoded == value
    assert canonical.encode(decoded) == data


@given(values, st.data())
def test_decode_refuses_every_other_spelling(value, data):
    others = handmade.spellings(value)
    if others:
        with pytest.raises(EncodingError):
            canonical.decode(data.draw(st.sampled_from(others)), max_bytes=LIMIT)


@given(st.binary(max_size=60))
def test_decode_accepts_only_what_encode_writes(data):
    try:
        value = canonical.decode(data, max_bytes=LIMIT)
    except EncodingError:
        return
    assert canonical.encode(value) == data


@given(receipts())
@settings(max_examples=examples(60))
def test_receipts_survive_sealing_and_verification(fields):
    value = Receipt.from_map(fields)
    assert value.to_map() == fields
    assert value.to_cbor() == handmade.item(fields)
    sealed = seal(value, samples.KEY)
    checked = verify(sealed.envelope, RECEIPT_TYPE, {samples.KEY.public})
    assert checked == sealed
    assert checked.value.to_map() == fields
    assert checked.id == value.id


RECEIPT = samples.sealed_receipt()
CHECKPOINT = seal(Checkpoint.from_map(samples.checkpoint()), samples.KEY)
TRUST = {samples.KEY.public}

DECODERS = {
    "canonical.decode": (RECEIPT.value.to_cbor(), lambda data: canonical.decode(data, max_bytes=LIMIT)),
    "Receipt.from_cbor": (RECEIPT.value.to_cbor(), lambda data: Receipt.from_cbor(data, max_bytes=LIMIT)),
    "ServeRequest.from_cbor": (
        ServeRequest.from_map(samples.request()).to_cbor(),
        lambda data: ServeRequest.from_cbor(data, max_bytes=LIMIT),
    ),
    "Disclosure.from_bytes": (Disclosure.from_map(samples.disclosure()).to_cbor(), Disclosure.from_bytes),
    "verify receipt": (RECEIPT.envelope, lambda data: verify(data, RECEIPT_TYPE, TRUST)),
    "verify checkpoint": (CHECKPOINT.envelope, lambda data: verify(data, CHECKPOINT_TYPE, TRUST)),
}


@st.composite
def mutated(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes with a few of them changed, cut out, doubled or replaced by heads that mean something."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = draw(st.integers(at, min(len(data), at + 40)))
        data[at:to] = draw(
            st.binary(max_size=10)
            | st.just(bytes(data[at:to]) * 2)
            | st.sampled_from(
                [bytes([b]) for b in b"\x00\x18\x1b\x1f\x3b\x5b\x5f\x7f\x80\x9b\x9f\xa0\xbf\xc2\xd8\xf4\xf6\xf9"]
            )
        )
    return bytes(data)


@pytest.mark.hypothesis
@pytest.mark.parametrize(("good", "decoder"), DECODERS.values(), ids=list(DECODERS))
def test_decoders_raise_nothing_but_mesh_errors(good, decoder):
    decoder(good)

    @given(st.binary(max_size=200) | mutated(good))
    @settings(max_examples=examples(300))
    def run(data: bytes) -> None:
        try:
            value = decoder(data)
        except MeshError as e:
            assert "\n" not in str(e)  # noqa: PT017 - most inputs raise, some are good by chance
            return
        if isinstance(value, Receipt | ServeRequest | Disclosure):
            assert value.to_cbor() == data

    run()


@given(
    st.recursive(st.none() | scalars | st.floats(), lambda x: st.lists(x) | st.dictionaries(scalars, x), max_leaves=9)
)
def test_from_map_raises_nothing_but_mesh_errors(anything):
    good = samples.receipt()
    for fields in (anything, {**good, "energy": anything}, {**good, "v": anything}, {**good, "seq": anything}):
        try:
            Receipt.from_map(fields)
        except MeshError as e:
            assert "\n" not in str(e)  # noqa: PT017
