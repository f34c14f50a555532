"""What an answer has to look like: `response_format`, and calls that a request makes certain.

A format is a grammar for the engine and a check for us: the engine is held to the one, and whether the answer is what
was asked for is decided here, by another library, on the text that goes out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.gateway.fields import Fields
from mesh.gateway.json_grammar import grammar_of
from mesh.gateway.messages import plain

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Format:
    """`schema` is what the answer is checked against, None where it is made of calls and not checked; `free`: it may be
    text, and only calls in it have a form. `param` is the request's field."""

    grammar: str
    schema: Mapping[str, Any] | bool | None
    param: str
    free: bool = False

    def verdict(self, text: str, *, cut: bool) -> str:
        """Whether a finished answer is one; `cut` where it reached its cap. Takes as long as the schema does."""
        if self.schema is not None and _valid(text, self.schema):
            return "satisfied"
        return "not satisfied (truncated)" if cut else "not satisfied"


def read_format(fields: Fields) -> Format | None:
    """The `response_format` of a request; None for text. Raises BadRequest for a schema that no answer can be held
    to."""
    form = fields.object("response_format")
    if form is None:
        return None
    kind = form.text("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise form.fault("type", "expected one of text, json_object, json_schema" if kind else "missing")
    told = form.object("json_schema") if kind == "json_schema" else None
    form.done()
    if kind == "text":
        return None
    schema: Mapping[str, Any] | bool = _ANY_OBJECT
    if kind == "json_schema":
        if told is None:
            raise form.fault("json_schema", "missing")
        if told.text("name") is None:
            raise told.fault("name", "missing")
        told.text("description")
        told.flag("strict")  # every answer is held to its schema
        schema = plain(told.take("schema"))
        told.done()
        if type(schema) is not dict:
            raise told.fault("schema", "missing" if schema is None else "expected an object")
    param = "response_format"
    return Format(grammar_of(schema, param=param), schema, param)


def forced_call(tools: Sequence[Mapping[str, Any]], form: str) -> Format:
    """One call of one of `tools`, as a template of this `form` has the model write it. Raises BadRequest for parameters
    that cannot be held to."""
    root = '"<tool_call>" space {} space "</tool_call>"' if form == "hermes" else "{}"
    calls = _calls(tools, form, [tool["function"]["name"] for tool in tools])
    return Format(grammar_of(calls, param="tools", root=root), None, "tools")


def free_calls(tools: Sequence[Mapping[str, Any]], form: str, *, strict: Collection[str], once: bool) -> Format:
    """Text with calls of `tools` in it, as a template of this `form` has them written; the arguments of those in
    `strict` are held to their parameters, and `once` there is at most one call. Raises BadRequest for parameters that
    cannot be held to."""
    root, more = _tagged_text(once=once) if form == "hermes" else _bare_text(once=once)
    grammar = grammar_of(_calls(tools, form, strict), param="tools", root=root, more=more)
    return Format(grammar, None, "tools", free=True)


def _calls(tools: Sequence[Mapping[str, Any]], form: str, strict: Collection[str]) -> Mapping[str, Any]:
    """The schema of one call of one of `tools`."""
    arguments = "arguments" if form == "hermes" else "parameters"
    calls = []
    for i, tool in enumerate(tools):
        function = tool["function"]
        where = f"#/anyOf/{i}/properties/{arguments}"
        parameters = _moved(function["parameters"], where) if function["name"] in strict else _ANY_OBJECT
        properties = {"name": {"const": function["name"]}, arguments: parameters}
        calls.append({"type": "object", "properties": properties, "required": list(properties)})
    return {"anyOf": calls}


def _tagged_text(*, once: bool) -> tuple[str, dict[str, str]]:
    """Text in which `<tool_call>` begins a call: one rule for each beginning of the tag that has just been said, which
    goes on with any other character as text. A `once` called text goes on without the tag."""
    more = _text_rules("text-", "call")
    more["call"] = f'space {{}} space "{_CLOSE}" {"rest-a" if once else "text-a"}'
    if once:
        more |= _text_rules("rest-", None)
    return "text-a", more


def _text_rules(prefix: str, after: str | None) -> dict[str, str]:
    """The rules of text in front of `after`, or without the tag where that is None; the first is called `a`."""
    names = [prefix + chr(ord("a") + i) for i in range(len(_OPEN))]
    rules = {}
    for name, said, following in zip(names, _OPEN, [*names[1:], after], strict=True):
        ways = ['""', f"[^{''.join(sorted({said, _OPEN[0]}))}] {names[0]}"]
        if following is not None:
            ways.append(f'"{said}" {following}')
        if said != _OPEN[0]:
            ways.append(f'"{_OPEN[0]}" {names[1]}')
        rules[name] = " | ".join(ways)
    return rules


def _bare_text(*, once: bool) -> tuple[str, dict[str, str]]:
    """An answer that is nothing but calls, or text that does not begin as they do."""
    calls = "{} space" if once else '{} space (";" space {} space)*'
    text = r"[^{ \t\r\n] [^\x00]*"
    return "blank* (calls | text)?", {"blank": r"[ \t\r\n]", "calls": calls, "text": text}


def _moved(schema: Any, where: str) -> Any:
    """A schema that has become a part of another: its references are from `where` it is now."""
    if isinstance(schema, list):
        return [_moved(item, where) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, where) for key, value in schema.items()}
    ref = moved.get("$ref")
    return {**moved, "$ref": where + ref[1:]} if isinstance(ref, str) and ref.startswith("#") else moved


def _valid(text: str, schema: Mapping[str, Any] | bool) -> bool:
    import jsonschema  # a quarter of a second, for those who need it

    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))
    except (ValueError, RecursionError):
        return False
