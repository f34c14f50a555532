"""OpenAI's bodies: followed, known to change nothing, or refused by name."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import BadRequest
from mesh.gateway.jsonbody import parse_object
from mesh.gateway.openai import Call, parse_chat, parse_completion
from mesh.schema.limits import MAX_SEED

MESSAGES = [{"role": "user", "content": "hi"}]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1.5}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def drawn(size: int) -> bytes:
    return b"\x07" * size


def chat(**fields: Any) -> Call:
    return parse_chat(parse_object(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()), drawn)


def text(**fields: Any) -> Call:
    return parse_completion(parse_object(json.dumps({"model": "m", "prompt": "hi", **fields}).encode()), drawn)


def raw(numbers: str) -> Call:
    body = f'{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{numbers}}}'
    return parse_chat(parse_object(body.encode()), drawn)


def test_defaults_are_openais() -> None:
    call = chat()
    sampling = call.sampling
    assert (sampling.temperature_u, sampling.top_p_u, sampling.top_k, sampling.min_p_u) == (1_000_000, 1_000_000, 0, 0)
    assert (sampling.frequency_penalty_u, sampling.presence_penalty_u, sampling.repetition_penalty_u) == (0, 0, 10**6)
    assert (call.max_tokens, call.stream, call.include_usage, call.mesh.disclose) == (None, False, False, False)
    assert sampling.seed == int.from_bytes(drawn(8), "little") % (MAX_SEED + 1)
    assert call.mesh.nonce == drawn(32)


def test_seed_of_a_greedy_request_changes_nothing_and_is_zero() -> None:
    assert chat(temperature=0, seed=5).sampling.seed == 0
    assert chat(temperature=0.5, seed=5).sampling.seed == 5


@pytest.mark.parametrize(
    ("written", "millionths"),
    [("0.7", 700_000), ("0.000001", 1), ("7e-1", 700_000), ("0.70000000000", 700_000), ("2", 2_000_000), ("0e5", 0)],
)
def test_decimals_are_taken_exactly(written: str, millionths: int) -> None:
    assert raw(f'"temperature":{written}').sampling.temperature_u == millionths


@pytest.mark.parametrize("written", ["0.0000001", "0.7000000000000000000000000000000001", "1e-999999", "0.33333333"])
def test_more_than_six_decimals_are_refused_not_rounded(written: str) -> None:
    with pytest.raises(BadRequest, match="six decimals") as caught:
        raw(f'"temperature":{written}')
    assert caught.value.param == "temperature"


def test_penalties_may_be_negative() -> None:
    assert chat(frequency_penalty=-1.5).sampling.frequency_penalty_u == -1_500_000


def test_all_of_sampling_is_read() -> None:
    sampling = chat(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, presence_penalty=1, repetition_penalty=1.1, seed=9,
        logit_bias={"50": -100, "7": 1.5}, stop=["a", "b", "a"], stop_token_ids=[9, 3, 9], ignore_eos=True,
    ).sampling  # fmt: skip
    assert (sampling.top_p_u, sampling.top_k, sampling.min_p_u, sampling.presence_penalty_u) == (
        900_000,
        40,
        50_000,
        10**6,
    )
    assert (sampling.repetition_penalty_u, sampling.seed, sampling.ignore_eos) == (1_100_000, 9, True)
    assert sampling.logit_bias == [[7, 1_500_000], [50, -100_000_000]]
    assert (sampling.stop, sampling.stop_ids) == (["a", "b"], [3, 9])


def test_top_k_without_limit_has_two_spellings() -> None:
    assert chat(top_k=-1).sampling.top_k == chat(top_k=0).sampling.top_k == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}, "store": False},
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"service_tier": "auto", "modalities": ["text"], "parallel_tool_calls": True, "logit_bias": {}, "stop": []},
        dict.fromkeys(
            ("temperature", "tools", "n", "seed", "stop", "mesh", "logprobs", "stream", "max_tokens", "user")
        ),
    ],
)
def test_what_changes_nothing_is_let_through(fields: dict[str, Any]) -> None:
    assert chat(**fields).sampling == chat().sampling


# What says the same as nothing, so that a field that is there and one that is not are read alike.
OF_ANY = {
    "max_tokens": None, "temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "frequency_penalty": 0,
    "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}, "stop": [], "stop_token_ids": [],
    "ignore_eos": False, "stream": False, "stream_options": None, "n": 1, "mesh": {}, "user": "u", "store": False,
}  # fmt: skip
OF_CHAT = {
    "logprobs": False, "top_logprobs": None, "tools": [], "tool_choice": "none", "parallel_tool_calls": False,
    "response_format": {"type": "text"}, "functions": [], "function_call": "", "audio": {}, "prediction": None,
    "reasoning_effort": "", "verbosity": "", "web_search_options": {}, "modalities": ["text"],
}  # fmt: skip
OF_TEXT = {"logprobs": None, "echo": False, "best_of": 1, "suffix": ""}


@given(st.data())
def test_fields_that_say_nothing_read_as_if_they_were_not_there(data: st.DataObject) -> None:
    for call, own in ((chat, OF_CHAT), (text, OF_TEXT)):
        said: dict[str, Any] = OF_ANY | own
        some = data.draw(st.lists(st.sampled_from(sorted(said)), unique=True))
        assert call(**{name: said[name] for name in some}) == call()


@pytest.mark.parametrize("name", sorted(OF_ANY | OF_CHAT | OF_TEXT))
def test_every_field_is_followed_or_refused_by_its_name(name: str) -> None:
    for call, own in ((chat, OF_CHAT), (text, OF_TEXT)):
        with pytest.raises(BadRequest) as e:
            call(**{name: {"odd": [0]}})
        assert e.value.param is not None
        assert e.value.param.partition(".")[0] == name
        unknown = (e.value.param, e.value.code) == (name, "unknown_parameter")
        assert unknown is (name not in OF_ANY | own)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [TOOL], "parallel_tool_calls": False, "ignore_eos": True}, "ignore_eos"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"echo": True}, "echo"),  # of the other route
        ({"stream": "true"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "é" * 600}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"01": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"user": "u" * 513}, "user"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "x", "extra": 1}]}, "messages[0].extra"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"mesh": {"disclose": 1}}, "mesh.disclose"),
        ({"mesh": {"fidelity_floor": 4}}, "mesh.fidelity_floor"),
        ({"mesh": {"joule_ceiling_uj": -1}}, "mesh.joule_ceiling_uj"),
        ({"mesh": {"nonce": "abc"}}, "mesh.nonce"),
        ({"mesh": {"x": 1}}, "mesh.x"),
        ({"mesh": []}, "mesh"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"messages": MESSAGES}, "messages"),
    ],
)
def test_completion_refuses_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        text(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "as_text", "as_ids"),
    [("hi", "hi", None), (["hi"], "hi", None), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2)), ([], None, ())],
)
def test_prompt_is_text_or_ids(prompt: Any, as_text: str | None, as_ids: tuple[int, ...] | None) -> None:
    call = text(prompt=prompt, echo=False, best_of=1, suffix=None)
    assert (call.prompt, call.prompt_ids) == (as_text, as_ids)


def test_content_parts_are_lines_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = chat(messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "c", "refusal": None}])
    assert call.messages == ({"role": "system", "content": "a\nb"}, {"role": "user", "content": "c"})


def test_number_of_choices_and_log_probabilities_are_read() -> None:
    assert (chat(n=3).n, text(n=16).n, chat().n) == (3, 16, 1)
    assert (chat().logprobs, chat(logprobs=False).logprobs, chat(logprobs=True).logprobs) == (None, None, 0)
    assert (chat(logprobs=True, top_logprobs=20).logprobs, text(logprobs=0).logprobs, text(logprobs=5).logprobs) == (
        20,
        0,
        5,
    )


def test_tools_and_their_messages_are_read_for_a_template() -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"x": 0.5}, "strict": False},
    }
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    call = chat(tools=[tool], tool_choice="auto", messages=messages, parallel_tool_calls=True)
    json.dumps(call.tools)  # nothing in it that a template could not write
    assert call.tools[0]["function"] == {"name": "f", "description": "d", "parameters": {"x": 0.5}}
    assert call.messages == (
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1.5}}}],
        },
        {"role": "tool", "content": "r", "tool_call_id": "c"},
    )
    assert chat(tools=[tool], tool_choice="none").tools == ()


def test_forced_calls_are_read() -> None:
    other = {"type": "function", "function": {"name": "g", "strict": True}}
    assert chat(tools=[TOOL, other], tool_choice="required", parallel_tool_calls=False).forced == ("f", "g")
    named = {"type": "function", "function": {"name": "g"}}
    assert chat(tools=[TOOL, other], tool_choice=named).forced == ("g",)
    assert chat(tools=[TOOL], tool_choice="auto").forced == ()


def test_calls_that_the_model_may_make_are_read() -> None:
    other = {"type": "function", "function": {"name": "g", "strict": True}}
    free = chat(tools=[TOOL, other], parallel_tool_calls=False)
    assert (free.forced, free.strict, free.one_call, free.held) == ((), ("g",), True, True)
    assert not chat(tools=[TOOL], parallel_tool_calls=True).held
    forced = chat(tools=[TOOL, other], tool_choice="required", parallel_tool_calls=False)
    assert (forced.strict, forced.one_call, forced.held) == ((), False, True)
    none = chat(tools=[TOOL, other], tool_choice="none", parallel_tool_calls=False)
    assert (none.tools, none.strict, none.one_call, none.held) == ((), (), False, False)


def test_mesh_options_are_read() -> None:
    nonce = bytes(range(32))
    spellings = [nonce.hex(), nonce.hex().upper(), base64.urlsafe_b64encode(nonce).decode()]
    for written in [*spellings, spellings[2].rstrip("=")]:
        mesh = chat(mesh={"disclose": True, "fidelity_floor": 2, "joule_ceiling_uj": 5, "nonce": written}).mesh
        assert (mesh.disclose, mesh.fidelity_floor, mesh.joule_ceiling_uj, mesh.nonce) == (True, 2, 5, nonce)


# GW-08
@pytest.mark.parametrize(
    "fields", [{"max_tokens": 8}, {"max_completion_tokens": 8}, {"max_tokens": 8, "max_completion_tokens": 8}]
)
def test_cap_has_two_names(fields: dict[str, Any]) -> None:
    assert chat(**fields).max_tokens == text(**fields).max_tokens == 8


def test_caps_that_disagree_are_refused_naming_both() -> None:
    with pytest.raises(BadRequest, match=r"max_tokens: 8, but max_completion_tokens is 9"):
        chat(max_tokens=8, max_completion_tokens=9)


@pytest.mark.parametrize("cap", [0, -1, "8", 1.5, True, 2**31])
def test_cap_that_is_no_count_is_refused(cap: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(max_tokens=cap)
    assert caught.value.param == "max_tokens"


def test_refusals_do_not_quote_the_prompt() -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=[{"role": "user", "content": {"secret": "secret"}}])
    assert "secret" not in str(caught.value)
