"""What was asked: sampling that has one spelling, and digests that address a prompt without holding it."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3

from mesh.errors import SchemaError
from mesh.schema.ids import ContentId
from mesh.schema.request import (
    MILLION,
    Sampling,
    ServeRequest,
    pack_ids,
    payload_digest,
    prompt_hash_of_ids,
    prompt_hash_of_text,
    unpack_ids,
)
from tests.schema import handmade, samples

LIMIT = 1 << 20


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"temperature_u": 0}, "seed must be 0"),
        ({"temperature_u": -1}, "temperature_u"),
        ({"temperature_u": 100 * MILLION + 1}, "temperature_u"),
        ({"seed": 2**32 - 1}, "seed"),
        ({"seed": -1}, "seed"),
        ({"top_p_u": MILLION + 1}, "top_p_u"),
        ({"min_p_u": MILLION + 1}, "min_p_u"),
        ({"top_k": -1}, "top_k"),
        ({"repetition_penalty_u": 0}, "repetition_penalty_u"),
        ({"frequency_penalty_u": -1000 * MILLION - 1}, "frequency_penalty_u"),
        ({"logit_bias": [[7, 1], [5, 1]]}, "sorted by id"),
        ({"logit_bias": [[5, 1], [5, 2]]}, "each id once"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias"),
        ({"logit_bias": [[2**32, 1]]}, "logit_bias"),
        ({"logit_bias": [[5, 1000 * MILLION + 1]]}, "beyond 1000"),
        ({"logit_bias": [[5]]}, "logit_bias"),
        ({"logit_bias": [[5, 1, 2]]}, "logit_bias"),
        ({"logit_bias": [[5, True]]}, "logit_bias"),
        ({"logit_bias": [[5, 0.5]]}, "logit_bias"),
        ({"logit_bias": {5: 1}}, "logit_bias"),
        ({"logit_bias": [[i, 1] for i in range(1025)]}, "logit_bias"),
        ({"stop_ids": [7, 2]}, "stop_ids must be sorted"),
        ({"stop_ids": [2, 2]}, "each id once"),
        ({"stop_ids": [2**32]}, "stop_ids"),
        ({"stop_ids": list(range(257))}, "stop_ids"),
        ({"stop": ["a", "a"]}, "string twice"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"stop": ["é" * 513]}, "over 1024 bytes"),
        ({"stop": ["\ud800"]}, "stop|surrogate"),
        ({"stop": [str(i) for i in range(17)]}, "stop"),
        ({"stop": "END"}, "stop"),
    ],
    ids=str,
)
def test_sampling_has_one_spelling(changes, fault):
    with pytest.raises(SchemaError, match=fault):
        Sampling.from_map({**samples.sampling(), **changes})


def test_sampling_takes_every_bound():
    for changes in (
        {"temperature_u": 100 * MILLION, "seed": 2**32 - 2, "top_p_u": 0, "min_p_u": MILLION, "top_k": 2**32 - 1},
        {"logit_bias": [[i, -1000 * MILLION] for i in range(1024)], "stop_ids": list(range(256))},
        {"stop": ["x" * 1023 + str(i % 10) if i < 10 else "é" * 511 + "yz"[i % 2] for i in range(12)]},
        {"stop": ["\n", "\0", "\u2028"], "stop_ids": [0, 2**32 - 1], "temperature_u": 1, "seed": 0},
    ):
        value = Sampling.from_map({**samples.sampling(), **changes})
        assert Sampling.from_cbor(value.to_cbor(), max_bytes=LIMIT) == value


def test_greedy_changes_nothing_but_the_choice():
    greedy = Sampling.greedy()
    assert (greedy.temperature_u, greedy.seed, greedy.top_p_u, greedy.repetition_penalty_u) == (0, 0, MILLION, MILLION)
    assert greedy.to_cbor() == handmade.item(greedy.to_map())
    assert len(greedy.to_map()) == 12


def test_request_id_commits_to_every_field():
    base = samples.request()
    changed = {
        "prompt_hash": samples.digest(99), "prompt_tokens": 430, "max_tokens": 255, "fidelity_floor": 2,
        "sampling": {**base["sampling"], "top_k": 41}, "joule_ceiling_uj": 1, "model": "other",
        "decision": samples.digest(98), "nonce": samples.digest(97),
    }  # fmt: skip
    assert changed.keys() == ServeRequest.required().keys()
    ids = {ServeRequest.from_map(base).id}
    ids |= {ServeRequest.from_map({**base, name: value}).id for name, value in changed.items()}
    ids |= {
        ServeRequest.from_map({k: v for k, v in base.items() if k != name}).id
        for name in ("joule_ceiling_uj", "model", "decision", "nonce")
    }
    assert len(ids) == 1 + len(changed) + 4
    assert ServeRequest.from_map(base).id == ContentId.of("request", base)


@pytest.mark.parametrize(
    "changes", [{"max_tokens": 0}, {"max_tokens": 2**31}, {"prompt_tokens": 2**31}, {"fidelity_floor": 4}], ids=str
)
def test_request_bounds(changes):
    with pytest.raises(SchemaError, match=next(iter(changes))):
        ServeRequest.from_map({**samples.request(), **changes})


def test_prompt_hash_keeps_text_and_ids_apart():
    assert prompt_hash_of_text("hé", None) == blake3(b"\x00h\xc3\xa9").digest()
    assert prompt_hash_of_ids([1, 2**32 - 1], None) == blake3(b"\x01" + struct.pack("<2I", 1, 2**32 - 1)).digest()
    assert prompt_hash_of_text("", None) != prompt_hash_of_ids([], None)


def test_prompt_hash_is_keyed_by_the_nonce():
    nonce = samples.digest(9)
    assert prompt_hash_of_text("yes", nonce) == blake3(b"\x00yes", key=nonce).digest()
    assert prompt_hash_of_ids([7], nonce) == blake3(b"\x01\x07\0\0\0", key=nonce).digest()
    assert prompt_hash_of_text("yes", nonce) != prompt_hash_of_text("yes", None)
    for wrong in (b"", bytes(31), bytes(33)):
        with pytest.raises(SchemaError, match="nonce"):
            prompt_hash_of_text("yes", wrong)


def test_prompt_hash_refuses_half_a_surrogate_pair():
    with pytest.raises(SchemaError, match="unicode"):
        prompt_hash_of_text("\ud800", None)


def test_payload_digest_is_over_packed_ids():
    assert payload_digest([1, 258]) == blake3(b"\x01\0\0\0\x02\x01\0\0", derive_key_context="mesh/1 payload").digest()


def test_ids_are_packed_little_endian():
    ids = [0, 1, 255, 256, 2**31, 2**32 - 1]
    assert pack_ids(ids) == struct.pack("<6I", *ids)
    assert unpack_ids(pack_ids(ids)) == ids
    assert pack_ids(()) == b""
    assert unpack_ids(b"") == []


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.0], ["1"], "12", [None], [10**30]], ids=repr)
def test_ids_are_32_bits(ids):
    with pytest.raises(SchemaError, match="token ids"):
        pack_ids(ids)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_packed_ids_are_whole(size):
    with pytest.raises(SchemaError, match="not a multiple of 4"):
        unpack_ids(bytes(size))
