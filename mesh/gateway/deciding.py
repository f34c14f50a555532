"""`POST /mesh/v1/decide`: which of given options a model would go on with, read strictly and answered.

The options are scored where they stand, in one prefill, and nothing is made: an answer has log-probabilities and no
text of the model's. It is a serve like any other, with a receipt whose request holds the options' digest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mesh.engine.protocol import Decider, ServingEngine, TextEngine
from mesh.errors import BadRequest
from mesh.gateway.fields import Fields
from mesh.gateway.messages import read_messages
from mesh.gateway.openai import Call, Random, plain_call, read_prompt
from mesh.schema.request import Sampling
from mesh.steward.serves import SealedServe

MAX_OPTIONS = 64
MAX_OPTION_BYTES = 4096
_LEAST = -9999.0  # for an option that cannot be: JSON has no infinity


def parse_decide(body: dict[str, Any], random: Random) -> Call:
    """Raises BadRequest with the field's name as `param`."""
    fields = Fields(body)
    messages = read_messages(fields) if "messages" in fields else None
    if messages is not None and "prompt" in fields:
        raise fields.fault("prompt", "not beside messages; expected one of the two")
    prompt = None if messages is not None else read_prompt(fields)
    options = _options(fields)
    fields.only("stream", (False,), "a decision comes whole")
    # a conversation's turn ends with the option; a text may go on behind it
    ignore_eos = fields.flag("ignore_eos")
    ending = messages is not None if ignore_eos is None else not ignore_eos
    sampling = Sampling.greedy().changed(ignore_eos=not ending)
    call = plain_call(fields, random, sampling)
    text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    return call.but(messages=messages, prompt=text, prompt_ids=ids, options=options)


def _options(fields: Fields) -> tuple[str, ...]:
    options = fields.array("options")
    if options is None:
        raise fields.fault("options", "missing")
    if not 2 <= len(options) <= MAX_OPTIONS:
        raise fields.fault("options", f"{len(options)} of them, expected 2 to {MAX_OPTIONS}")
    first: dict[str, int] = {}
    for i, option in enumerate(options):
        name = f"options[{i}]"
        if type(option) is not str:
            raise fields.wrong(name, "text", option)
        if not option:
            raise fields.fault(name, "empty")
        if (size := len(option.encode())) > MAX_OPTION_BYTES:
            raise fields.fault(name, f"{size} bytes, at most {MAX_OPTION_BYTES}")
        if first.setdefault(option, i) != i:
            raise fields.fault(name, f"the same as options[{first[option]}]")
    return tuple(options)


async def encode_options(options: Sequence[str], engine: ServingEngine) -> tuple[tuple[int, ...], ...]:
    """Each option's ids, as they stand behind the prompt: read on their own, control tokens spelled in them as text.
    Raises BadRequest where the engine makes no decisions, and for an option that comes to no ids or to those of
    another."""
    if not isinstance(engine, Decider) or not isinstance(engine, TextEngine):
        message = "options: this model's engine makes no typed decisions"
        raise BadRequest(message, code="unsupported_parameter", param="options")
    first: dict[tuple[int, ...], int] = {}
    for i, option in enumerate(options):
        ids = tuple(await engine.encode(option, special=False, bare=True))
        if not ids:
            raise BadRequest(f"options[{i}]: no tokens", code="invalid_value", param=f"options[{i}]")
        if first.setdefault(ids, i) != i:
            message = f"options[{i}]: the same tokens as options[{first[ids]}], which nothing tells apart"
            raise BadRequest(message, code="invalid_value", param=f"options[{i}]")
    return tuple(first)


def told_of(options: Sequence[str], ids: Sequence[Sequence[int]], served: SealedServe) -> dict[str, Any]:
    """What an answer says of the options. `logprob` is natural, of all ids of an option and, unless the end was
    ignored, of the end after it; `probability` is its share among the options, and they sum to 1."""
    assert served.decided is not None
    decision = served.receipt.outcome.decision
    assert decision is not None
    best = served.decided[decision]
    weights = [math.exp(one - best) if math.isfinite(best) else 1.0 for one in served.decided]
    shown: list[Mapping[str, Any]] = [
        {
            "index": i,
            "option": option,
            "tokens": len(ids[i]),
            "logprob": max(served.decided[i], _LEAST),
            "probability": weights[i] / sum(weights),
        }
        for i, option in enumerate(options)
    ]
    return {"decision": {"index": decision, "option": options[decision]}, "options": shown}
