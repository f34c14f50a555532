"""Answers that have to have a format: held to it by a grammar, and judged by another library."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.errors import BadRequest
from mesh.gateway.formats import free_calls
from mesh.gateway.json_grammar import grammar_of, literal
from mesh.replay.replayer import replay
from mesh.schema.disclosure import Disclosure
from mesh.schema.ids import ContentId
from tests.gateway.serving import NONCE, House, Reply, Scripted, content, house, script
from tests.gateway.test_toolcalls import HERMES, TIME, WEATHER
from tests.support.models import smollm2_path
from tests.support.tiny_gguf import write_tiny_gguf

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "boolean"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 'q"\\', 1.5, None]}},
        "required": ["a", "b"],
    },
    {
        "type": "object",
        "properties": {"é\n": {"const": "东"}, "b": {"type": "null"}, "c": {"type": "boolean"}},
        "required": ["b"],
    },
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "array", "items": {"type": "string", "maxLength": 3, "minLength": 1}, "minItems": 2, "maxItems": 2},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "maxItems": 0},
    {"type": ["integer", "null"], "title": "ignored"},
    {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 5}]},
    {"type": "object", "properties": {"x": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None}}},
    TREE,
]  # fmt: skip


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def told(reply: Reply) -> Any:
    return reply.events[-1]["mesh"] if b"data: " in reply.body else reply.json["mesh"]


def question(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, **fields}


# VL-08
def test_random_answers_of_a_random_model_all_fit_their_schema(tmp_path: Path) -> None:
    async def check(gate: House, schema: dict[str, Any], seed: int) -> str:
        reply = await gate.post(question(response_format=strict(schema), seed=seed))
        assert reply.status == 200
        said, mesh = content(reply), told(reply)
        if reply.json["choices"][0]["finish_reason"] == "length":
            assert mesh["format"] == "not satisfied (truncated)"
            return "cut"
        valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(said))
        assert mesh["format"] == ("satisfied" if valid else "not satisfied")
        # bytes that are no characters count as fewer for the grammar than the marks that stand for them here
        assert valid or "\ufffd" in said
        return said

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny"))
        async with house(tmp_path / "house", engine) as gate:
            for schema in SCHEMAS:
                said = await asyncio.gather(*(check(gate, schema, seed) for seed in range(6)))
                assert set(said) != {"cut"}, schema

    asyncio.run(main())


# VL-08
@pytest.mark.parametrize("streamed", [False, True])
def test_answer_that_the_cap_cuts_is_said_to_be_cut(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny"))
        async with house(tmp_path / "house", engine) as gate:
            for form in ({"type": "json_object"}, strict({})):
                reply = await gate.post(
                    question(response_format=form, max_tokens=2, seed=1, stream=streamed, logit_bias={})
                )
                choice = (reply.events[-1] if streamed else reply.json)["choices"][0]
                if choice["finish_reason"] == "length":
                    assert told(reply)["format"] == "not satisfied (truncated)"

    asyncio.run(main())


def test_grammar_of_a_serve_replays_once_the_engine_is_told_it(tmp_path: Path) -> None:
    async def main() -> None:
        path = write_tiny_gguf(tmp_path / "tiny.gguf")
        engine = await GgufEngine.start(GgufConfig(path, "tiny"))
        async with house(tmp_path / "house", engine) as gate:
            mesh = {"disclose": True, "nonce": NONCE}
            replies = [
                await gate.post(question(response_format=strict(SCHEMAS[0]), mesh=mesh, stream=streamed, **how))
                for streamed, how in ((False, {"temperature": 0}), (True, {"temperature": 0}), (True, {"seed": 3}))
            ]
            assert content(replies[0]) == content(replies[1])
            other = await GgufEngine.start(GgufConfig(path, "tiny"))
            for reply in replies:
                made = told(reply)
                disclosure = Disclosure.from_bytes(base64.urlsafe_b64decode(made["disclosure"] + "=="))
                sealed = gate.receipt(made["receipt_id"])
                text = made["grammar_text"]
                assert disclosure.request.sampling.grammar == bytes(ContentId.of_bytes(text.encode()))
                assert made["grammar"] == ContentId.of_bytes(text.encode()).text
                if reply is replies[0]:
                    blind = await replay(sealed.envelope, disclosure, other, {gate.steward.public})
                    assert (blind.kind, blind.reason) == ("not-replayable", "engine-failed")
                other.learn(text)
                verdict = await replay(sealed.envelope, disclosure, other, {gate.steward.public})
                assert (verdict.kind, verdict.output) == ("verified", "matches")
            await other.close()

    asyncio.run(main())


def test_grammar_that_the_library_does_not_read_fails_that_serve_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("mesh.gateway.formats.grammar_of", lambda *args, **named: "root ::= nothing-of-the-kind\n")

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny"))
        async with house(tmp_path / "house", engine) as gate:
            process = engine.process
            reply = await gate.post(question(response_format={"type": "json_object"}))
            assert reply.code == (502, "engine-failed")
            assert (await gate.post(question(max_tokens=2))).status == 200
            assert engine.process == process

    asyncio.run(main())


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "xml"}, "response_format.type"),
        ({}, "response_format.type"),
        ({"type": "json_object", "x": 1}, "response_format.x"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        (strict({"type": "string", "pattern": "a"}), "response_format"),
        ({"type": "json_object"}, "response_format"),  # the engine cannot
    ],
)
def test_what_cannot_be_held_to_is_refused_by_name(tmp_path: Path, form: Any, param: str) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"{}"])) as gate:
            reply = await gate.post(script(response_format=form))
            assert (reply.status, reply.error["param"]) == (400, param)
            assert gate.steward.reader.count() == 0
            assert (await gate.post(script(response_format={"type": "text"}))).status == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "pattern": "^a$"}, "'pattern'"),
        ({"type": "integer", "minimum": 1}, "'minimum'"),
        (
            {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
            r"\.properties\.a: keyword 'uniqueItems'",
        ),
        ({"oneOf": [{}]}, "'oneOf'"),
        ({"properties": {}}, "'properties' without a type"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, "additionalProperties"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required"),
        ({"type": "thing"}, "type"),
        ({"$ref": "http://x"}, "itself"),
        ({"$ref": "#/$defs/x"}, "not there"),
        ({"$ref": "#"}, "nothing but itself"),
        (
            {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"},
            "nothing but itself",
        ),
        ({"enum": []}, "empty"),
        ({"anyOf": []}, "empty"),
        ({"type": "string", "maxLength": 1001}, "1000"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "less than"),
        ({"type": "object", "properties": {"a": False}}, "no value"),
        ({"enum": ["x" * 70_000]}, "bytes"),
    ],
)  # fmt: skip
def test_schema_that_cannot_be_held_to_names_its_keyword(schema: Any, named: str) -> None:
    with pytest.raises(BadRequest, match=named) as caught:
        grammar_of(schema, param="response_format")
    assert caught.value.param == "response_format"


def test_grammar_is_the_same_text_for_the_same_schema() -> None:
    assert grammar_of({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, param="p") == (
        'root ::= rule-b space\nrule-a ::= "," space "\\"a\\"" space ":" space null space\n'
        'rule-b ::= "{" space "\\"a\\"" space ":" space null space "}"\n'
        'space ::= | " " | "\\n" [ \\t]{0,20}\nnull ::= "null"\n'
    )
    assert literal('a"\\\n\x01é') == '"a\\"\\\\\\n\\x01é"'


def test_forced_call_is_one_call_with_arguments_that_fit(tmp_path: Path) -> None:
    async def main() -> None:
        config = GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny", chat_template=HERMES, context_tokens=2048)
        engine = await GgufEngine.start(config)
        tight = {"type": "object", "properties": {"city": {"enum": ["東京", "Rome"]}}, "required": ["city"]}
        weather = {"type": "function", "function": {**WEATHER["function"], "parameters": tight, "strict": True}}  # type: ignore[dict-item]
        async with house(tmp_path / "house", engine) as gate:
            for seed, choice in enumerate(["required", {"type": "function", "function": {"name": "weather"}}] * 3):
                tools = [weather, TIME] if choice != "required" else [weather]
                reply = await gate.post(question(tools=tools, tool_choice=choice, seed=seed, parallel_tool_calls=False))
                (one,) = reply.json["choices"]
                assert (one["finish_reason"], one["message"]["content"]) == ("tool_calls", None)
                (call,) = one["message"]["tool_calls"]
                assert call["function"]["name"] == "weather"
                jsonschema.validate(json.loads(call["function"]["arguments"]), tight)
                assert reply.json["mesh"]["format"] == "satisfied"

    asyncio.run(main())


@given(st.text(alphabet="<tol_cax>", max_size=60), st.booleans())
def test_text_in_front_of_a_call_is_any_text_without_the_tag(text: str, once: bool) -> None:
    """Each rule is followed as a grammar is: by every way that the next character allows."""
    strict = free_calls([WEATHER], "hermes", strict=["weather"], once=once).grammar
    lines = (line.split(" ::= ", 1) for line in strict.splitlines())
    rules = {
        name: [way.split(" ") for way in rule.split(" | ")] for name, rule in lines if name[:5] in ("text-", "rest-")
    }
    for first in ("text-a", "rest-a") if once else ("text-a",):
        at, called = first, False
        for char in text:
            assert ['""'] in rules[at]  # it may end anywhere
            ways = [way for way in rules[at] if way[0] == f'"{char}"' or (way[0][:2] == "[^" and char not in way[0])]
            (way,) = ways or [["", "call"]]
            if not ways or way[1] == "call":
                called = True
                break
            at = way[1]
        assert called == ("<tool_call>" in text)
        # without a call to come the tag cannot be said at all
        assert any(way[-1] == "call" for way in rules[first[:5] + "k"]) == (first == "text-a")


def test_an_answer_that_may_be_bare_calls_is_those_or_text() -> None:
    once = free_calls([WEATHER], "llama", strict=[], once=True).grammar
    assert once.startswith("root ::= blank* (calls | text)?\n")
    assert '";"' not in once
    assert '";"' in free_calls([WEATHER], "llama", strict=[], once=False).grammar


class Colour(pydantic.BaseModel):
    name: Literal["red", "green", "blue"]
    warm: bool


class Palette(pydantic.BaseModel):
    colours: list[Colour] = pydantic.Field(max_length=2)


class Weather(pydantic.BaseModel):
    """The weather."""

    city: Literal["Paris", "Rome"]


@pytest.mark.deep
@pytest.mark.real_model
def test_openai_sdk_parses_what_a_real_model_says(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Give me one or two colours as JSON."}]

    def sync_parse(url: str) -> Colour | None:
        with openai.OpenAI(base_url=url + "/v1", api_key="none") as client:
            answer = client.chat.completions.parse(
                model="smollm2",
                messages=said,
                response_format=Colour,
                max_tokens=60,
                temperature=0,  # type: ignore[arg-type]
            )
            return answer.choices[0].message.parsed

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(smollm2_path(), "smollm2", chat_template=HERMES))
        async with house(tmp_path, engine) as gate, gate.sdk() as client:
            assert isinstance(await asyncio.to_thread(sync_parse, gate.url), Colour)
            call: Any = {"model": "smollm2", "messages": said, "max_tokens": 150, "temperature": 0}
            async with client.chat.completions.stream(**call, response_format=Palette) as helper:
                async for _ in helper:
                    pass
                final = await helper.get_final_completion()
            parsed = final.choices[0].message.parsed
            assert isinstance(parsed, Palette)
            tools = [openai.pydantic_function_tool(Weather)]
            async with client.chat.completions.stream(**call, tools=tools, tool_choice="required") as helper:
                async for _ in helper:
                    pass
                final = await helper.get_final_completion()
            (made,) = final.choices[0].message.tool_calls or ()
            assert isinstance(made.function.parsed_arguments, Weather)

    asyncio.run(main())


@pytest.mark.deep
@pytest.mark.real_model
def test_strict_tools_are_called_with_what_fits_where_the_model_may_choose(tmp_path: Path) -> None:
    def turn(city: str) -> list[dict[str, Any]]:
        call = {"name": "Weather", "arguments": json.dumps({"city": city})}
        return [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": city, "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": city, "content": "fine"},
        ]

    said: Any = [*turn("Paris"), *turn("Rome"), {"role": "user", "content": "What is the weather in Berlin?"}]
    tools: Any = [openai.pydantic_function_tool(Weather)]

    def sync_stream(url: str) -> Any:
        with openai.OpenAI(base_url=url + "/v1", api_key="none") as client:
            call: Any = {"model": "smollm2", "messages": said, "tools": tools, "max_tokens": 60, "temperature": 0}
            with client.chat.completions.stream(**call) as helper:
                for _ in helper:
                    pass
                return helper.get_final_completion().choices[0].message

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(smollm2_path(), "smollm2", chat_template=HERMES))
        async with house(tmp_path, engine) as gate, gate.sdk() as client:
            call: Any = {"model": "smollm2", "messages": said, "max_tokens": 60, "temperature": 0}
            answer = await client.chat.completions.parse(**call, tools=tools, parallel_tool_calls=False)
            made = answer.choices[0].message.tool_calls or []
            # unheld it says Berlin, which the model of the arguments does not know
            assert [type(one.function.parsed_arguments) for one in made] == [Weather]
            streamed = await asyncio.to_thread(sync_stream, gate.url)
            assert streamed.tool_calls[0].function.parsed_arguments == made[0].function.parsed_arguments
            assert answer.model_extra is not None
            assert answer.model_extra["mesh"]["format"] == "satisfied"
            loose = {"type": "function", "function": {**tools[0]["function"], "strict": False}}
            free = await gate.post({**call, "tools": [loose]})
            assert "Berlin" in free.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]

    asyncio.run(main())
