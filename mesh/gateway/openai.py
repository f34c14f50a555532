"""OpenAI's request bodies, read strictly: every field is followed, known to change nothing, or refused by name.

Defaults are OpenAI's: temperature 1, top_p 1, no penalties. Where the temperature is above 0 and the client gave no
seed, one is drawn, so that the serve can be replayed; at temperature 0 a seed changes nothing and is set to 0.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

from mesh.engine.protocol import MAX_SCORES
from mesh.gateway.fields import Fields, kind, millionths
from mesh.gateway.formats import Format, read_format
from mesh.gateway.messages import Message, read_messages, read_tools
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
from mesh.schema.record import Record
from mesh.schema.request import MILLION, Sampling

Random = Callable[[int], bytes]

_NOT_YET = "not supported by this server"
_HEX64 = re.compile(r"[0-9a-fA-F]{64}\Z")
MAX_LABEL_CHARS = 512
MAX_CHOICES = 16  # each is a serve of its own
_GREEDY = Sampling.greedy()
_OF_ANY = frozenset(("stream_options", "n"))
# Of completions alone, and of chats alone but for the messages.
_OF_COMPLETION = frozenset(("echo", "best_of", "suffix", "logprobs"))
_OF_CHAT = frozenset(
    (
        "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format",
        "functions", "function_call", "audio", "prediction",
        "reasoning_effort", "verbosity", "web_search_options", "modalities",
    )
)  # fmt: skip


class MeshOptions(Record):
    """The `mesh` object of a request. `nonce` is 32 bytes, the client's or drawn; `joule_ceiling_uj` microjoules;
    `deadline_s` seconds for the whole request."""

    disclose: bool
    fidelity_floor: int
    joule_ceiling_uj: int | None
    nonce: bytes
    deadline_s: int | None = None


class Call(Record):
    """One request, understood. Exactly one of `messages`, `prompt` and `prompt_ids` is there. `max_tokens` None means
    the server's default. `n` choices are made; `logprobs` is of how many of the likeliest ids they are told, None: no
    log-probabilities at all; `tools` are those that the model may call, `forced` the names of those of which it
    has to call one; `form` is what an answer in text has to look like; `options` are those of a decision, which
    makes no text. Where the model may choose to call, the tools in `strict` are called with arguments that fit, and
    with `one_call` no more than one is."""

    model: str
    messages: tuple[Message, ...] | None
    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    max_tokens: int | None
    sampling: Sampling
    stream: bool
    include_usage: bool
    mesh: MeshOptions
    n: int = 1
    logprobs: int | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    forced: tuple[str, ...] = ()
    form: Format | None = None
    options: tuple[str, ...] = ()
    strict: tuple[str, ...] = ()
    one_call: bool = False

    @property
    def held(self) -> bool:
        """Whether a grammar may hold the answer to something."""
        return self.form is not None or bool(self.forced or self.strict or self.one_call)

    @property
    def prompt_param(self) -> str:
        return "prompt" if self.messages is None else "messages"


class _Calls(Record):
    """The tools that the model is shown, none where it is told to call none; the names of those of which it has to call
    one, none where it may choose; of those that are strict where it may; and whether it may call but one."""

    tools: tuple[Mapping[str, Any], ...]
    forced: tuple[str, ...]
    strict: tuple[str, ...]
    one: bool


_NO_CALLS = _Calls((), (), (), False)


def parse_chat(body: dict[str, Any], random: Random) -> Call:
    """`POST /v1/chat/completions`. Raises BadRequest with the field's name as `param`."""
    fields = Fields(body)
    messages = read_messages(fields)
    if not fields.any_of(_OF_CHAT):
        return _call(fields, random, messages=messages)
    logprobs = _chat_logprobs(fields)
    calls = _tools(fields)
    form = read_format(fields)
    if form is not None and calls.tools:
        raise fields.fault("response_format", "not beside tools", code="unsupported_value")
    fields.refuse(("functions", "function_call", "audio", "prediction"), _NOT_YET)
    fields.refuse(("reasoning_effort", "verbosity", "web_search_options"), _NOT_YET)
    fields.only("modalities", (["text"],), _NOT_YET)
    return _call(fields, random, messages=messages, logprobs=logprobs, calls=calls, form=form)


def parse_completion(body: dict[str, Any], random: Random) -> Call:
    """`POST /v1/completions`. Raises BadRequest with the field's name as `param`."""
    fields = Fields(body)
    prompt = read_prompt(fields)
    logprobs = None
    if fields.any_of(_OF_COMPLETION):
        fields.only("echo", (False,), _NOT_YET)
        fields.only("best_of", (1,), _NOT_YET)
        fields.refuse(("suffix",), _NOT_YET)
        logprobs = fields.integer("logprobs", 0, MAX_SCORES)
    text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    return _call(fields, random, prompt=text, prompt_ids=ids, logprobs=logprobs)


def _call(
    fields: Fields,
    random: Random,
    *,
    messages: tuple[Message, ...] | None = None,
    prompt: str | None = None,
    prompt_ids: tuple[int, ...] | None = None,
    logprobs: int | None = None,
    calls: _Calls = _NO_CALLS,
    form: Format | None = None,
) -> Call:
    model = _model(fields)
    max_tokens = _max_tokens(fields)
    sampling = _sampling(fields, random)
    stream = fields.flag("stream") or False
    include_usage, n = False, 1
    if fields.any_of(_OF_ANY):
        options = fields.object("stream_options")
        if options is not None:
            if not stream:
                raise fields.fault("stream_options", "only where stream is true")
            include_usage = options.flag("include_usage") or False
            options.only("include_obfuscation", (False,), _NOT_YET)
            options.done()
        n = _or(fields.integer("n", 1, MAX_CHOICES), 1)
    if sampling.ignore_eos and (form is not None or calls.forced or calls.strict or calls.one):
        raise fields.fault("ignore_eos", "not where the answer has a format, which ends it", code="unsupported_value")
    mesh = _mesh(fields, random)
    _rest(fields)
    return Call(
        model,
        messages,
        prompt,
        prompt_ids,
        max_tokens,
        sampling,
        stream,
        include_usage,
        mesh,
        n,
        logprobs,
        calls.tools,
        calls.forced,
        form,
        (),
        calls.strict,
        calls.one,
    )


def plain_call(fields: Fields, random: Random, sampling: Sampling) -> Call:
    """What is left of a request that says nothing of how ids are chosen: the model, `mesh` and labels."""
    model = _model(fields)
    mesh = _mesh(fields, random)
    _rest(fields)
    return Call(model, None, None, None, None, sampling, stream=False, include_usage=False, mesh=mesh)


def _model(fields: Fields) -> str:
    model = fields.text("model")
    if not model or len(model) > MAX_NAME_CHARS:
        raise fields.fault("model", "missing" if not model else f"over {MAX_NAME_CHARS} characters")
    return model


def _chat_logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs") or False
    best = fields.integer("top_logprobs", 0, MAX_SCORES)
    if best is not None and not wanted:
        raise fields.fault("top_logprobs", "only where logprobs is true")
    return (best or 0) if wanted else None


def _tools(fields: Fields) -> _Calls:
    choice = fields.take("tool_choice")
    named = _named_choice(fields, choice)
    tools, strict = read_tools(fields)
    names = tuple(tool["function"]["name"] for tool in tools)
    if choice not in (None, "none") and not tools:
        raise fields.fault("tool_choice", "only where there are tools")
    if named is not None and named not in names:
        raise fields.fault("tool_choice", f"{named[:80]!r} is none of the tools")
    one = fields.flag("parallel_tool_calls") is False and bool(tools)
    if choice == "none":
        return _NO_CALLS
    # a call that is forced is one and held to its parameters in any case
    if choice == "required" or named is not None:
        return _Calls(tools, names if named is None else (named,), (), False)
    return _Calls(tools, (), strict, one)


def _named_choice(fields: Fields, choice: Any) -> str | None:
    if choice in (None, "none", "auto", "required"):
        return None
    if type(choice) is not dict:
        raise fields.fault(
            "tool_choice", "expected none, auto, required or a function by name", code="unsupported_value"
        )
    told = Fields(choice, within="tool_choice")
    told.only("type", ("function",), "expected a function")
    function = told.object("function")
    told.done()
    name = None if function is None else function.text("name")
    if function is None or name is None:
        raise told.fault("function.name", "missing")
    function.done()
    return name


def read_prompt(fields: Fields) -> str | tuple[int, ...]:
    """The `prompt` of a request: text, or token ids. Raises BadRequest."""
    prompt = fields.take("prompt")
    if type(prompt) is list and len(prompt) == 1 and type(prompt[0]) in (str, list):
        prompt = prompt[0]
    if type(prompt) is str:
        return prompt
    if type(prompt) is not list:
        raise fields.fault("prompt", "missing" if prompt is None else f"expected text or token ids, got {kind(prompt)}")
    if any(type(item) in (str, list) for item in prompt):
        raise fields.fault("prompt", "one prompt per request; send several requests", code="unsupported_value")
    if not all(type(item) is int and 0 <= item <= MAX_TOKEN_ID for item in prompt):
        raise fields.fault("prompt", f"token ids are whole numbers from 0 to {MAX_TOKEN_ID}")
    return tuple(prompt)


def _max_tokens(fields: Fields) -> int | None:
    """The cap under its two names, which must agree where both are there."""
    older = fields.integer("max_tokens", 1, MAX_TOKENS)
    newer = fields.integer("max_completion_tokens", 1, MAX_TOKENS)
    if older is not None and newer is not None and older != newer:
        raise fields.fault("max_tokens", f"{older}, but max_completion_tokens is {newer}: they name one cap")
    return older if newer is None else newer


def _sampling(fields: Fields, random: Random) -> Sampling:
    temperature_u = _or(fields.millionths("temperature", 0, 100), MILLION)
    seed = fields.integer("seed", 0, MAX_SEED)
    if temperature_u == 0:
        seed = 0
    elif seed is None:
        seed = int.from_bytes(random(8), "little") % (MAX_SEED + 1)
    said = {}
    for name in fields.among(_OF_SAMPLING):
        field, read = _OF_SAMPLING[name]
        said[field] = read(fields)
    if temperature_u == 0 and not said:
        return _GREEDY
    return _GREEDY.changed(temperature_u=temperature_u, seed=seed, **said)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _logit_bias(fields: Fields) -> list[list[int]]:
    biases = fields.take("logit_bias")
    if type(biases) is not dict:
        raise fields.wrong("logit_bias", "an object", biases)
    if len(biases) > MAX_LOGIT_BIASES:
        raise fields.fault("logit_bias", f"{len(biases)} entries, at most {MAX_LOGIT_BIASES}")
    pairs = []
    for key, value in biases.items():
        # one spelling per id, so that no id is there twice
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or int(key) > MAX_TOKEN_ID:
            raise fields.fault("logit_bias", "keys are token ids in decimal")
        pairs.append([int(key), millionths(value, -1000, 1000, param=f"logit_bias.{key}")])
    return sorted(pairs)


def _stop(fields: Fields) -> list[str]:
    stop = fields.take("stop")
    stops = [stop] if type(stop) is str else stop
    if type(stops) is not list or any(type(item) is not str for item in stops):
        raise fields.fault("stop", "expected text or an array of texts")
    if len(stops) > MAX_STOP_STRINGS:
        raise fields.fault("stop", f"{len(stops)} strings, at most {MAX_STOP_STRINGS}")
    if any(not item or len(item.encode()) > MAX_STOP_STRING_BYTES for item in stops):
        raise fields.fault("stop", f"a stop string is 1 to {MAX_STOP_STRING_BYTES} bytes long")
    return list(dict.fromkeys(stops))


def _stop_ids(fields: Fields) -> list[int]:
    ids = fields.array("stop_token_ids") or []
    if len(ids) > MAX_STOP_IDS or not all(type(item) is int and 0 <= item <= MAX_TOKEN_ID for item in ids):
        raise fields.fault("stop_token_ids", f"at most {MAX_STOP_IDS} token ids")
    return sorted(set(ids))


def _repetition(fields: Fields) -> int | None:
    value = fields.millionths("repetition_penalty", 0, 100)
    if value == 0:
        raise fields.fault("repetition_penalty", "must be above 0")
    return value


# The fields that say how ids are chosen, but for temperature and seed, in the order they are read in: what each is in a
# Sampling, and how it is read where it is there. Without it, it is as in greedy sampling.
_OF_SAMPLING: dict[str, tuple[str, Callable[[Fields], Any]]] = {
    "repetition_penalty": ("repetition_penalty_u", _repetition),
    "top_p": ("top_p_u", lambda fields: fields.millionths("top_p", 0, 1)),
    # some servers write "no limit" as -1
    "top_k": ("top_k", lambda fields: max(0, _or(fields.integer("top_k", -1, MAX_TOKEN_ID), 0))),
    "min_p": ("min_p_u", lambda fields: fields.millionths("min_p", 0, 1)),
    "frequency_penalty": ("frequency_penalty_u", lambda fields: fields.millionths("frequency_penalty", -1000, 1000)),
    "presence_penalty": ("presence_penalty_u", lambda fields: fields.millionths("presence_penalty", -1000, 1000)),
    "logit_bias": ("logit_bias", _logit_bias),
    "stop": ("stop", _stop),
    "stop_token_ids": ("stop_ids", _stop_ids),
    "ignore_eos": ("ignore_eos", lambda fields: fields.flag("ignore_eos")),
}


def _mesh(body: Fields, random: Random) -> MeshOptions:
    fields = body.object("mesh")
    if fields is None:
        return MeshOptions(disclose=False, fidelity_floor=0, joule_ceiling_uj=None, nonce=random(32), deadline_s=None)
    options = MeshOptions(
        disclose=fields.flag("disclose") or False,
        fidelity_floor=_or(fields.integer("fidelity_floor", 0, 3), 0),
        joule_ceiling_uj=fields.integer("joule_ceiling_uj", 0, MAX_UINT),
        nonce=_nonce(fields) or random(32),
        deadline_s=fields.integer("deadline_s", 1, 86_400),
    )
    fields.done()
    return options


def _nonce(fields: Fields) -> bytes | None:
    text = fields.text("nonce")
    if text is None:
        return None
    if _HEX64.match(text):
        return bytes.fromhex(text)
    try:
        nonce = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        nonce = b""
    if len(nonce) != 32:
        raise fields.fault("nonce", "expected 32 bytes in hex or base64url")
    return nonce


def _rest(fields: Fields) -> None:
    """What is left of a body: what names the request for its sender and changes nothing in the answer, which is read,
    checked and not kept, and what nobody knows, which is refused."""
    if not fields.left:
        return
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        if len(fields.text(name) or "") > MAX_LABEL_CHARS:
            raise fields.fault(name, f"over {MAX_LABEL_CHARS} characters")
    metadata = fields.object("metadata")
    if metadata is not None:
        metadata.texts(MAX_LABEL_CHARS)
    fields.only("store", (False,), "answers are not stored; send false or nothing")
    fields.only("service_tier", ("auto", "default"), "there is one tier")
    fields.done()
