"""An engine that is written down: what PROTOCOL.md calls a replayer, run through `mesh`'s own replay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mesh.engine.protocol import Served, TokenSink
from mesh.errors import EngineFailed
from mesh.replay.replayer import replay
from mesh.replay.verdict import Verdict
from mesh.schema import canonical
from mesh.schema.disclosure import Disclosure, unpack_ids
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_DISCLOSURE_BYTES, MAX_TOKENS
from mesh.schema.outcome import Fidelity, ServeOutcome
from mesh.schema.request import MILLION, ServeRequest
from mesh.schema.trust import Trust


class Written:
    """Gives the decodings A and B, in this order. Implements ServingEngine."""

    fidelity = Fidelity.F0
    est_uj_per_token: int | None = None
    template_digest: ContentId | None = None
    precision: str | None = None
    process = bytes(16)
    context_tokens = 2 * MAX_TOKENS
    slots = 1

    def __init__(self, described: Mapping[str, Any]) -> None:
        digest = described.get("weights_digest")
        self.backend_id: str = described["backend_id"]
        self.recipe_id: str = described["recipe_id"]
        self.settings: Mapping[str, Any] = described["settings"]
        self.weights_digest = None if digest is None else ContentId(digest)
        self._deterministic: bool = described["deterministic"]
        self._decodings = [described["a"], described["b"]]

    def deterministic(self, request: ServeRequest) -> bool:
        return self._deterministic

    def refusal(self, request: ServeRequest) -> str | None:
        return None

    async def ready(self) -> None:
        pass

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        decoding = self._decodings.pop(0)
        if "failed" in decoding:
            raise EngineFailed("the replayer says so")
        made: list[int] = []
        for token in unpack_ids(decoding["tokens"]):
            if sink.cancelled.is_set():
                break
            made.append(token)
            sink.put(token)
        outcome = ServeOutcome.of(
            finish="cancelled" if sink.cancelled.is_set() else decoding["finish"],
            counted_by="engine",
            tokens_out=len(made),
            tokens_accepted=decoding.get("accepted"),
            weights_digest=self.weights_digest,
        )
        margins = decoding.get("margins_u")
        return Served(tuple(made), outcome, None if margins is None else tuple(u / MILLION for u in margins))

    async def close(self) -> None:
        pass


class WrittenText(Written):
    """One with a tokenizer, of which only what it makes of one text is known. Implements TextEngine too."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        super().__init__(described)
        self._encodings = [unpack_ids(packed) for packed in described["encodings"]]

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        raise EngineFailed("a replayer renders nothing")

    async def encode(self, text: str, *, special: bool) -> list[int]:
        if not self._encodings:
            raise EngineFailed("the replayer cannot encode this text")
        return self._encodings[0 if special else -1]

    def piece(self, token: int) -> bytes:
        return b""


def replay_line(envelope: bytes, disclosure: bytes | None, trust: Trust, replayer: bytes) -> str:
    """The verdict in one line. Raises what `replay` does, and an Invalid for a bad disclosure."""
    described = canonical.decode_map(replayer, max_bytes=MAX_DISCLOSURE_BYTES)
    engine = WrittenText(described) if "encodings" in described else Written(described)
    return asyncio.run(_replay(envelope, disclosure, engine, trust))


async def _replay(envelope: bytes, disclosure: bytes | None, engine: Written, trust: Trust) -> str:
    verify(envelope, RECEIPT_TYPE, trust)  # a disclosure is looked at after the receipt
    given = None if disclosure is None else Disclosure.from_bytes(disclosure)
    return verdict_line(await replay(envelope, given, engine, trust))


def verdict_line(verdict: Verdict) -> str:
    words = [verdict.kind, str(verdict.row)]
    match verdict.kind:
        case "verified":
            ending = [f"ending={verdict.ending}"] if verdict.ending else []
            words += [str(verdict.method), f"prompt={verdict.prompt}", f"output={verdict.output}", *ending]
        case "diverged" if verdict.field is not None:
            words.append(f"field={verdict.field}")
        case "diverged":
            margin = "unknown" if verdict.margin is None else str(round(verdict.margin * MILLION))
            served, replayed = ("none" if i is None else str(i) for i in (verdict.served, verdict.replayed))
            words += [
                f"at={verdict.first_difference}",
                f"served={served}",
                f"replayed={replayed}",
                f"margin_u={margin}",
            ]
        case "not-replayable":
            words.append(str(verdict.reason))
            if verdict.row == 1:
                words.append(f"field={verdict.field}")
    return " ".join(words)
