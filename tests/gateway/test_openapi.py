"""The description that the gateway serves, held against its routes, its readers of requests, and its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mesh.errors import BadRequest
from mesh.gateway.deciding import parse_decide
from mesh.gateway.fields import Fields
from mesh.gateway.jsonbody import parse_object
from mesh.gateway.openai import parse_chat, parse_completion
from mesh.gateway.openapi import describe
from mesh.gateway.page import Page
from mesh.gateway.tokens import parse_detokenize, parse_tokenize
from tests.blueprint.bodies import verified
from tests.gateway.serving import CHAT, DECIDE, TEXT, Deciding, Reply, Scoring, ask, house, question, script

PAGE = Page.installed().paths
DESCRIBED = describe(["m"], metrics=True, guarded=False)
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": False}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LEAST: dict[str, dict[str, Any]] = {
    "ChatRequest": {"model": "m", "messages": MESSAGES},
    "TextRequest": {"model": "m", "prompt": "hi"},
    "DecideRequest": {"model": "m", "messages": MESSAGES, "options": ["yes", "no"]},
    "TokenizeRequest": {"content": "hi"},
    "DetokenizeRequest": {"tokens": [1]},
}
PARSERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "ChatRequest": lambda body: parse_chat(body, bytes),
    "TextRequest": lambda body: parse_completion(body, bytes),
    "DecideRequest": lambda body: parse_decide(body, bytes),
    "TokenizeRequest": parse_tokenize,
    "DetokenizeRequest": parse_detokenize,
}
# For each field values that are fine beside the least request, whatever else goes with them.
FINE: dict[str, dict[str, list[Any]]] = {
    "ChatRequest": {
        "messages": [
            [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"text": "b"}], "name": ""}],
            [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
            [{"role": "assistant", "content": "a", "tool_calls": [], "refusal": None}],
            [{"role": "tool", "content": "1", "tool_call_id": "1"}],
        ],
        "max_tokens": [1, None], "max_completion_tokens": [2**31 - 1], "temperature": [0, 100, 0.000001],
        "top_p": [0, 1], "top_k": [-1, 2**32 - 1], "min_p": [1], "frequency_penalty": [-1000, 2.5],
        "presence_penalty": [1000], "repetition_penalty": [0.1, 100], "logit_bias": [{"0": 1, "4294967295": -1000}],
        "seed": [0, 2**32 - 2], "stop": ["a", ["a", "b"], []], "stop_token_ids": [[0, 5]], "ignore_eos": [True],
        "n": [1, 16], "stream": [True], "mesh": [{}, {"disclose": True, "deadline_s": 1}], "user": ["u"],
        "safety_identifier": [""], "prompt_cache_key": ["k"], "metadata": [{"a": "b"}, {}], "store": [False],
        "service_tier": ["auto"], "logprobs": [True], "tools": [[], [TOOL], [{"function": {"name": "f"}}]],
        "tool_choice": ["none"], "parallel_tool_calls": [False], "modalities": [["text"]],
        "response_format": [{"type": "text"}, {"type": "json_object"},
                            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}],
        "functions": [[]], "function_call": [""], "audio": [{}], "prediction": [None], "reasoning_effort": [""],
        "verbosity": [None], "web_search_options": [{}],
        # these go only beside others
        "stream_options": [None], "top_logprobs": [None],
    },
    "TextRequest": {
        "prompt": ["", [1, 2], ["hi"], [[1, 2]]], "logprobs": [0, 20], "echo": [False], "best_of": [1], "suffix": [""],
    },
    "DecideRequest": {"options": [["a", "b", "c"]], "ignore_eos": [True, False], "stream": [False], "prompt": [None]},
    "TokenizeRequest": {"parse_special": [True], "add_special": [False], "with_pieces": [True], "model": ["m"]},
    "DetokenizeRequest": {"tokens": [[], [2**32 - 1]], "model": ["m"]},
}  # fmt: skip
WRONG: dict[str, dict[str, list[Any]]] = {
    "ChatRequest": {
        "messages": [[], "hi", [{"role": "user"}], [{"role": "king", "content": ""}],
                     [{"role": "user", "content": None}], [{"role": "tool", "content": "1"}],
                     [{"role": "assistant", "tool_calls": []}],
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
                     [{"role": "user", "content": "", "name": "Ada"}]],
        "max_tokens": [0, 2**31, "8", 1.5, True], "temperature": [-1, 101, "1"], "top_p": [1.5], "top_k": [-2],
        "logit_bias": [{"a": 1}, {"01": 1}, {"1": 1001}, []], "seed": [2**32 - 1, -1], "stop": [[1], "", ["a"] * 17],
        "stop_token_ids": [[-1], [0] * 257], "ignore_eos": [1], "n": [0, 17], "mesh": [{"more": 1}, []],
        "user": [7, "u" * 513], "metadata": [{"a": 1}], "store": [True], "service_tier": ["priority"],
        "tools": [[{"type": "web"}], [{"function": {}}], [{"function": {"name": "a b"}}]], "tool_choice": ["any", 1],
        "response_format": [{"type": "xml"}, {"type": "json_schema"}, {}], "functions": [[{"name": "f"}]],
        "modalities": [["audio"]], "reasoning_effort": ["low"], "other": [1],
    },
    "TextRequest": {"prompt": [None, 7, ["a", "b"], [-1]], "echo": [True], "best_of": [2], "suffix": ["x"],
                    "logprobs": [21, True], "messages": [MESSAGES]},
    "DecideRequest": {"options": [None, [], ["a"], ["a", ""], ["a", "a"], ["a", 1], ["x"] * 65], "stream": [True],
                      "prompt": ["hi"], "temperature": [0], "max_tokens": [1]},
    "TokenizeRequest": {"content": [None, 7], "prompt": ["hi"], "add_special_tokens": [True], "with_pieces": [1]},
    "DetokenizeRequest": {"tokens": [None, "x", [2**32], [1.5]]},
}  # fmt: skip


def schema(name: str, described: dict[str, Any] = DESCRIBED) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}", "components": described["components"]}


def fits(name: str, body: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema(name)).is_valid(body))


def reads(name: str, body: Any) -> bool:
    try:
        PARSERS[name](parse_object(json.dumps(body).encode()))
    except BadRequest:
        return False
    return True


def test_every_route_is_described_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.get("/openapi.json")
            assert reply.status == 200
            described = reply.json
            assert described["security"] == []
            assert gate.gateway._runner is not None
            served = {(path, method.lower()) for method, path in gate.gateway._runner.front.paths if path not in PAGE}
            served -= {(path, method) for path, method in served if method == "head"}
            told = {(path, method) for path, operations in described["paths"].items() for method in operations}
            assert told == served
            assert described["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == ["reference"]
        async with house(tmp_path, keys=["b3:" + "0" * 64]) as gate:
            assert (await gate.get("/openapi.json")).code == (401, "missing_api_key")

    asyncio.run(main())


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_described_is_what_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    begin, among, any_of = Fields.__init__, Fields.among, Fields.any_of

    class Noticing(dict[str, Any]):
        def pop(self, field: str, default: Any = None) -> Any:
            asked.add(field)
            return super().pop(field, default)

    def of_a_body(self: Fields, values: dict[str, Any], *, within: str = "") -> None:
        begin(self, values, within=within)
        self._values = self._values if within else Noticing(self._values)

    def asks_among(self: Fields, fields: Iterable[str]) -> list[str]:
        asked.update(() if self._within else fields)
        return among(self, fields)

    def asks_any_of(self: Fields, fields: frozenset[str]) -> bool:
        asked.update(() if self._within else fields)
        return any_of(self, fields)

    monkeypatch.setattr(Fields, "__init__", of_a_body)
    monkeypatch.setattr(Fields, "among", asks_among)
    monkeypatch.setattr(Fields, "any_of", asks_any_of)
    bodies = [LEAST[name] | ({"mesh": {}, "user": "u"} if "oken" not in name else {})]
    if name == "TokenizeRequest":
        bodies += [{"prompt": "hi"}, {"messages": MESSAGES}]
    if name == "DecideRequest":
        bodies += [{"model": "m", "prompt": "hi", "options": ["yes", "no"], "mesh": {}, "user": "u"}]
    for body in bodies:
        assert reads(name, body)
    forms = DESCRIBED["components"]["schemas"][name]
    described = {field for form in forms.get("anyOf", [forms]) for field in form["properties"]}
    assert described == asked


@pytest.mark.parametrize("name", PARSERS)
def test_what_fits_is_accepted_and_what_does_not_is_refused(name: str) -> None:
    shared = {field: FINE["ChatRequest"][field] for field in TEXT_TOO} if name == "TextRequest" else {}
    fine = FINE[name] | shared
    least = LEAST[name]
    assert fits(name, least)
    assert reads(name, least)
    for field, values in fine.items():
        for value in values:
            body = least | {field: value}
            assert fits(name, body), (field, value)
            assert reads(name, body), (field, value)
    for field, values in WRONG[name].items():
        for value in values:
            body = least | {field: value}
            assert not fits(name, body), (field, value)
            assert not reads(name, body), (field, value)


TEXT_TOO = {"temperature", "stop", "seed", "n", "user", "mesh", "logit_bias"}


def test_every_field_has_a_value_that_was_tried() -> None:
    for name in ("ChatRequest", "DecideRequest", "TokenizeRequest", "DetokenizeRequest"):
        forms = DESCRIBED["components"]["schemas"][name]
        tried = {*FINE[name], *LEAST[name], *(FINE["ChatRequest"] if name == "DecideRequest" else ())}
        tried |= {"model", "prompt", "messages", "add_special_tokens", "return_token_strs", "add_generation_prompt"}
        tried |= {"continue_final_message"}
        assert {field for form in forms.get("anyOf", [forms]) for field in form["properties"]} <= tried


def check(described: dict[str, Any], path: str, reply: Reply, method: str = "post") -> None:
    """That an answer is one that is described."""
    responses = described["paths"][path][method]["responses"]
    content = responses[str(reply.status)]["content"]
    kind = reply.headers["Content-Type"].split(";")[0]
    assert kind in content, (path, kind)
    if kind == "application/json":
        jsonschema.Draft202012Validator(content[kind]["schema"] | {"components": described["components"]}).validate(
            reply.json
        )


def test_answers_are_as_described(tmp_path: Path) -> None:
    async def main() -> None:
        scoring = Scoring([b"he", b"llo"])
        scoring.tool_form = "hermes"
        blueprint = verified()
        scoring.blueprint_id = blueprint.id
        async with house(tmp_path, others=[scoring, Deciding()], keep_ns=10**15, blueprints=[blueprint]) as gate:
            described = (await gate.get("/openapi.json")).json
            chats = (
                ask(), ask(stream=True), ask(n=2), ask(max_tokens=0), ask(model="none"), ask(max_tokens=10**7),
                script("hi", logprobs=True, top_logprobs=2), script("hi", tools=[TOOL]), ask(mesh={"disclose": True}),
            )  # fmt: skip
            statuses, last = [], ""
            for body in chats:
                reply = await gate.post(body)
                statuses.append(reply.status)
                check(described, CHAT, reply)
            assert statuses == [200, 200, 200, 400, 404, 400, 200, 200, 200]
            for path, body in (
                (TEXT, {"model": "reference", "prompt": "hi", "max_tokens": 2}),
                (TEXT, {"model": "scripted", "prompt": "hi", "max_tokens": 2, "logprobs": 1}),
                (DECIDE, question()),
                ("/tokenize", {"model": "reference", "content": "hi", "with_pieces": True}),
                ("/tokenize", {"model": "reference", "prompt": "hi", "return_token_strs": True}),
                ("/tokenize", {"model": "reference", "messages": MESSAGES}),
                ("/detokenize", {"model": "reference", "tokens": [1]}),
            ):
                reply = await gate.post(body, path=path)
                assert reply.status == 200
                check(described, path, reply)
                last = reply.headers.get("Mesh-Receipt", last)
            steward = (await gate.get("/mesh/v1/steward")).json
            digest = steward["engines"][0]["settings_digest"]
            names = {"{id}": last, "{digest}": digest, "{model}": "reference",
                     "{blueprint_id}": f"sha256:{blueprint.id.hex()}"}  # fmt: skip
            for path, operations in described["paths"].items():
                if "get" not in operations:
                    continue
                address = path
                for name, value in names.items():
                    address = address.replace(name, value)
                for accept in ("*/*", "application/json"):
                    reply = await gate.get(address, Accept=accept)
                    # nobody here bears a grant, or computes over several hosts
                    others = {"/mesh/v1/grant/balance": 400, "/mesh/v1/routes/{digest}": 404}
                    assert reply.status == others.get(path, 200), path
                    check(described, path, reply, "get")
                if address != path:
                    check(described, path, await gate.get(path.replace("{", "").replace("}", "")), "get")

    asyncio.run(main())


def test_no_engine_makes_embeddings_and_each_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, others=[Deciding()], shared="any") as gate:
            body = {"model": "any", "input": "hello"}
            reply = await gate.post(body, path="/v1/embeddings")
            assert reply.code == (400, "unsupported_value")
            assert reply.error["param"] == "model"
            assert "reference: the reference engine has no weights" in reply.error["message"]
            assert "deciding: " in reply.error["message"]
            alone = await gate.post({**body, "model": "reference"}, path="/v1/embeddings")
            why = "the reference engine has no weights, and so no vectors"
            assert alone.error["message"] == f"model 'reference' makes no embeddings: {why}"
            assert (await gate.post({**body, "model": "none"}, path="/v1/embeddings")).status == 404
            assert (await gate.post({"model": "any"}, path="/v1/embeddings")).error["param"] == "input"
            assert (await gate.post({"input": "x"}, path="/v1/embeddings")).error["param"] == "model"
            assert gate.steward.reader.count() == 0

    asyncio.run(main())
