"""A request in the server's terms: what is sent, and what it would not do as asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mesh.engine.protocol import Served
from mesh.engine.vllm_stream import Usage
from mesh.engine.vllm_transcript import Transcript
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import MILLION, ServeRequest

# Between 0 and this vLLM takes another temperature than it is given.
_LEAST_TEMPERATURE_U: Final = 10_000
_MOST_TEMPERATURE_U: Final = 2 * MILLION
_MOST_PENALTY_U: Final = 2 * MILLION
_MOST_STOPS: Final = 4
# In a server's text this stands for any bytes that are no UTF-8, and ids would have to be searched for those.
_REPLACEMENT: Final = "\ufffd"
_MOST_BIAS_U: Final = 100 * MILLION  # beyond it a bias is clamped


def refusal_of(request: ServeRequest, context_tokens: int, vocabulary: int | None) -> str | None:
    """Why a vLLM server would not do what the request asks, naming the field. `vocabulary` None: neither how many ids
    there are nor what they spell is known here."""
    sampling = request.sampling
    if request.decision is not None:
        return "decision: this engine makes no typed decisions"
    if 0 < sampling.temperature_u < _LEAST_TEMPERATURE_U:
        return "temperature: vLLM takes 0, or 0.01 and more; anything between it would raise to 0.01"
    if sampling.temperature_u > _MOST_TEMPERATURE_U:
        return "temperature: vLLM takes 2 at most"
    if sampling.top_p_u == 0:
        return "top_p: vLLM takes more than 0"
    if not -_MOST_PENALTY_U <= sampling.frequency_penalty_u <= _MOST_PENALTY_U:
        return "frequency_penalty: vLLM takes -2 to 2"
    if not -_MOST_PENALTY_U <= sampling.presence_penalty_u <= _MOST_PENALTY_U:
        return "presence_penalty: vLLM takes -2 to 2"
    if sampling.logit_bias and any(abs(bias) > _MOST_BIAS_U for _, bias in sampling.logit_bias):
        return "logit_bias: vLLM clamps what is beyond 100"
    if vocabulary is not None and (sampling.logit_bias or sampling.stop_ids):
        for name, ids in (("logit_bias", [i for i, _ in sampling.logit_bias]), ("stop_ids", sampling.stop_ids)):
            if any(i >= vocabulary for i in ids):
                return f"{name}: names an id that the vocabulary of {vocabulary} does not have"
    if sampling.stop:
        if vocabulary is None:
            return "stop: the bytes of this model's tokens are not known here (no tokenizer folder)"
        if len(sampling.stop) > _MOST_STOPS:
            return f"stop: vLLM takes {_MOST_STOPS} strings"
        if any(_REPLACEMENT in stop for stop in sampling.stop):
            return "stop: vLLM finds U+FFFD in bytes that do not spell it"
    if request.prompt_tokens < 1:
        return "prompt: empty, there is nothing to go on from"
    needed = request.prompt_tokens + request.max_tokens
    if needed > context_tokens:
        return f"max_tokens: prompt and output need {needed} tokens, the context holds {context_tokens}"
    return None


def completion_body(
    request: ServeRequest,
    prompt: Sequence[int],
    model: str,
    *,
    margins: bool,
    scores: int | None = None,
    grammar: str | None = None,
    streamed: bool = True,
    salt: str | None = None,
) -> dict[str, Any]:
    """Every parameter of the sampling is there, so that neither the server's defaults nor the model folder's
    generation_config.json decide anything. `scores`: of how many of the likeliest ids log-probabilities are wanted,
    None: none. `salt`: of a prefix cache of its own."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": request.max_tokens,
        "min_tokens": 0,
        "n": 1,
        "echo": False,
        "stream": streamed,
        **({"stream_options": {"include_usage": True}} if streamed else {}),
        "return_token_ids": True,
        "temperature": sampling.temperature_u / MILLION,
        "top_p": sampling.top_p_u / MILLION,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p_u / MILLION,
        "frequency_penalty": sampling.frequency_penalty_u / MILLION,
        "presence_penalty": sampling.presence_penalty_u / MILLION,
        "repetition_penalty": sampling.repetition_penalty_u / MILLION,
        "logit_bias": None if not sampling.logit_bias else {str(i): bias / MILLION for i, bias in sampling.logit_bias},
        "seed": None if sampling.temperature_u == 0 else sampling.seed,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": sampling.ignore_eos,
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "watermarking": False,
    }
    if salt is not None:
        body["cache_salt"] = salt
    if grammar is not None:
        body["structured_outputs"] = {"grammar": grammar}
    if margins or scores is not None:
        body |= {"logprobs": max(2 if margins else 0, scores or 0), "return_tokens_as_token_ids": True}
    return body


def bent(request: ServeRequest) -> bool:
    """Whether something moves the logits before the choice, so that their distance says nothing."""
    sampling = request.sampling
    return bool(sampling.logit_bias) or sampling.grammar is not None or (
        sampling.frequency_penalty_u, sampling.presence_penalty_u, sampling.repetition_penalty_u
    ) != (0, 0, 1_000_000)  # fmt: skip


def served(transcript: Transcript, usage: Usage | None, *, raw: bool, **told: Any) -> Served:
    """What the engine gives back. `tokens_out` is the server's own count, absent where it was not asked to the end;
    `told` is what else the engine says in the outcome, `raw` whether its log-probabilities are the model's own."""
    made = len(transcript.tokens)
    outcome = ServeOutcome.of(
        finish=transcript.finish or "cancelled", counted_by="engine",
        tokens_in=None if usage is None else usage.prompt_tokens, tokens_out=None if usage is None else made,
        tokens_accepted=made, cache_hit_tokens=transcript.cached, **told,
    )  # fmt: skip
    whole = raw and None not in transcript.margins and not bent(transcript.request)
    margins = tuple(margin for margin in transcript.margins if margin is not None) if whole else None
    return Served(tuple(transcript.tokens), outcome, margins)
