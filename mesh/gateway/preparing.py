"""From an understood call to what the steward is asked: the prompt rendered and tokenized, the cap applied."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.engine.grammars import GrammarEngine
from mesh.engine.protocol import ScoringEngine, ServingEngine, TextEngine, tool_form
from mesh.errors import BadRequest, ContextLengthExceeded
from mesh.gateway.deciding import encode_options
from mesh.gateway.formats import Format, forced_call, free_calls
from mesh.gateway.messages import Message, first_of_tools
from mesh.gateway.openai import Call
from mesh.schema.record import Record
from mesh.schema.request import Sampling, ServeRequest, decision_digest, prompt_hash_of_ids, prompt_hash_of_text


class Prepared(Record):
    """`text` is the rendered prompt; None where the client gave ids."""

    request: ServeRequest
    ids: tuple[int, ...]
    text: str | None
    tool_form: str | None = None  # in which calls of the request's tools come; None where it has none
    form: Format | None = None  # what the answer is held to
    options: tuple[tuple[int, ...], ...] = ()  # of a decision

    def __repr__(self) -> str:
        return f"Prepared(request={self.request!r})"  # nothing of what was said


async def prepare(
    call: Call,
    engine: ServingEngine,
    writer: TextEngine | None,
    *,
    default_max_tokens: int,
    max_prompt_tokens: int | None,
) -> Prepared:
    """`writer` is the engine's text side, None where it has none. Raises BadRequest for a prompt that is empty or
    unknown to the vocabulary and for what the engine cannot give, ContextLengthExceeded where prompt and cap do not fit
    or the prompt is over `max_prompt_tokens`. Nothing is ever cut."""
    text: str | None
    if call.logprobs is not None and not (isinstance(engine, ScoringEngine) and call.logprobs <= engine.max_scores):
        raise BadRequest("logprobs: this model's engine gives none", code="unsupported_parameter", param="logprobs")
    form = None if call.messages is None else _tool_form(call, call.messages, engine)
    options = await encode_options(call.options, engine) if call.options else ()
    if call.prompt_ids is not None:
        text, ids = None, call.prompt_ids
        if writer is not None:
            _check_known(ids, writer, call.prompt_param)
        prompt_hash = prompt_hash_of_ids(ids, call.mesh.nonce)
    else:
        if writer is None:
            raise BadRequest("this model takes token ids only", code="text_unsupported", param=call.prompt_param)
        if call.messages is not None:
            text = await (writer.render(call.messages, call.tools) if call.tools else writer.render(call.messages))
            ids = tuple(await writer.encode(text, special=True))
        else:
            assert call.prompt is not None
            text = call.prompt
            ids = tuple(await writer.encode(text, special=False))
        prompt_hash = prompt_hash_of_text(text, call.mesh.nonce)
    if not ids:
        raise BadRequest(f"{call.prompt_param}: no tokens", code="invalid_value", param=call.prompt_param)
    held = call.form if form is None else _held_calls(call, form)
    tokens = len(ids) + sum(map(len, options)) if options else len(ids)
    max_tokens = _cap(call, tokens, engine.context_tokens, 1 if options else default_max_tokens)
    request = ServeRequest.from_map(
        {
            "prompt_hash": prompt_hash,
            "prompt_tokens": tokens,
            "max_tokens": max_tokens,
            "fidelity_floor": call.mesh.fidelity_floor,
            "sampling": call.sampling if held is None else _held_sampling(call, engine, held),
            "joule_ceiling_uj": call.mesh.joule_ceiling_uj,
            "model": call.model,
            "decision": decision_digest(call.options, call.mesh.nonce) if options else None,
            "nonce": call.mesh.nonce,
        }
    )
    if max_prompt_tokens is not None and tokens > max_prompt_tokens:
        raise ContextLengthExceeded(
            f"prompt: {tokens} tokens, this server takes at most {max_prompt_tokens}", param=call.prompt_param
        )
    return Prepared(request, ids, text, form, held, options)


def _held_calls(call: Call, form: str) -> Format | None:
    """What calls in the answer are held to; None where they are not."""
    if call.forced:
        return forced_call([tool for tool in call.tools if tool["function"]["name"] in call.forced], form)
    if call.strict or call.one_call:
        return free_calls(call.tools, form, strict=call.strict, once=call.one_call)
    return None


def _held_sampling(call: Call, engine: ServingEngine, held: Format) -> Sampling:
    """Raises BadRequest where the engine can hold no answer to a format."""
    if not isinstance(engine, GrammarEngine):
        param = "tool_choice" if call.forced else held.param
        message = f"{param}: this model's engine cannot hold an answer to a format"
        raise BadRequest(message, code="unsupported_parameter", param=param)
    return Sampling.from_map({**call.sampling.to_map(), "grammar": engine.learn(held.grammar)})


def _tool_form(call: Call, messages: tuple[Message, ...], engine: ServingEngine) -> str | None:
    """Raises BadRequest where there are tools, or what was said with them, and the model's template cannot show it."""
    field = "tools" if call.tools else first_of_tools(messages)
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


def _check_known(ids: Sequence[int], writer: TextEngine, param: str) -> None:
    try:
        for token in set(ids):
            writer.piece(token)
    except BadRequest as e:
        raise BadRequest(f"{param}: {e}", code="invalid_value", param=param) from None
