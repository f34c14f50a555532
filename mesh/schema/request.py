"""What was asked: the request, its sampling, and the digests that address a prompt without holding it."""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Self

from blake3 import blake3
from msgspec import Meta

from mesh.errors import SchemaError
from mesh.schema import canonical
from mesh.schema.ids import ContentId
from mesh.schema.limits import (
    MAX_LOGIT_BIASES,
    MAX_SEED,
    MAX_STOP_IDS,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_TOKEN_ID,
)
from mesh.schema.value import Digest, FidelityLevel, MaxTokens, Name, TokenCount, TokenId, UInt, Value

MILLION = 1_000_000

_Millionths = Annotated[int, Meta(ge=0, le=MILLION)]
_SignedMillionths = Annotated[int, Meta(ge=-1000 * MILLION, le=1000 * MILLION)]
_StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_BYTES)]


class Sampling(Value):
    """Everything that changes which ids come out, every field present. `_u` are millionths.

    `temperature_u` 0 is greedy and `seed` is then 0. `top_k` 0 means no limit, `top_p_u` 1000000 and `min_p_u` 0 no
    cut, `repetition_penalty_u` 1000000 none. `logit_bias` is [id, bias_u] pairs sorted by id. `stop` strings are
    matched in the output's text, `stop_ids` in its ids; with `ignore_eos` the model's own end tokens do not end it.
    """

    temperature_u: Annotated[int, Meta(ge=0, le=100 * MILLION)]
    top_p_u: _Millionths
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
    min_p_u: _Millionths
    frequency_penalty_u: _SignedMillionths
    presence_penalty_u: _SignedMillionths
    repetition_penalty_u: Annotated[int, Meta(ge=1, le=100 * MILLION)]
    logit_bias: Annotated[
        list[Annotated[list[int], Meta(min_length=2, max_length=2)]], Meta(max_length=MAX_LOGIT_BIASES)
    ]
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)]
    stop: Annotated[list[_StopString], Meta(max_length=MAX_STOP_STRINGS)]
    stop_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)]
    ignore_eos: bool
    grammar: Digest | None = None

    @classmethod
    def greedy(cls) -> Self:
        return cls.of(
            temperature_u=0, top_p_u=MILLION, top_k=0, min_p_u=0, frequency_penalty_u=0, presence_penalty_u=0,
            repetition_penalty_u=MILLION, logit_bias=[], seed=0, stop=[], stop_ids=[], ignore_eos=False,
        )  # fmt: skip

    def __post_init__(self) -> None:
        if self.temperature_u == 0 and self.seed != 0:
            raise ValueError(
                "seed must be 0 where temperature_u is 0: it changes nothing and would split one request in two"
            )
        if self.logit_bias:
            ids = [pair[0] for pair in self.logit_bias]
            if any(not 0 <= i <= MAX_TOKEN_ID for i in ids) or any(a >= b for a, b in itertools.pairwise(ids)):
                raise ValueError("logit_bias must be sorted by id, each id once")
            if any(not -1000 * MILLION <= pair[1] <= 1000 * MILLION for pair in self.logit_bias):
                raise ValueError("logit_bias is beyond 1000")
        if self.stop_ids and any(a >= b for a, b in itertools.pairwise(self.stop_ids)):
            raise ValueError("stop_ids must be sorted, each id once")
        if self.stop:
            if len(set(self.stop)) != len(self.stop):
                raise ValueError("stop holds a string twice")
            if any(len(s.encode()) > MAX_STOP_STRING_BYTES for s in self.stop):
                raise ValueError(f"stop string is over {MAX_STOP_STRING_BYTES} bytes")


class ServeRequest(Value):
    """What the engine is asked to do. Its id commits to all of it; the prompt is addressed, never held.

    `joule_ceiling_uj` is in microjoules. `decision` is the digest of the options of a typed decision
    (`decision_digest`). `nonce` keys `prompt_hash`, so that neither can be guessed from a short prompt.
    """

    prompt_hash: Digest
    prompt_tokens: TokenCount
    max_tokens: MaxTokens
    fidelity_floor: FidelityLevel
    sampling: Sampling
    joule_ceiling_uj: UInt | None = None
    model: Name | None = None
    decision: Digest | None = None
    nonce: Digest | None = None

    @property
    def id(self) -> ContentId:
        return ContentId.of_canonical("request", self.to_cbor())


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian u32, 4 bytes each. Raises SchemaError for an id outside 0..2^32-1."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError) as e:
        raise SchemaError(f"token ids: {e}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    if len(packed) % 4:
        raise SchemaError(f"token ids: {len(packed)} bytes, not a multiple of 4")
    ids = array("I", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def prompt_hash_of_text(rendered: str, nonce: bytes | None) -> bytes:
    """32 bytes: BLAKE3 over 0x00 and the rendered prompt's UTF-8 bytes, keyed under the nonce where there is one."""
    try:
        text = rendered.encode()
    except UnicodeEncodeError as e:
        raise SchemaError(f"prompt: text is not valid unicode: {e.reason}") from None
    return _keyed(b"\x00" + text, nonce)


def prompt_hash_of_ids(ids: Sequence[int], nonce: bytes | None) -> bytes:
    """32 bytes: the same over 0x01 and the packed ids, where the client gave ids."""
    return _keyed(b"\x01" + pack_ids(ids), nonce)


def decision_digest(options: Sequence[str], nonce: bytes | None) -> bytes:
    """32 bytes: what a typed decision is between, BLAKE3 over 0x02 and the canonical bytes of the array of options,
    keyed under the nonce where there is one. Raises SchemaError where they are not at least two texts, each once, none
    empty."""
    if len(options) < 2 or not all(type(option) is str and option for option in options):
        raise SchemaError("options: expected at least two texts, none empty")
    if len(set(options)) != len(options):
        raise SchemaError("options: one is there twice")
    return _keyed(b"\x02" + canonical.encode(list(options)), nonce)


def _keyed(data: bytes, nonce: bytes | None) -> bytes:
    if nonce is None:
        return blake3(data).digest()
    if len(nonce) != 32:
        raise SchemaError(f"nonce: {len(nonce)} bytes, expected 32")
    return blake3(data, key=nonce).digest()


def payload_digest(ids: Sequence[int]) -> bytes:
    """32 bytes: what the engine is handed, BLAKE3 derive-key `mesh/1 payload` over the packed prompt ids."""
    return blake3(pack_ids(ids), derive_key_context="mesh/1 payload").digest()
