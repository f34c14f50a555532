"""JSON schemas as grammars in llama.cpp's notation (GBNF), for the part of JSON Schema that can be held exactly.

Pure, and the same schema gives the same text everywhere: its digest is what a receipt's request holds. What is not
listed here is refused by name. Objects have the properties that are listed, in their order, and no others;
numbers are bounded in digits, so that no answer is an endless one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mesh.errors import BadRequest

MAX_GRAMMAR_BYTES: Final = 64 * 1024
_MAX_REPEAT: Final = 1000
_MAX_DEPTH: Final = 48

_SHARED: Final = {
    "space": r'| " " | "\n" [ \t]{0,20}',
    "char": r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" unit)',
    # of UTF-16, without the halves of surrogate pairs
    "unit": r"[0-9a-cA-Ce-fE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}",
    "string": r'"\"" char* "\""',
    "integer": r'"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": r'integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": r'"true" | "false"',
    "null": r'"null"',
    "value": "object | array | string | number | boolean | null",
    "object": r'"{" space (string space ":" space value space ("," space string space ":" space value space)*)? "}"',
    "array": r'"[" space (value space ("," space value space)*)? "]"',
}
# What says something to people and nothing of which values are valid.
_ANNOTATIONS: Final = frozenset(
    ("title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly")
)
_NAME = re.compile(r"[a-z][a-z-]*")
_CHOICE = re.compile(r"[a-z-]+(?: \| [a-z-]+)*")


def grammar_of(
    schema: Mapping[str, Any] | bool, *, param: str, root: str = "{} space", more: Mapping[str, str] | None = None
) -> str:
    """The grammar of exactly those values that `schema` allows and this module can spell. `root` is the whole answer,
    with `{}` for the value, `more` are rules that it may name and that may name it. Raises BadRequest naming the
    keyword under `param` that cannot be held to."""
    writer = _Writer(schema, param)
    value = writer.rule(schema, "", 0)
    text = writer.text(
        root.replace("{}", value), {name: rule.replace("{}", value) for name, rule in (more or {}).items()}
    )
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise BadRequest(f"{param}: its grammar is over {MAX_GRAMMAR_BYTES} bytes", code="invalid_value", param=param)
    return text


def literal(text: str) -> str:
    """A terminal that spells `text`."""
    escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    spelled = "".join(escapes.get(c, c if c >= " " and c != "\x7f" else f"\\x{ord(c):02X}") for c in text)
    return f'"{spelled}"'


class _Writer:
    def __init__(self, schema: Mapping[str, Any] | bool, param: str) -> None:
        self._root, self._param = schema, param
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._refs: dict[str, str] = {}

    def text(self, root: str, more: Mapping[str, str]) -> str:
        used, look = set[str](), [root, *more.values(), *self._rules.values()]
        while look:
            for name in _NAME.findall(re.sub(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]', " ", look.pop())):
                if name in _SHARED and name not in used:
                    used.add(name)
                    look.append(_SHARED[name])
        lines = {"root": root, **more, **self._rules, **{name: rule for name, rule in _SHARED.items() if name in used}}
        return "".join(f"{name} ::= {rule}\n" for name, rule in lines.items())

    def rule(self, schema: Any, where: str, depth: int) -> str:
        """What stands for a value of `schema` in another rule: a name or a terminal."""
        if depth > _MAX_DEPTH:
            raise self._fault(where, f"nested deeper than {_MAX_DEPTH}")
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, Mapping):
            raise self._fault(where, "no value is valid" if schema is False else "expected a schema")
        given = {
            key: value
            for key, value in schema.items()
            if key not in _ANNOTATIONS and key not in ("$defs", "definitions")
        }
        if not given:
            return "value"
        match given:
            case {"$ref": ref, **rest}:
                self._only(rest, (), where)
                return self._ref(ref, where, depth)
            case {"const": value, **rest}:
                return self._enum([value], rest, where)
            case {"enum": list(values), **rest}:
                return self._enum(values, rest, where)
            case {"anyOf": list(options), **rest}:
                self._only(rest, (), where)
                return self._any([(option, f"{where}.anyOf[{i}]") for i, option in enumerate(options)], depth)
            case {"type": list(kinds), **rest}:
                return self._any([({"type": kind, **_of_kind(rest, kind)}, where) for kind in kinds], depth)
            case {"type": str(kind), **rest}:
                return self._typed(kind, rest, where, depth)
        # without a type a keyword would hold for some kinds of value only, which nobody means
        raise self._fault(where, f"keyword {sorted(given)[0]!r} without a type is not supported")

    def _typed(self, kind: str, rest: dict[str, Any], where: str, depth: int) -> str:
        match kind:
            case "object":
                return self._object(rest, where, depth)
            case "array":
                return self._array(rest, where, depth)
            case "string":
                self._only(rest, ("minLength", "maxLength"), where)
                bounds = self._bounds(rest, "minLength", "maxLength", where)
                return "string" if bounds == "*" else self._named(rf'"\"" char{bounds} "\""')
            case "integer" | "number" | "boolean" | "null":
                self._only(rest, (), where)
                return kind
        raise self._fault(f"{where}.type", "expected one of object, array, string, number, integer, boolean, null")

    def _object(self, rest: dict[str, Any], where: str, depth: int) -> str:
        self._only(rest, ("properties", "required", "additionalProperties"), where)
        properties, required = rest.get("properties", {}), rest.get("required", [])
        others = rest.get("additionalProperties")
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise self._fault(where, "properties is an object and required an array")
        if others not in (None, True, False):
            raise self._fault(f"{where}.additionalProperties", "a schema for other properties is not supported")
        unknown = [name for name in required if name not in properties]
        if unknown:
            raise self._fault(f"{where}.required", f"{str(unknown[0])[:80]!r} is no property that is listed")
        if not properties:
            return self._named('"{" space "}"') if others is False else "object"
        members = []
        for name, schema in properties.items():
            value = self.rule(schema, f"{where}.properties.{name}", depth + 1)
            members.append(
                (f'{literal(json.dumps(name, ensure_ascii=False))} space ":" space {value} space', name in required)
            )
        return self._named(f'"{{" space {self._members(members)} "}}"')

    def _members(self, members: Sequence[tuple[str, bool]]) -> str:
        """Members in their order, each with whether it is required. From the last one back: `tail` is what may follow
        where one stands before, with its comma, and `head` what may stand first."""
        head, tail = "", ""
        for member, required in reversed(members):
            alone = f"{member} {tail}".rstrip()
            first = self._named(f"{alone} | {head}") if head else f"({alone})?"
            head = alone if required else first
            link = f'"," space {member}'
            tail = self._named(f"{link if required else f'({link})?'} {tail}".rstrip())
        return head

    def _array(self, rest: dict[str, Any], where: str, depth: int) -> str:
        self._only(rest, ("items", "minItems", "maxItems"), where)
        item = self.rule(rest.get("items", True), f"{where}.items", depth + 1)
        least, most = self._range(rest, "minItems", "maxItems", where)
        if most == 0:
            return self._named('"[" space "]"')
        more = f'("," space {item} space)' + _times(max(least - 1, 0), None if most is None else most - 1)
        some = f"{item} space {more}"
        return self._named(f'"[" space {some if least else f"({some})?"} "]"')

    def _any(self, options: Sequence[tuple[Any, str]], depth: int) -> str:
        if not options:
            raise self._fault("", "an empty list of choices has no value")
        return self._named(" | ".join(self.rule(schema, where, depth + 1) for schema, where in options))

    def _enum(self, values: Sequence[Any], rest: dict[str, Any], where: str) -> str:
        self._only(rest, ("type",), where)
        if not values:
            raise self._fault(f"{where}.enum", "empty")
        return self._named(" | ".join(literal(json.dumps(value, ensure_ascii=False)) for value in values))

    def _ref(self, ref: Any, where: str, depth: int) -> str:
        if type(ref) is not str or not (ref == "#" or ref.startswith("#/")):
            raise self._fault(f"{where}.$ref", "only references into the schema itself are supported")
        if ref not in self._refs:
            schema: Any = self._root
            for part in ref.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(schema, Mapping) or key not in schema:
                    raise self._fault(f"{where}.$ref", f"{ref[:80]!r} is not there")
                schema = schema[key]
            # named before it is written, as it may hold itself
            self._refs[ref] = name = f"ref-{_letters(len(self._refs))}"
            self._rules[name] = ""
            self._rules[name] = self.rule(schema, ref, depth + 1)
            if self._loops(name):
                raise self._fault(f"{where}.$ref", f"{ref[:80]!r} is nothing but itself")
        return self._refs[ref]

    def _loops(self, name: str) -> bool:
        """Whether a rule may begin with itself: only choices and references begin with another rule's value."""
        seen, look = set[str](), [name]
        while look:
            rule = self._rules.get(look.pop(), "")
            if not _CHOICE.fullmatch(rule):
                continue
            for following in rule.split(" | "):
                if following == name:
                    return True
                if following not in seen:
                    seen.add(following)
                    look.append(following)
        return False

    def _named(self, rule: str) -> str:
        if rule not in self._names:
            self._names[rule] = name = f"rule-{_letters(len(self._rules))}"
            self._rules[name] = rule
        return self._names[rule]

    def _bounds(self, rest: Mapping[str, Any], low: str, high: str, where: str) -> str:
        return _times(*self._range(rest, low, high, where))

    def _range(self, rest: Mapping[str, Any], low: str, high: str, where: str) -> tuple[int, int | None]:
        least, most = rest.get(low, 0), rest.get(high)
        for name, value in ((low, least), (high, most)):
            if value is not None and (type(value) is not int or not 0 <= value <= _MAX_REPEAT):
                raise self._fault(f"{where}.{name}", f"expected a whole number from 0 to {_MAX_REPEAT}")
        if most is not None and most < least:
            raise self._fault(f"{where}.{high}", f"less than {low}")
        return least, most

    def _only(self, rest: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for name in rest:
            if name not in known:
                raise self._fault(where, f"keyword {str(name)[:80]!r} is not supported here")

    def _fault(self, where: str, what: str) -> BadRequest:
        name = f"{self._param}{where if where.startswith('.') or not where else '.' + where}"
        return BadRequest(f"{name[:200]}: {what}", code="unsupported_value", param=self._param)


_KEYWORDS: Final = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
}


def _of_kind(rest: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Of several types' keywords, those that are not another type's."""
    others = {name for other, names in _KEYWORDS.items() if other != kind for name in names}
    return {name: value for name, value in rest.items() if name not in others}


def _times(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _letters(number: int) -> str:
    """A number in letters: names of rules have no digits here, which keeps them apart from repetitions."""
    out = ""
    while True:
        number, digit = divmod(number, 26)
        out = chr(97 + digit) + out
        if not number:
            return out
