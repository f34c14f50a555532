"""From an understood call to what the steward is asked: the prompt rendered and tokenized, the cap applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from mesh.engine.grammars import GrammarEngine
from mesh.engine.protocol import ScoringEngine, ServingEngine, has_text, tool_form
from mesh.errors import BadRequest, ContextLengthExceeded
from mesh.gateway.deciding import encode_options
from mesh.gateway.formats import Format, forced_call, free_calls
from mesh.gateway.messages import first_of_tools
from mesh.gateway.openai import Call
from mesh.schema.request import Sampling, ServeRequest, decision_digest, prompt_hash_of_ids, prompt_hash_of_text


@dataclass(frozen=True, slots=True)
class Prepared:
    """`text` is the rendered prompt; None where the client gave ids."""

    request: ServeRequest
    ids: tuple[int, ...] = field(repr=False)
    text: str | None = field(repr=False)
    tool_form: str | None = None  # in which calls of the request's tools come; None where it has none
    form: Format | None = None  # what the answer is held to
    options: tuple[tuple[int, ...], ...] = field(default=(), repr=False)  # of a decision


async def prepare(call: Call, engine: ServingEngine, *, default_max_tokens: int) -> Prepared:
    """Raises BadRequest for a prompt that is empty or unknown to the vocabulary and for what the engine cannot give,
    ContextLengthExceeded where prompt and cap do not fit. Nothing is ever cut."""
    text: str | None
    if call.logprobs is not None and not (isinstance(engine, ScoringEngine) and call.logprobs <= engine.max_scores):
        raise BadRequest("logprobs: this model's engine gives none", code="unsupported_parameter", param="logprobs")
    form = _tool_form(call, engine)
    options = await encode_options(call.options, engine) if call.options else ()
    if call.prompt_ids is not None:
        text, ids = None, call.prompt_ids
        _check_known(ids, engine, call.prompt_param)
        prompt_hash = prompt_hash_of_ids(ids, call.mesh.nonce)
    else:
        if not has_text(engine):
            raise BadRequest("this model takes token ids only", code="text_unsupported", param=call.prompt_param)
        writer = engine
        if call.messages is not None:
            text = await (writer.render(call.messages, call.tools) if call.tools else writer.render(call.messages))
            ids = tuple(await writer.encode(text, special=True))
        else:
            text = cast(str, call.prompt)
            ids = tuple(await writer.encode(text, special=False))
        prompt_hash = prompt_hash_of_text(text, call.mesh.nonce)
    if not ids:
        raise BadRequest(f"{call.prompt_param}: no tokens", code="invalid_value", param=call.prompt_param)
    held = call.form if form is None else _held_calls(call, form)
    tokens = len(ids) + sum(map(len, options))
    request = ServeRequest.of(
        prompt_hash=prompt_hash,
        prompt_tokens=tokens,
        max_tokens=_cap(call, tokens, engine.context_tokens, 1 if options else default_max_tokens),
        fidelity_floor=call.mesh.fidelity_floor,
        sampling=_sampling(call, engine, held),
        joule_ceiling_uj=call.mesh.joule_ceiling_uj,
        model=call.model,
        decision=decision_digest(call.options, call.mesh.nonce) if options else None,
        nonce=call.mesh.nonce,
    )
    return Prepared(request, ids, text, form, held, options)


def _held_calls(call: Call, form: str) -> Format | None:
    """What calls in the answer are held to; None where they are not."""
    if call.forced:
        return forced_call([tool for tool in call.tools if tool["function"]["name"] in call.forced], form)
    if call.strict or call.one_call:
        return free_calls(call.tools, form, strict=call.strict, once=call.one_call)
    return None


def _sampling(call: Call, engine: ServingEngine, held: Format | None) -> Sampling:
    """Raises BadRequest where the answer has a format and the engine can hold none to one."""
    if held is None:
        return call.sampling
    if not isinstance(engine, GrammarEngine):
        param = "tool_choice" if call.forced else held.param
        message = f"{param}: this model's engine cannot hold an answer to a format"
        raise BadRequest(message, code="unsupported_parameter", param=param)
    return Sampling.from_map({**call.sampling.to_map(), "grammar": engine.learn(held.grammar)})


def _tool_form(call: Call, engine: ServingEngine) -> str | None:
    """Raises BadRequest where there are tools, or what was said with them, and the model's template cannot show it."""
    field = "tools" if call.tools else None if call.messages is None else first_of_tools(call.messages)
    if field is None:
        return None
    form = tool_form(engine)
    if form is None:
        raise BadRequest(
            f"{field}: this model's chat template shows no tools, or in no form that is known here",
            code="unsupported_parameter",
            param=field,
        )
    return form if call.tools else None


def _cap(call: Call, prompt_tokens: int, context: int, default: int) -> int:
    room = context - prompt_tokens
    if room < 1 or (call.max_tokens or 0) > room:
        asked = "" if call.max_tokens is None else f" and {call.max_tokens} for the answer"
        raise ContextLengthExceeded(
            f"this model's context holds {context} tokens, the request needs {prompt_tokens} for the prompt{asked}",
            param=call.prompt_param,
        )
    return min(default, room) if call.max_tokens is None else call.max_tokens


def _check_known(ids: Sequence[int], engine: ServingEngine, param: str) -> None:
    if has_text(engine):
        try:
            for token in set(ids):
                engine.piece(token)
        except BadRequest as e:
            raise BadRequest(f"{param}: {e}", code="invalid_value", param=param) from None
