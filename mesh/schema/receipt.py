"""The receipt: who served what with which engine, what came of it, and what it cost."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from mesh.schema.energy import Energy
from mesh.schema.ids import ContentId
from mesh.schema.outcome import ServeOutcome
from mesh.schema.value import Digest, FidelityLevel, Id16, MaxTokens, UInt, Value, check_known_name

VERSION = "mesh/1"

# engine/version/so-hash16/arch-isa/device-class/driver; `told:` marks a part that was claimed, not seen.
_PART = r"(told:)?[A-Za-z0-9._+-]{1,64}"
_BACKEND_ID = re.compile(rf"{_PART}(/{_PART}){{5}}")


class EngineBlock(Value):
    """What ran, as its gateway knew it before the serve. `deterministic` is the claim that replay holds it to."""

    backend_id: str
    recipe_id: str
    fidelity: FidelityLevel
    deterministic: bool
    settings_digest: Digest
    process: Id16
    weights_digest: Digest | None = None
    template_digest: Digest | None = None
    blueprint_id: Digest | None = None
    model_artifact_digest: Digest | None = None
    runtime_recipe_digest: Digest | None = None
    route_digest: Digest | None = None
    launch_digest: Digest | None = None

    def __post_init__(self) -> None:
        check_backend_id(self.backend_id)
        check_known_name(self.recipe_id, "recipe_id")


# One engine's receipts all have the same.
@lru_cache(maxsize=256)
def check_backend_id(text: str) -> None:
    """Raises ValueError for text that is no backend id."""
    if _BACKEND_ID.fullmatch(text) is None:
        raise ValueError("backend_id: expected six parts of at most 64 characters A-Z a-z 0-9 . _ + -")


class Receipt(Value):
    """`steward` is the Ed25519 key that seals it, `seq` its place in that steward's gapless sequence from 0, `prev` the
    id of the receipt before. `started_ns` and `ended_ns` are Unix nanoseconds. `output_commitment` binds the output
    ids without telling them; absent for a typed decision and for a serve that was refused."""

    v: Literal["mesh/1"]
    steward: Digest
    seq: UInt
    serve_id: Id16
    request_id: Digest
    prompt_hash: Digest
    max_tokens: MaxTokens
    started_ns: UInt
    ended_ns: UInt
    engine: EngineBlock
    outcome: ServeOutcome
    energy: Energy
    prev: Digest | None = None
    grant_id: Digest | None = None
    output_commitment: Digest | None = None

    def __post_init__(self) -> None:
        if (self.seq == 0) != (self.prev is None):
            raise ValueError("prev must be absent at seq 0 and there at any other")
        if self.output_commitment is not None:
            if self.outcome.finish == "refused":
                raise ValueError("a refused serve has no output_commitment")
            if self.outcome.tokens_out is None:
                raise ValueError("output_commitment is there although tokens_out is not")
        delivered = self.outcome.delivered_fidelity
        if delivered is not None and delivered > self.engine.fidelity:
            raise ValueError(f"delivered_fidelity {delivered} exceeds the engine's {self.engine.fidelity}")
        out = self.outcome.tokens_out
        if out is not None and out > self.max_tokens:
            raise ValueError(f"tokens_out {out} exceeds max_tokens {self.max_tokens}")

    @property
    def id(self) -> ContentId:
        return ContentId.of_canonical("receipt", self.to_cbor())
