"""The receipt: who served what with which engine, what came of it, and what it cost."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mesh.schema.energy import Energy
from mesh.schema.ids import ContentId
from mesh.schema.outcome import ServeOutcome
from mesh.schema.value import Digest, FidelityLevel, Id16, Name, Opt, TokenCount, UInt, Value

VERSION = "mesh/1"

# engine/version/so-hash16/arch-isa/device-class/driver; `told:` marks a part that was claimed, not seen.
_PART = r"(told:)?[A-Za-z0-9._+-]{1,64}"
BackendId = Annotated[str, Field(pattern=rf"^{_PART}(/{_PART}){{5}}$")]


class EngineBlock(Value):
    """What ran, as its gateway knew it before the serve. `deterministic` is the claim that replay holds it to."""

    backend_id: BackendId
    recipe_id: Name
    fidelity: FidelityLevel
    deterministic: bool
    settings_digest: Digest
    process: Id16
    weights_digest: Opt[Digest] = None
    template_digest: Opt[Digest] = None
    blueprint_id: Opt[Digest] = None
    model_artifact_digest: Opt[Digest] = None
    runtime_recipe_digest: Opt[Digest] = None
    route_digest: Opt[Digest] = None
    launch_digest: Opt[Digest] = None


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
    max_tokens: Annotated[TokenCount, Field(ge=1)]
    started_ns: UInt
    ended_ns: UInt
    engine: EngineBlock
    outcome: ServeOutcome
    energy: Energy
    prev: Opt[Digest] = None
    grant_id: Opt[Digest] = None
    output_commitment: Opt[Digest] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.seq == 0) != (self.prev is None):
            raise ValueError("prev must be absent at seq 0 and there at any other")
        if self.output_commitment is not None:
            if self.outcome.finish == "refused":
                raise ValueError("a refused serve has no output_commitment")
            if self.outcome.tokens_out is None:
                raise ValueError("output_commitment is there although tokens_out is not")
        out = self.outcome.tokens_out
        if out is not None and out > self.max_tokens:
            raise ValueError(f"tokens_out {out} exceeds max_tokens {self.max_tokens}")
        return self

    @property
    def id(self) -> ContentId:
        return ContentId.of_canonical("receipt", self.to_cbor())
