"""What a grant is decided over: the serve that would run, as its gateway knows it before any work."""

from __future__ import annotations

from mesh.schema.receipt import check_backend_id
from mesh.schema.value import Digest, FidelityLevel, MaxTokens, Name, TokenCount, UInt, Value


class Frame(Value):
    """`fidelity` is the engine's rating, `est_uj` the worst case in microjoules, `now_ns` Unix time. What nobody can
    say is absent, and refuses where a caveat is about it."""

    steward: Digest
    recipe_id: Name
    backend_id: str
    fidelity: FidelityLevel
    prompt_tokens: TokenCount
    max_tokens: MaxTokens
    now_ns: UInt
    weights_digest: Digest | None = None
    blueprint_id: Digest | None = None
    runtime_recipe_digest: Digest | None = None
    est_uj: UInt | None = None

    def __post_init__(self) -> None:
        check_backend_id(self.backend_id)

    @property
    def tokens(self) -> int:
        """The most that may be counted against a total: the prompt, and every token that may come."""
        return self.prompt_tokens + self.max_tokens
