"""A serve that is in the child."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mesh.engine.protocol import TokenSink
from mesh.errors import EngineFailed


@dataclass(slots=True)
class Running:
    """`done` gets how it ended, or why it did not end well."""

    sink: TokenSink
    vocabulary: int
    done: asyncio.Future[str]
    tokens: list[int] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)

    def take(self, token: int, margin: float | None) -> None:
        """One more id. Raises EngineFailed for one that no vocabulary of this size has."""
        if self.done.done():
            return
        if token >= self.vocabulary:
            raise EngineFailed(f"engine pipe: id {token} outside the vocabulary of {self.vocabulary}")
        self.tokens.append(token)
        self.margins.append(margin)
        try:
            self.sink.put(token)
        except Exception as e:  # noqa: BLE001 - one serve's sink must not end the others
            self.done.set_exception(EngineFailed(f"gguf engine: the sink failed: {type(e).__name__}"))

    def end(self, finish: str) -> None:
        if not self.done.done():
            self.done.set_result(finish)
