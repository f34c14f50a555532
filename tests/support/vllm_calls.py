"""The calls by which a fake vLLM server is compared with a real one, and what of an answer is compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MODEL = "tiny"
PROMPT = [40, 41, 60, 75, 90]
_LONG = [40 + i % 80 for i in range(2050)]  # more than the context
_ASKED = {
    "model": MODEL, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
}  # fmt: skip
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_LOGPROBS = {"logprobs": 2, "return_tokens_as_token_ids": True}
_CHAT = [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "4."}]
_EVERYTHING = {
    "min_tokens": 0, "n": 1, "echo": False, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "frequency_penalty": 0.5,
    "presence_penalty": -0.5, "repetition_penalty": 1.1, "logit_bias": {"65": 1.5}, "seed": 7, "stop": ["zzzz"],
    "stop_token_ids": [250], "include_stop_str_in_output": False, "skip_special_tokens": True,
    "use_beam_search": False, "length_penalty": 1.0, "watermarking": False, "cache_salt": "a grain",
}  # fmt: skip

# name -> (method, path, body)
CALLS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "version": ("GET", "/version", None),
    "health": ("GET", "/health", None),
    "models": ("GET", "/v1/models", None),
    "metrics": ("GET", "/metrics", None),
    "unknown route": ("GET", "/nope", None),
    "unknown method": ("GET", "/v1/completions", None),
    "tokenize text": ("POST", "/tokenize", {"model": MODEL, "prompt": "hé <s>", "add_special_tokens": False}),
    "tokenize chat": ("POST", "/tokenize", {"model": MODEL, "messages": _CHAT, "add_generation_prompt": True}),
    "tokenize nothing": ("POST", "/tokenize", {"model": MODEL}),
    "tokenize for another": ("POST", "/tokenize", {"model": "other", "prompt": "x"}),
    "detokenize": ("POST", "/detokenize", {"model": MODEL, "tokens": [40, 41, 1, 42]}),
    "plain": ("POST", "/v1/completions", _ASKED),
    "plain without ids": ("POST", "/v1/completions", {**_ASKED, "return_token_ids": False}),
    "plain of text": ("POST", "/v1/completions", {**_ASKED, "prompt": "the quick"}),
    "plain with logprobs": ("POST", "/v1/completions", {**_ASKED, **_LOGPROBS, "cache_salt": "one"}),
    "plain, sampled": ("POST", "/v1/completions", {**_ASKED, **_EVERYTHING, "temperature": 0.8}),
    "stream": ("POST", "/v1/completions", {**_ASKED, **_STREAM}),
    "stream without usage": ("POST", "/v1/completions", {**_ASKED, "stream": True}),
    "stream without ids": ("POST", "/v1/completions", {**_ASKED, **_STREAM, "return_token_ids": False}),
    "stream with logprobs": ("POST", "/v1/completions", {**_ASKED, **_STREAM, **_LOGPROBS}),
    "stream, sampled": ("POST", "/v1/completions", {**_ASKED, **_STREAM, **_EVERYTHING, "temperature": 0.8}),
    "clipped to the context": ("POST", "/v1/completions", {**_ASKED, "prompt": _LONG[:2046], "max_tokens": 9}),
    "prompt beyond the context": ("POST", "/v1/completions", {**_ASKED, "prompt": _LONG}),
    "id beyond the vocabulary": ("POST", "/v1/completions", {**_ASKED, "prompt": [40, 999_999]}),
    "no max_tokens": ("POST", "/v1/completions", {**_ASKED, "max_tokens": 0}),
    "temperature below 0": ("POST", "/v1/completions", {**_ASKED, "temperature": -1}),
    "temperature beyond 2": ("POST", "/v1/completions", {**_ASKED, "temperature": 2.5}),
    "top_p 0": ("POST", "/v1/completions", {**_ASKED, "temperature": 1, "top_p": 0}),
    "five stop strings": ("POST", "/v1/completions", {**_ASKED, "stop": ["v", "w", "x", "y", "z"]}),
    "penalty beyond 2": ("POST", "/v1/completions", {**_ASKED, "frequency_penalty": 2.5}),
    "completion of another": ("POST", "/v1/completions", {**_ASKED, "model": "other"}),
    "unknown field": ("POST", "/v1/completions", {**_ASKED, "retrun_token_ids": True}),
}

# Of a server that counts what its cache had (--enable-prompt-tokens-details) and wants the key `KEY`.
KEY = "k"
COUNTING: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "counting, plain": ("POST", "/v1/completions", {**_ASKED, "cache_salt": "counting"}),
    "counting, stream": ("POST", "/v1/completions", {**_ASKED, **_STREAM, "cache_salt": "counting"}),
}
KEYLESS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "no key, models": ("GET", "/v1/models", None),
    "no key, plain": ("POST", "/v1/completions", _ASKED),
    "no key, health": ("GET", "/health", None),
    "no key, tokenize": ("POST", "/tokenize", {"model": MODEL, "prompt": "x"}),
}

# What a stop string and a stop id do depends on the ids that come, so these two follow from a first answer.
STOPPED = ("stream to a stop string", "stream to a stop id")

_METRICS = (
    "process_start_time_seconds", "vllm:cache_config_info", "vllm:num_requests_running",
    "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total",
)  # fmt: skip


def stopped_calls(text: str, ids: list[int]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """`text` and `ids` are what "plain" answered."""
    asked = {**_ASKED, **_STREAM, "max_tokens": 16}
    by_string, by_id = {**asked, "stop": [text[-2:]]}, {**asked, "stop_token_ids": [ids[2]]}
    return {name: ("POST", "/v1/completions", body) for name, body in zip(STOPPED, (by_string, by_id), strict=True)}


def metric_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(_METRICS)]


def events_of(body: str) -> list[Any]:
    """The data of each event of a stream, in order; `[DONE]` as it is."""
    found = []
    for block in body.split("\n\n")[:-1]:
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def shape(value: Any) -> Any:
    """Keys and types. A list has the shapes of its elements, each once; names that are ids count as one."""
    if isinstance(value, dict):
        return {("token_id:*" if key.startswith("token_id:") else key): shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(_once(map(shape, value)))
    return type(value).__name__


def stream_shape(events: list[Any]) -> list[Any]:
    """The shapes of a stream's events in order, without those in its midst: a server puts into one event whatever it
    has made by then, so that their number says nothing."""
    return [event if event == "[DONE]" else shape(event) for event in events if not _in_midst(event)]


def midst_shape(events: list[Any]) -> list[Any]:
    """The shapes, each once, of the events that neither begin nor end a stream."""
    return list(_once(shape(event) for event in events if _in_midst(event)))


def _in_midst(event: Any) -> bool:
    if event == "[DONE]" or not event["choices"]:
        return False
    (choice,) = event["choices"]
    return choice["finish_reason"] is None and choice["prompt_token_ids"] is None


def _once(shapes: Iterator[Any]) -> Iterator[Any]:
    seen: list[Any] = []
    for one in shapes:
        if one not in seen:
            seen.append(one)
            yield one
