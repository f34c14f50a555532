"""Values of every kind with every field filled, as plain maps that a test may change."""

from __future__ import annotations

from typing import Any

from mesh.schema.envelope import Sealed, SigningKey, seal
from mesh.schema.receipt import Receipt

KEY = SigningKey(bytes(range(32)))
OTHER_KEY = SigningKey(b"\x07" * 32)


def digest(n: int) -> bytes:
    return bytes([n]) * 32


def sampling() -> dict[str, Any]:
    return {
        "temperature_u": 700_000,
        "top_p_u": 900_000,
        "top_k": 40,
        "min_p_u": 50_000,
        "frequency_penalty_u": -500_000,
        "presence_penalty_u": 500_000,
        "repetition_penalty_u": 1_100_000,
        "logit_bias": [[5, -1_000_000], [50_000, 1_000_000]],
        "seed": 4_294_967_294,
        "stop": ["\n\n", "END"],
        "stop_ids": [2, 7],
        "ignore_eos": False,
        "grammar": digest(1),
    }


def request() -> dict[str, Any]:
    return {
        "prompt_hash": digest(2),
        "prompt_tokens": 431,
        "max_tokens": 256,
        "fidelity_floor": 1,
        "sampling": sampling(),
        "joule_ceiling_uj": 5_000_000,
        "model": "smollm2-135m",
        "decision": digest(3),
        "nonce": digest(4),
    }


def engine() -> dict[str, Any]:
    return {
        "backend_id": "gguf/1.0/0123456789abcdef/x86_64-avx2/cpu/none",
        "recipe_id": "smollm2-135m",
        "fidelity": 1,
        "deterministic": True,
        "settings_digest": digest(10),
        "process": bytes(range(16)),
        "weights_digest": digest(11),
        "template_digest": digest(12),
        "blueprint_id": digest(13),
        "model_artifact_digest": digest(14),
        "runtime_recipe_digest": digest(15),
        "route_digest": digest(16),
        "launch_digest": digest(17),
    }


def outcome() -> dict[str, Any]:
    return {
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
    }


def energy() -> dict[str, Any]:
    return {
        "basis": "allocated",
        "sources": [
            {"domain": "cpu", "method": "cpu-time@65W", "uj": 100, "resolution_ns": 10_000_000},
            {"domain": "gpu-0", "method": "nvml-total", "uj": 23, "resolution_ns": 100_000_000},
        ],
        "span_ns": 1_250_000_000,
        "uj": 123,
        "rule": "equal/1",
        "window_uj": 500,
        "peak_sharers": 2,
        "covered_ns": 1_000_000_000,
        "epoch": bytes(16),
    }


def receipt() -> dict[str, Any]:
    return {
        "v": "mesh/1",
        "steward": KEY.public,
        "seq": 7,
        "serve_id": bytes(range(16)),
        "request_id": digest(20),
        "prompt_hash": digest(21),
        "max_tokens": 256,
        "started_ns": 1_790_000_000_000_000_000,
        "ended_ns": 1_790_000_001_250_000_000,
        "engine": engine(),
        "outcome": outcome(),
        "energy": energy(),
        "prev": digest(22),
        "grant_id": digest(23),
        "output_commitment": digest(24),
    }


def launch() -> dict[str, Any]:
    """Every field filled."""
    return {
        "v": "mesh/1",
        "signer": KEY.public,
        "launched_ns": 1_790_000_000_000_000_000,
        "run": "20260921T141320-a1b2c3",
        "recipe": "smollm2",
        "engine": "vllm",
        "model": "smollm2-135m",
        "recipe_digest": digest(40),
        "config_digests": [digest(41)],
        "allowed_levers": ["--seed"],
        "pinned_files": {"model.safetensors": "sha256:" + "a1" * 32},
        "ranks": [
            {"rank": 0, "node": "n0", "argv": ["vllm", "serve"], "environment": {"A": "b"}, "found": {"image": "c"}},
        ],
        "engine_version": "0.32.0",
        "model_revision": "1" * 40,
        "image": "registry.example/img",
    }


def checkpoint() -> dict[str, Any]:
    return {
        "v": "mesh/1",
        "steward": KEY.public,
        "at_ns": 1_790_000_002_000_000_000,
        "count": 8,
        "domains": [
            {
                "domain": "cpu",
                "first_uj": 1_000,
                "last_uj": 2_000,
                "idle_uj": 300,
                "unattributed_uj": 200,
                "open_uj": 100,
            }
        ],
        "head": digest(30),
        "epoch": bytes(16),
        "epoch_seq": 3,
    }


def disclosure() -> dict[str, Any]:
    return {
        "serve_id": bytes(range(16)),
        "request": request(),
        "payload": b"\x01\x00\x00\x00\xff\xff\xff\xff",
        "opening": digest(40),
        "settings": {"engine": "gguf", "kv_type": "q8_0", "threads": 1, "flash": True, "parts": [{"a": -1}, b"x"]},
        "output": b"\x02\x00\x00\x00",
        "prompt": "<|user|>hé 🙂",
    }


def caveats() -> dict[str, Any]:
    """One of each, and one that nobody knows."""
    return {
        "model-in": [digest(1), digest(2)],
        "recipe-in": [digest(3), "qwen", "smollm2-135m"],
        "backend-in": [engine()["backend_id"]],
        "blueprint-in": [digest(4)],
        "steward-in": [KEY.public],
        "fidelity-at-least": 2,
        "max-tokens": 512,
        "max-uj": 5_000_000,
        "not-before": 1_790_000_000_000_000_000,
        "not-after": 1_790_600_000_000_000_000,
        "total-uj": 900_000_000,
        "total-tokens": 100_000,
        "weekdays": {"only": [1, 2, 3]},
    }


def grant_block() -> dict[str, Any]:
    return {"v": "mesh/1", "next": OTHER_KEY.public, "caveats": caveats(), "nonce": bytes(range(16))}


def frame() -> dict[str, Any]:
    return {
        "steward": KEY.public,
        "recipe_id": "smollm2-135m",
        "backend_id": engine()["backend_id"],
        "fidelity": 2,
        "prompt_tokens": 431,
        "max_tokens": 256,
        "now_ns": 1_790_000_000_000_000_000,
        "weights_digest": digest(1),
        "blueprint_id": digest(4),
        "runtime_recipe_digest": digest(3),
        "est_uj": 4_000_000,
    }


def sealed_receipt(key: SigningKey = KEY, **changes: Any) -> Sealed:
    return seal(Receipt.from_map({**receipt(), "steward": key.public, **changes}), key)
