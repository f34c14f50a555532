"""From an understood call to what the steward is asked: the prompt rendered and tokenized, the cap applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from mesh.engine.protocol import ServingEngine, TextEngine
from mesh.errors import BadRequest, ContextLengthExceeded
from mesh.gateway.openai import Call
from mesh.schema.request import ServeRequest, prompt_hash_of_ids, prompt_hash_of_text


@dataclass(frozen=True, slots=True)
class Prepared:
    """`text` is the rendered prompt; None where the client gave ids."""

    request: ServeRequest
    ids: tuple[int, ...] = field(repr=False)
    text: str | None = field(repr=False)


async def prepare(call: Call, engine: ServingEngine, *, default_max_tokens: int) -> Prepared:
    """Raises BadRequest for a prompt that is empty or unknown to the vocabulary, ContextLengthExceeded where prompt and
    cap do not fit. Nothing is ever cut."""
    text: str | None
    if call.prompt_ids is not None:
        text, ids = None, call.prompt_ids
        _check_known(ids, engine)
        prompt_hash = prompt_hash_of_ids(ids, call.mesh.nonce)
    else:
        if not isinstance(engine, TextEngine):
            raise BadRequest("this model takes token ids only", code="text_unsupported", param=call.prompt_param)
        writer: TextEngine = engine
        if call.messages is not None:
            text = await writer.render(call.messages)
            ids = tuple(await writer.encode(text, special=True))
        else:
            text = cast(str, call.prompt)
            ids = tuple(await writer.encode(text, special=False))
        prompt_hash = prompt_hash_of_text(text, call.mesh.nonce)
    if not ids:
        raise BadRequest(f"{call.prompt_param}: no tokens", code="invalid_value", param=call.prompt_param)
    request = ServeRequest.of(
        prompt_hash=prompt_hash,
        prompt_tokens=len(ids),
        max_tokens=_cap(call, len(ids), engine.context_tokens, default_max_tokens),
        fidelity_floor=call.mesh.fidelity_floor,
        sampling=call.sampling,
        joule_ceiling_uj=call.mesh.joule_ceiling_uj,
        model=call.model,
        nonce=call.mesh.nonce,
    )
    return Prepared(request, ids, text)


def _cap(call: Call, prompt_tokens: int, context: int, default: int) -> int:
    room = context - prompt_tokens
    if room < 1 or (call.max_tokens or 0) > room:
        asked = "" if call.max_tokens is None else f" and {call.max_tokens} for the answer"
        raise ContextLengthExceeded(
            f"this model's context holds {context} tokens, the request needs {prompt_tokens} for the prompt{asked}",
            param=call.prompt_param,
        )
    return min(default, room) if call.max_tokens is None else call.max_tokens


def _check_known(ids: Sequence[int], engine: ServingEngine) -> None:
    if isinstance(engine, TextEngine):
        for token in set(ids):
            engine.piece(token)
