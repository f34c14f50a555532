"""What the gateway takes, as JSON Schema: the bounds are those that the readers of requests hold bodies to.

A field that is null counts as absent, so every field that may be left out may be null. What schemas cannot say is in
descriptions: numbers have at most six decimals, and some fields go only beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesh.engine.protocol import MAX_SCORES
from mesh.gateway.deciding import MAX_OPTION_BYTES, MAX_OPTIONS
from mesh.gateway.messages import MAX_TOOLS, ROLES
from mesh.gateway.openai import MAX_CHOICES, MAX_LABEL_CHARS
from mesh.schema.limits import (
    MAX_LOGIT_BIASES,
    MAX_NAME_CHARS,
    MAX_SEED,
    MAX_STOP_IDS,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    MAX_UINT,
)

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NOTHING: Schema = {"enum": [None, "", [], {}], "description": "not supported by this server"}


def whole(low: int, high: int, told: str | None = None) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high} | ({} if told is None else {"description": told})


def number(low: int, high: int, told: str = "at most six decimals") -> Schema:
    return {"type": "number", "minimum": low, "maximum": high, "description": told}


def only(*values: Any, told: str = "other values are refused") -> Schema:
    return {"enum": [*values, None], "description": told}


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    return {"type": "array", "items": items, "minItems": least} | ({} if most is None else {"maxItems": most})


def closed(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    """An object with these fields and no other."""
    fields = required | {name: nullable(schema) for name, schema in (optional or {}).items()}
    told: Schema = {"type": "object", "properties": fields, "additionalProperties": False, **more}
    return told | ({"required": list(required)} if required else {})


def nullable(schema: Schema) -> Schema:
    if None in schema.get("enum", ()):
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
_LABEL: Schema = {"type": "string", "maxLength": MAX_LABEL_CHARS}
_ID = whole(0, MAX_TOKEN_ID)
_IDS = array(_ID)
_FUNCTION_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}
_PROMPT: Schema = {
    "anyOf": [TEXT, _IDS, array(TEXT, 1, 1), array(_IDS, 1, 1)],
    "description": "text or token ids; one prompt per request",
}

_LABELS: dict[str, Schema] = {
    "user": _LABEL,
    "safety_identifier": _LABEL,
    "prompt_cache_key": _LABEL,
    "metadata": {"type": "object", "additionalProperties": nullable(_LABEL)},
    "store": only(False, told="answers are not stored"),
    "service_tier": only("auto", "default", told="there is one tier"),
    "mesh": ref("MeshOptions"),
}
_SAMPLED: dict[str, Schema] = {
    "max_tokens": whole(1, MAX_TOKENS, "the same cap as max_completion_tokens; both must agree"),
    "max_completion_tokens": whole(1, MAX_TOKENS),
    "temperature": number(0, 100),
    "top_p": number(0, 1),
    "top_k": whole(-1, MAX_TOKEN_ID, "-1 and 0: no limit"),
    "min_p": number(0, 1),
    "frequency_penalty": number(-1000, 1000),
    "presence_penalty": number(-1000, 1000),
    "repetition_penalty": number(0, 100, "above 0, at most six decimals"),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": number(-1000, 1000),
        "maxProperties": MAX_LOGIT_BIASES,
    },
    "seed": whole(0, MAX_SEED),
    "stop": {
        "anyOf": [
            {**TEXT, "minLength": 1, "maxLength": MAX_STOP_STRING_BYTES},
            array({**TEXT, "minLength": 1, "maxLength": MAX_STOP_STRING_BYTES}, 0, MAX_STOP_STRINGS),
        ],
        "description": f"each at most {MAX_STOP_STRING_BYTES} bytes of UTF-8",
    },
    "stop_token_ids": array(_ID, 0, MAX_STOP_IDS),
    "ignore_eos": FLAG,
    "n": whole(1, MAX_CHOICES, "each choice is a serve with its own receipt"),
    "stream": FLAG,
    "stream_options": {
        **closed({}, {"include_usage": FLAG, "include_obfuscation": only(False)}),
        "description": "only where stream is true",
    },
}

_FUNCTION_CALL = closed({"name": _FUNCTION_NAME}, {"arguments": {**TEXT, "description": "a JSON object in text"}})
_TOOL_CALL = closed(
    {"function": _FUNCTION_CALL},
    {"id": TEXT, "type": only("function"), "index": {"description": "of a stream's delta; not used"}},
)
_CONTENT: Schema = {"anyOf": [TEXT, array(closed({"text": TEXT}, {"type": only("text")}))]}
_SILENT = dict.fromkeys(("name", "refusal", "function_call", "audio", "annotations"), NOTHING)
_NO_CALLS = {"tool_calls": NOTHING, "tool_call_id": NOTHING}
_MESSAGES: Sequence[Schema] = (
    closed(
        {"role": {"enum": [role for role in ROLES if role not in ("assistant", "tool")]}, "content": _CONTENT},
        _SILENT | _NO_CALLS,
    ),
    closed(
        {"role": {"const": "assistant"}, "content": _CONTENT},
        _SILENT | {"tool_calls": array(_TOOL_CALL), "tool_call_id": NOTHING},
    ),
    closed(
        {"role": {"const": "assistant"}, "tool_calls": array(_TOOL_CALL, 1)},
        _SILENT | {"content": _CONTENT, "tool_call_id": NOTHING},
    ),
    closed(
        {"role": {"const": "tool"}, "content": _CONTENT, "tool_call_id": TEXT},
        _SILENT | {"tool_calls": NOTHING},
    ),
)
_TOOL = closed(
    {
        "function": closed(
            {"name": _FUNCTION_NAME},
            {"description": TEXT, "parameters": {"type": "object"}, "strict": FLAG},
        )
    },
    {"type": only("function")},
)
_FORMAT: Schema = {
    "anyOf": [
        closed({"type": {"enum": ["text", "json_object"]}}, {"json_schema": NOTHING}),
        closed(
            {
                "type": {"const": "json_schema"},
                "json_schema": closed(
                    {"name": TEXT, "schema": {"type": "object"}}, {"description": TEXT, "strict": FLAG}
                ),
            }
        ),
    ]
}
_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        closed({"function": closed({"name": TEXT})}, {"type": only("function")}),
    ],
    "description": "only where there are tools",
}


def request_schemas(models: Sequence[str]) -> dict[str, Schema]:
    """The components; `models` are the names that are served now."""
    model = {**_NAME, "enum": list(models)}
    messages: dict[str, Schema] = {"messages": array(ref("Message"), 1)}
    return {
        "MeshOptions": closed(
            {},
            {
                "disclose": FLAG,
                "fidelity_floor": whole(0, 3),
                "joule_ceiling_uj": whole(0, MAX_UINT, "microjoules"),
                "nonce": {**TEXT, "description": "32 bytes in hex or base64url"},
                "deadline_s": whole(1, 86_400),
            },
        ),
        "Message": {"anyOf": list(_MESSAGES)},
        "ChatRequest": closed(
            {"model": model, **messages},
            {
                **_SAMPLED,
                **_LABELS,
                "logprobs": FLAG,
                "top_logprobs": whole(0, MAX_SCORES, "only where logprobs is true"),
                "tools": array(_TOOL, 0, MAX_TOOLS),
                "tool_choice": _CHOICE,
                "parallel_tool_calls": FLAG,
                "response_format": _FORMAT,
                "modalities": only(["text"]),
                **dict.fromkeys(("functions", "function_call", "audio", "prediction"), NOTHING),
                **dict.fromkeys(("reasoning_effort", "verbosity", "web_search_options"), NOTHING),
            },
        ),
        "TextRequest": closed(
            {"model": model, "prompt": _PROMPT},
            {
                **_SAMPLED,
                **_LABELS,
                "logprobs": whole(0, MAX_SCORES),
                "echo": only(False),
                "best_of": only(1),
                "suffix": NOTHING,
            },
        ),
        "DecideRequest": {
            "anyOf": [
                closed({"model": model, "options": _options(), **one}, {**_DECIDED, **_LABELS, other: {"type": "null"}})
                for one, other in ((messages, "prompt"), ({"prompt": _PROMPT}, "messages"))
            ]
        },
        "EmbeddingsRequest": {
            "type": "object",
            "properties": {"model": model, "input": {}},
            "required": ["model", "input"],
            "description": "no engine here makes embeddings, which the refusal says of each by name",
        },
        "TokenizeRequest": {"anyOf": _tokenize(model, messages)},
        "DetokenizeRequest": closed({"tokens": _IDS}, {"model": model}),
        "HandshakeRequest": {
            "anyOf": [closed({shown: {"type": "object"}}, {"model": model}) for shown in ("fingerprint", "identity")]
        },
    }


_DECIDED: dict[str, Schema] = {"ignore_eos": FLAG, "stream": only(False, told="a decision comes whole")}


def _options() -> Schema:
    text = {**TEXT, "minLength": 1, "maxLength": MAX_OPTION_BYTES}
    told = f"each at most {MAX_OPTION_BYTES} bytes of UTF-8"
    return {**array(text, 2, MAX_OPTIONS), "uniqueItems": True, "description": told}


def _tokenize(model: Schema, messages: dict[str, Schema]) -> list[Schema]:
    null = {"type": "null"}
    forms: tuple[tuple[dict[str, Schema], dict[str, Schema]], ...] = (
        ({"content": TEXT}, {"parse_special": FLAG, "add_special": FLAG, "with_pieces": FLAG}),
        ({"prompt": TEXT}, {"add_special_tokens": FLAG, "return_token_strs": FLAG}),
        (
            messages,
            {
                "add_generation_prompt": only(True),
                "continue_final_message": only(False),
                "add_special_tokens": only(False),
                "return_token_strs": FLAG,
            },
        ),
    )
    names = ("content", "prompt", "messages")
    others = [{name: null for name in names if name not in one} for one, _ in forms]
    return [closed(one, {"model": model, **more, **no}) for (one, more), no in zip(forms, others, strict=True)]
