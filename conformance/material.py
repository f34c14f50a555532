"""Values that the cases are made of: plain maps, to be changed and encoded by hand, and the keys that sign them."""

from __future__ import annotations

from typing import Any

from conformance.digests import (
    commitment,
    content_id,
    opening,
    payload_digest,
    prompt_hash_of_ids,
    prompt_hash_of_text,
    reference_tokens,
    steward_text,
)
from conformance.ed25519 import Key
from conformance.writer import array, bstr, integer, item, mapping, packed, tag, text

Map = dict[str, Any]

KEY = Key(bytes(range(32)))
OTHER = Key(b"\x07" * 32)

RECEIPT_TYPE = "application/mesh-receipt+cbor"
CHECKPOINT_TYPE = "application/mesh-checkpoint+cbor"

STARTED_NS = 1_790_000_000_000_000_000  # 2026-09-21T14:13:20Z
ENDED_NS = STARTED_NS + 1_250_000_000

MAX_UINT = 2**63 - 1
MAX_COUNT = 2**31 - 1
MAX_ID = 2**32 - 1


def digest(number: int) -> bytes:
    return bytes([number]) * 32


def trust_file(*keys: Key) -> bytes:
    return "".join(f"{steward_text(key.public)}\n" for key in keys or (KEY,)).encode()


def changed(value: Map, **fields: Any) -> Map:
    """A copy with other fields; None takes one out. A `__` in a name goes a map deeper."""
    out = dict(value)
    for name, content in fields.items():
        outer, _, inner = name.partition("__")
        if inner:
            out[outer] = changed(out[outer], **{inner: content})
        elif content is None:
            out.pop(name, None)
        else:
            out[name] = content
    return out


def greedy(**fields: Any) -> Map:
    return changed(
        {
            "temperature_u": 0,
            "top_p_u": 1_000_000,
            "top_k": 0,
            "min_p_u": 0,
            "frequency_penalty_u": 0,
            "presence_penalty_u": 0,
            "repetition_penalty_u": 1_000_000,
            "logit_bias": [],
            "seed": 0,
            "stop": [],
            "stop_ids": [],
            "ignore_eos": False,
        },
        **fields,
    )


def sampled(**fields: Any) -> Map:
    """Every field of `sampling` filled."""
    return changed(
        {
            "temperature_u": 700_000,
            "top_p_u": 900_000,
            "top_k": 40,
            "min_p_u": 50_000,
            "frequency_penalty_u": -500_000,
            "presence_penalty_u": 500_000,
            "repetition_penalty_u": 1_100_000,
            "logit_bias": [[5, -1_000_000], [50_000, 1_000_000]],
            "seed": 1_234_567,
            "stop": ["\n\n", "END"],
            "stop_ids": [2, 7],
            "ignore_eos": True,
            "grammar": digest(1),
        },
        **fields,
    )


def small_request(**fields: Any) -> Map:
    """Without any optional field."""
    value = {"prompt_hash": digest(2), "prompt_tokens": 2, "max_tokens": 4, "fidelity_floor": 0, "sampling": greedy()}
    return changed(value, **fields)


def request(**fields: Any) -> Map:
    """With every optional field."""
    return changed(
        {
            "prompt_hash": digest(2),
            "prompt_tokens": 431,
            "max_tokens": 256,
            "fidelity_floor": 1,
            "sampling": sampled(),
            "joule_ceiling_uj": 5_000_000,
            "model": "smollm2-135m",
            "decision": digest(3),
            "nonce": digest(4),
        },
        **fields,
    )


def small_engine(**fields: Any) -> Map:
    return changed(
        {
            "backend_id": "gguf/1.0/0123456789abcdef/x86_64-avx2/cpu/none",
            "recipe_id": "smollm2-135m",
            "fidelity": 1,
            "deterministic": True,
            "settings_digest": digest(10),
            "process": bytes(range(16)),
        },
        **fields,
    )


ENGINE_OPTIONS = (
    "weights_digest",
    "template_digest",
    "blueprint_id",
    "model_artifact_digest",
    "runtime_recipe_digest",
    "route_digest",
    "launch_digest",
)


def engine(**fields: Any) -> Map:
    return changed(small_engine(**{name: digest(11 + i) for i, name in enumerate(ENGINE_OPTIONS)}), **fields)


def small_outcome(**fields: Any) -> Map:
    return changed({"finish": "interrupted", "counted_by": "none"}, **fields)


def outcome(**fields: Any) -> Map:
    return changed(
        {
            "finish": "stop",
            "counted_by": "both",
            "tokens_in": 431,
            "tokens_out": 64,
            "tokens_accepted": 64,
            "tokens_delivered": 60,
            "cache_hit_tokens": 0,
            "spec_proposed": 30,
            "spec_accepted": 20,
            "decision": 1,
            "delivered_fidelity": 1,
            "weights_digest": digest(11),
            "precision": "Q4_1",
            "reason": "all-well",
        },
        **fields,
    )


def absent_energy(**fields: Any) -> Map:
    return changed({"basis": "absent", "sources": [], "reason": "no-meter"}, **fields)


def source(**fields: Any) -> Map:
    return changed({"domain": "cpu", "method": "cpu-time@65W", "uj": 123, "resolution_ns": 10_000_000}, **fields)


def small_energy(**fields: Any) -> Map:
    """One source and no company."""
    return changed({"basis": "modelled", "sources": [source()], "span_ns": 1_250_000_000, "uj": 123}, **fields)


def energy(**fields: Any) -> Map:
    return changed(
        {
            "basis": "allocated",
            "sources": [
                source(uj=100),
                source(domain="gpu-0", method="nvml-total", uj=23, resolution_ns=100_000_000),
            ],
            "span_ns": 1_250_000_000,
            "uj": 123,
            "rule": "equal/1",
            "window_uj": 500,
            "peak_sharers": 2,
            "covered_ns": 1_000_000_000,
            "epoch": bytes(16),
        },
        **fields,
    )


def small_receipt(**fields: Any) -> Map:
    """The first of a steward, without any optional field."""
    return changed(
        {
            "v": "mesh/1",
            "steward": KEY.public,
            "seq": 0,
            "serve_id": bytes(range(16)),
            "request_id": digest(20),
            "prompt_hash": digest(21),
            "max_tokens": 256,
            "started_ns": STARTED_NS,
            "ended_ns": ENDED_NS,
            "engine": small_engine(),
            "outcome": small_outcome(),
            "energy": absent_energy(),
        },
        **fields,
    )


def receipt(**fields: Any) -> Map:
    value = small_receipt(
        seq=7,
        engine=engine(),
        outcome=outcome(),
        energy=energy(),
        prev=digest(22),
        grant_id=digest(23),
        output_commitment=digest(24),
    )
    return changed(value, **fields)


def domain_totals(**fields: Any) -> Map:
    value = {"domain": "cpu", "first_uj": 1_000, "last_uj": 2_000, "idle_uj": 300, "unattributed_uj": 200}
    return changed({**value, "open_uj": 100}, **fields)


def small_checkpoint(**fields: Any) -> Map:
    value = {"v": "mesh/1", "steward": KEY.public, "at_ns": ENDED_NS, "count": 0, "domains": []}
    return changed(value, **fields)


def checkpoint(**fields: Any) -> Map:
    value = small_checkpoint(count=8, domains=[domain_totals()], head=digest(30), epoch=bytes(16), epoch_seq=3)
    return changed(value, **fields)


SETTINGS: Map = {"engine": "gguf", "kv_type": "q8_0", "threads": 1, "flash": True, "parts": [{"a": -1}, b"x"]}


def small_disclosure(**fields: Any) -> Map:
    value = {
        "serve_id": bytes(range(16)),
        "request": small_request(),
        "payload": packed([104, 105]),
        "opening": digest(40),
        "settings": {},
    }
    return changed(value, **fields)


def disclosure(**fields: Any) -> Map:
    value = small_disclosure(request=request(), settings=SETTINGS, output=packed([2]), prompt="<|user|>hé 🙂")
    return changed(value, **fields)


# ---------------------------------------------------------------------------------------------------- envelopes


def protected(key: Key = KEY, **parts: bytes | None) -> bytes:
    """A protected header; `alg`, `type`, `kid`, `iss`, `sub` and `claims` may be given, encoded, or None to drop."""
    has: dict[str, bytes | None] = {
        "alg": integer(-19),
        "type": text(RECEIPT_TYPE),
        "kid": bstr(key.public),
        "iss": text(steward_text(key.public)),
        "sub": text("smollm2-135m"),
        **parts,
    }
    claims = mapping((integer(n), value) for n, name in ((1, "iss"), (2, "sub")) if (value := has[name]) is not None)
    order = ((1, "alg"), (3, "type"), (4, "kid"), (15, "claims"))
    has = {"claims": claims, **has}
    return mapping((integer(n), value) for n, name in order if (value := has[name]) is not None)


def to_be_signed(header: bytes, payload: bytes, *, aad: bytes = b"", context: str = "Signature1") -> bytes:
    return array([text(context), bstr(header), bstr(aad), bstr(payload)])


def sign1(
    payload: bytes,
    header: bytes | None = None,
    *,
    key: Key = KEY,
    unprotected: bytes = b"\xa0",
    signature: bytes | None = None,
) -> bytes:
    """A COSE_Sign1, signed over what it then holds unless a signature is given."""
    header = protected(key) if header is None else header
    if signature is None:
        signature = key.sign(to_be_signed(header, payload))
    return tag(18, array([bstr(header), unprotected, bstr(payload), bstr(signature)]))


def signed_receipt(value: Map, key: Key = KEY) -> bytes:
    return sign1(item(value), protected(key, sub=text(value["engine"]["recipe_id"])), key=key)


def signed_checkpoint(value: Map, key: Key = KEY) -> bytes:
    return sign1(item(value), protected(key, type=text(CHECKPOINT_TYPE), sub=text("checkpoint")), key=key)


# ------------------------------------------------------------------------------------------------- whole serves

REFERENCE_SETTINGS: Map = {"engine": "reference", "stream": "splitmix64", "vocabulary": 32_000}
SERVE_ID = bytes.fromhex("01a0c4506c0070008000000000000000")


def reference_engine(**fields: Any) -> Map:
    value = {
        "backend_id": "reference/1/none/none/none/none",
        "recipe_id": "reference",
        "fidelity": 0,
        "deterministic": True,
        "settings_digest": content_id("settings", REFERENCE_SETTINGS),
        "process": bytes(16),
    }
    return changed(value, **fields)


class Serve:
    """A serve of the prompt `hi` that is true in every respect, unless it is told otherwise: `request`, `outcome`,
    `engine` and `receipt` are changes, `output` other ids than the reference engine's. `ids`: the client gave ids."""

    def __init__(
        self,
        *,
        output: list[int] | None = None,
        committed: bool = True,
        ids: bool = False,
        request: Map | None = None,
        outcome: Map | None = None,
        engine: Map | None = None,
        receipt: Map | None = None,
    ) -> None:
        self.prompt, self.payload, nonce = "hi", [104, 105], bytes(32)
        addressed = prompt_hash_of_ids(self.payload, nonce) if ids else prompt_hash_of_text(self.prompt, nonce)
        asked = small_request(prompt_hash=addressed, nonce=nonce, model="reference")
        self.request = changed(asked, **request or {})
        limit = self.request["max_tokens"]
        self.output = reference_tokens(self.request["prompt_hash"], limit) if output is None else output
        self.request_id = content_id("request", self.request)
        self.opening = opening(KEY.seed, self.request_id, SERVE_ID)
        made = len(self.output)
        counts = dict.fromkeys(("tokens_out", "tokens_accepted", "tokens_delivered"), made)
        told = {"finish": "length", "counted_by": "both", "tokens_in": 2, "cache_hit_tokens": 0, **counts}
        value = small_receipt(
            serve_id=SERVE_ID,
            request_id=self.request_id,
            prompt_hash=self.request["prompt_hash"],
            max_tokens=limit,
            ended_ns=STARTED_NS + 1_000_000,
            engine=reference_engine(**engine or {}),
            outcome=changed(told, **outcome or {}),
            energy=absent_energy(span_ns=1_000_000),
        )
        if committed:
            digest = payload_digest(self.payload)
            value["output_commitment"] = commitment(self.opening, self.request_id, digest, self.output)
        self.receipt = changed(value, **receipt or {})

    @property
    def envelope(self) -> bytes:
        return signed_receipt(self.receipt)

    def disclosure(self, **fields: Any) -> Map:
        value = {
            "serve_id": SERVE_ID,
            "request": self.request,
            "payload": packed(self.payload),
            "opening": self.opening,
            "settings": REFERENCE_SETTINGS,
            "output": packed(self.output),
            "prompt": self.prompt,
        }
        return changed(value, **fields)
