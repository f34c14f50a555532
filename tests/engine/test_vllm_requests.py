"""What is asked of a vLLM server, and what is not asked because it would do something else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.vllm_requests import completion_body, refusal_of
from mesh.schema.request import MILLION, Sampling
from tests.support.serves import request_for

PROMPT = (40, 41, 60)


def refusal(*, max_tokens: int = 8, vocabulary: int | None = 259, **sampling: Any) -> str | None:
    return refusal_of(request_for(PROMPT, max_tokens, **sampling), 64, vocabulary)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"temperature_u": 1}, "temperature"),
        ({"temperature_u": 9_999}, "temperature"),
        ({"temperature_u": 2 * MILLION + 1}, "temperature"),
        ({"top_p_u": 0}, "top_p"),
        ({"frequency_penalty_u": 2 * MILLION + 1}, "frequency_penalty"),
        ({"frequency_penalty_u": -2 * MILLION - 1}, "frequency_penalty"),
        ({"presence_penalty_u": 3 * MILLION}, "presence_penalty"),
        ({"presence_penalty_u": -3 * MILLION}, "presence_penalty"),
        ({"logit_bias": [[3, 100 * MILLION + 1]]}, "logit_bias"),
        ({"logit_bias": [[3, -100 * MILLION - 1]]}, "logit_bias"),
        ({"logit_bias": [[259, 1]]}, "logit_bias"),
        ({"stop_ids": [5, 259]}, "stop_ids"),
        ({"max_tokens": 62}, "max_tokens"),
        ({"stop": ["x"], "vocabulary": None}, "stop"),
        ({"stop": ["1", "2", "3", "4", "5"]}, "stop"),
        ({"stop": ["x\ufffd"]}, "stop"),
    ],
)
def test_a_refusal_names_the_field(sampling: dict[str, Any], field: str) -> None:
    told = refusal(**sampling)
    assert told is not None
    assert told.startswith(f"{field}: ")


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature_u": 10_000},
        {"temperature_u": 2 * MILLION, "seed": 2**32 - 2},
        {"top_p_u": 1, "temperature_u": MILLION},
        {"frequency_penalty_u": 2 * MILLION, "presence_penalty_u": -2 * MILLION},
        {"logit_bias": [[258, 100 * MILLION]], "stop_ids": [258]},
        {"max_tokens": 61},
        {"stop": ["1", "2", "3", "4"]},
        {"stop_ids": [900], "logit_bias": [[901, 1]], "vocabulary": None},
    ],
)
def test_what_a_server_does_as_asked_is_not_refused(sampling: dict[str, Any]) -> None:
    assert refusal(**sampling) is None


def test_an_empty_prompt_and_a_decision_are_refused() -> None:
    assert (refusal_of(request_for((), 8), 64, 259) or "").startswith("prompt: ")
    decided = type(request_for(PROMPT, 8)).of(**request_for(PROMPT, 8).to_map() | {"decision": bytes(32)})
    assert (refusal_of(decided, 64, 259) or "").startswith("decision: ")


def test_every_parameter_is_sent_whatever_its_value() -> None:
    """VL-06: no default of the server or of the model's generation_config.json is left to decide anything."""
    greedy = completion_body(request_for(PROMPT, 8), PROMPT, "tiny", margins=False)
    told = {
        "temperature_u": 700_000, "top_p_u": 900_000, "top_k": 40, "min_p_u": 50_000, "frequency_penalty_u": 250_000,
        "presence_penalty_u": -1_500_000, "repetition_penalty_u": 1_100_000, "logit_bias": [[7, -500_000], [9, 2]],
        "seed": 11, "stop": ["a", "b"], "stop_ids": [3, 4], "ignore_eos": True,
    }  # fmt: skip
    sent = completion_body(request_for(PROMPT, 8, **told), PROMPT, "tiny", margins=False)
    assert sent.keys() == greedy.keys()
    assert sent == greedy | {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "frequency_penalty": 0.25,
        "presence_penalty": -1.5, "repetition_penalty": 1.1, "logit_bias": {"7": -0.5, "9": 0.000002},
        "seed": 11, "stop": ["a", "b"], "stop_token_ids": [3, 4], "ignore_eos": True,
    }  # fmt: skip
    # each field of a sampling has changed something above, so none is forgotten
    assert told.keys() == {f.name for f in msgspec.structs.fields(Sampling)} - {"grammar"}
    assert greedy | {"model": 0, "prompt": 0} == {
        "model": 0, "prompt": 0, "max_tokens": 8, "min_tokens": 0, "n": 1, "echo": False, "stream": True,
        "stream_options": {"include_usage": True}, "return_token_ids": True, "temperature": 0.0, "top_p": 1.0,
        "top_k": 0, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0,
        "logit_bias": None, "seed": None, "stop": [], "stop_token_ids": [], "ignore_eos": False,
        "include_stop_str_in_output": False, "skip_special_tokens": True, "use_beam_search": False,
        "length_penalty": 1.0, "watermarking": False,
    }  # fmt: skip


def test_a_seed_is_sent_where_something_is_drawn() -> None:
    drawn = completion_body(request_for(PROMPT, 8, temperature_u=MILLION, seed=0), PROMPT, "tiny", margins=False)
    assert drawn["seed"] == 0


def test_margins_cost_log_probabilities_and_only_then() -> None:
    plain, asked = (completion_body(request_for(PROMPT, 8), PROMPT, "tiny", margins=m) for m in (False, True))
    assert asked == plain | {"logprobs": 2, "return_tokens_as_token_ids": True}


@given(temperature=st.integers(0, 100 * MILLION), top_p=st.integers(0, MILLION), bias=st.integers(-MILLION, MILLION))
def test_millionths_survive_the_way_through_json(temperature: int, top_p: int, bias: int) -> None:
    asked = request_for(PROMPT, 8, temperature_u=temperature, top_p_u=top_p, logit_bias=[[3, bias]])
    body = json.loads(json.dumps(completion_body(asked, PROMPT, "tiny", margins=False)))
    sent = (body["temperature"], body["top_p"], body["logit_bias"]["3"])
    assert [round(value * MILLION) for value in sent] == [temperature, top_p, bias]


def test_grammar_goes_along_in_full() -> None:
    request = request_for(PROMPT, 4, grammar=bytes(32))
    told = completion_body(request, PROMPT, "m", margins=False, grammar='root ::= "a"')
    assert told["structured_outputs"] == {"grammar": 'root ::= "a"'}
    assert "structured_outputs" not in completion_body(request_for(PROMPT, 4), PROMPT, "m", margins=False)


@pytest.mark.parametrize(
    ("margins", "scores", "asked"), [(True, None, 2), (True, 5, 5), (False, 0, 0), (False, 20, 20)]
)
def test_log_probabilities_are_asked_for_by_id(margins: bool, scores: int | None, asked: int) -> None:
    told = completion_body(request_for(PROMPT, 4), PROMPT, "m", margins=margins, scores=scores)
    assert (told["logprobs"], told["return_tokens_as_token_ids"]) == (asked, True)
