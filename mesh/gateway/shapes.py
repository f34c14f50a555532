"""OpenAI's answers: the bodies and chunks of chat and text completions, and the `mesh` object in them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.record import Record
from mesh.schema.view import json_bytes, view
from mesh.steward.serves import SealedServe

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_MARK = "\0"  # which no name of a model holds


class Shape(Record):
    """One answer's frame. `created_s` is Unix time in seconds."""

    chat: bool
    serve_id: bytes
    model: str
    created_s: int

    def answer(
        self,
        choices: Sequence[Mapping[str, Any]],
        served: Sequence[SealedServe],
        energy: Mapping[str, Any],
        mesh: Mapping[str, Any],
    ) -> dict[str, Any]:
        told = {"choices": list(choices), "usage": usage(served), "energy": energy, "mesh": mesh}
        return {**self._frame(streamed=False), **told}

    def decision(
        self,
        told: Mapping[str, Any],
        served: Sequence[SealedServe],
        energy: Mapping[str, Any],
        mesh: Mapping[str, Any],
    ) -> dict[str, Any]:
        frame = {**self._frame(streamed=False), "id": f"decision-{self.serve_id.hex()}", "object": "mesh.decision"}
        return {**frame, **told, "usage": usage(served), "energy": energy, "mesh": mesh}

    def choice(
        self, index: int, said: Mapping[str, Any], logprobs: Mapping[str, Any] | None, reason: str
    ) -> dict[str, Any]:
        """One choice of a plain answer."""
        shown = {"message": said} if self.chat else said
        return {"index": index, **shown, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, text: str, deltas: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
        """All that a choice says; `deltas` in place of the text where tools may be called in it."""
        if not self.chat:
            return {"text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if deltas is not None:
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            text = "".join(delta.get("content", "") for delta in deltas)
            message["content"] = text if text or not calls else None
            if calls:
                message["tool_calls"] = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
        return message

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk before any text."""
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) if self.chat else None

    def text(self, index: int, text: str, logprobs: Mapping[str, Any] | None) -> dict[str, Any]:
        return self._chunk(index, {"delta": {"content": text}} if self.chat else {"text": text}, logprobs)

    def texts(self, index: int) -> Callable[[str], bytes]:
        """What makes events of `text` without log-probabilities: all but the text is written once."""
        before, after = event(self.text(index, _MARK, None)).split(json_bytes(_MARK))
        return lambda text: before + json_bytes(text) + after

    def delta(self, index: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None) -> dict[str, Any]:
        return self._chunk(index, {"delta": delta}, logprobs)

    def finish(self, index: int, reason: str, mesh: Mapping[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return {**self._chunk(index, said, None, reason), "mesh": mesh}

    def usage(self, served: Sequence[SealedServe]) -> dict[str, Any]:
        return {**self._frame(streamed=True), "choices": [], "usage": usage(served)}

    def _chunk(
        self, index: int, said: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
        return {**self._frame(streamed=True), "choices": [choice]}

    def _frame(self, *, streamed: bool) -> dict[str, Any]:
        if self.chat:
            prefix, what = "chatcmpl", "chat.completion.chunk" if streamed else "chat.completion"
        else:
            prefix, what = "cmpl", "text_completion"
        return {
            "id": f"{prefix}-{self.serve_id.hex()}",
            "object": what,
            "created": self.created_s,
            "model": self.model,
        }


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON escapes line breaks, so it is one line."""
    return b"data: " + json_bytes(value) + b"\n\n"


def repeated(receipts: Sequence[tuple[bytes, ContentId]]) -> dict[str, Any]:
    """In place of an answer that is no longer held; `receipts` are (serve id, receipt id) of each choice."""
    told: list[dict[str, Any]] = [
        {"serve_id": serve_id_text(serve_id), "receipt_id": receipt_id.text} for serve_id, receipt_id in receipts
    ]
    note = "this idempotency key was served before and its answer is no longer held"
    mesh = told[0] if len(told) == 1 else {"choices": told}
    return {"object": "mesh.receipt", "choices": [], "mesh": {**mesh, "repeated": True, "note": note}}


def receipt_comment(served: SealedServe) -> bytes:
    return f": mesh-receipt {served.receipt_id.text}\n\n".encode()


def finish_reason(served: SealedServe, calls: int = 0) -> str:
    """`calls` is how many calls of tools the choice made."""
    if served.receipt.outcome.finish == "length":
        return "length"
    return "tool_calls" if calls else "stop"


def usage(served: Sequence[SealedServe]) -> dict[str, Any]:
    """The prompt once, as it was sent once, and what every choice made; each receipt has its own counts."""
    outcome = served[0].receipt.outcome
    tokens_in, tokens_out = outcome.tokens_in or 0, sum(one.receipt.outcome.tokens_out or 0 for one in served)
    told: dict[str, Any] = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }
    if outcome.cache_hit_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": outcome.cache_hit_tokens}
    return told


def mesh_object(served: SealedServe, *, incomplete: bool, disclose: bool, prompt: str | None) -> dict[str, Any]:
    """What an answer says of its receipt. `incomplete`: the output ended inside a character, shown as U+FFFD."""
    receipt, energy = served.receipt, served.receipt.energy
    figure: dict[str, Any] = {"basis": energy.basis}
    if energy.uj is not None:
        figure["uj"] = view(energy.uj)
    if energy.span_ns is not None:
        figure["span_ns"] = view(energy.span_ns)
    if energy.reason is not None:
        figure["reason"] = energy.reason
    told: dict[str, Any] = {
        "serve_id": serve_id_text(receipt.serve_id),
        "receipt_id": served.receipt_id.text,
        "steward": steward_text(receipt.steward),
        "seq": receipt.seq,
        "energy": figure,
        "deterministic": receipt.engine.deterministic,
    }
    if incomplete:
        told["incomplete_character"] = True
    if disclose:
        packed = served.disclosure(prompt=prompt).to_cbor()
        told["disclosure"] = base64.urlsafe_b64encode(packed).rstrip(b"=").decode()
    return told
