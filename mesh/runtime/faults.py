"""What is wrong with a document, field by field: pydantic's findings in this house's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from mesh.errors import CandidateError

# The steps of a path that name a member of a union, which nobody wrote: they follow these fields.
_UNIONS: Final = ("distribution", "acquisition", "readiness")
_SHOWN_CHARS: Final = 80
_TOLD: Final = 40  # faults in one message
_KINDS: Final = {
    "int_type": "an integer", "int_from_float": "an integer", "string_type": "text", "bool_type": "true or false",
    "list_type": "a list", "tuple_type": "a list", "dict_type": "an object", "model_type": "an object",
    "model_attributes_type": "an object", "float_type": "a number", "none_required": "null",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """`path` is that of the field: `engine.arguments[2]`, empty for the document itself; `what` says what is wrong."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what

    def to_map(self) -> dict[str, str]:
        return {"path": self.path, "fault": self.what}

    def under(self, path: str) -> Fault:
        """The same, where what it was found in lies at `path`."""
        if not path or not self.path:
            return Fault(path or self.path, self.what)
        return Fault(path + ("" if self.path.startswith("[") else ".") + self.path, self.what)


class Contradiction(ValueError):
    """Fields that are right each by itself and wrong together; raised inside a pydantic validator."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


class Table(BaseModel):
    """An object of the format: frozen, strict (true is no 1, and 6.0 no 6), closed. `contradictions` are the rules
    between its fields, all of them looked at once the fields are right."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    nullable: ClassVar[frozenset[str]] = frozenset()  # optional fields that may also be null

    def contradictions(self) -> Iterator[Fault]:
        return iter(())

    @model_validator(mode="after")
    def _agree(self) -> Self:
        faults = [
            Fault(name, "expected a value or no such field, got null")
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set - self.nullable and getattr(self, name) is None and not field.is_required()
        ]
        if faults := [*faults, *self.contradictions()]:
            raise Contradiction(faults)
        return self


def faults_of(error: ValidationError, under: str | None = None) -> list[Fault]:
    """Every fault that pydantic found, in the field `under`: unknown fields first, then missing ones, then the rest as
    they come."""
    each_of = error.errors(include_url=False)
    found = [(_rank(each["type"]), fault) for each in each_of for fault in _translated(each, under)]
    return [fault for _, fault in sorted(found, key=lambda pair: pair[0])]


def raise_faults(faults: Sequence[Fault], what: str) -> None:
    """Raises CandidateError with all of `faults` in the document `what`, if there are any; its message names the first
    of them where they are many."""
    if faults:
        told = "; ".join(map(str, faults[:_TOLD]))
        more = f"; and {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
        raise CandidateError(f"{what}: {told}{more}", faults=[fault.to_map() for fault in faults])


def repeated(values: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Each value that stood before, with its place."""
    seen: set[str] = set()
    for at, value in enumerate(values):
        if value in seen:
            yield at, value
        seen.add(value)


def path_of(steps: Iterable[str | int]) -> str:
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", step) else ascii(step[:64])
            text += f".{name}" if text else name
    return text


def shown(value: Any) -> str:
    """What was given, as a message may hold it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "..."
        return repr(text) if text.isprintable() else ascii(text)
    if isinstance(value, int | float):
        return str(value)
    return "a list" if isinstance(value, list) else "an object"


def _rank(kind: str) -> int:
    return {"extra_forbidden": 0, "missing": 1}.get(kind, 2)


def _translated(each: Any, under: str | None) -> Iterator[Fault]:
    steps = _written(each["loc"] if under is None else (under, *each["loc"]))
    path = path_of(steps)
    kind, context, value = each["type"], each.get("ctx", {}), each["input"]
    contradiction = context.get("error")
    if isinstance(contradiction, Contradiction):
        yield from (fault.under(path) for fault in contradiction.faults)
        return
    # what stands in an environment may be a secret, and is nobody's business in a message
    secret = "environment" in steps
    got = "" if secret or isinstance(value, dict | list) else f", got {shown(value)}"
    match kind:
        case "extra_forbidden":
            yield Fault(path, "unknown field")
        case "missing":
            yield Fault(path, "missing")
        case "literal_error":
            yield Fault(path, f"expected {context['expected']}{got}")
        case "greater_than_equal":
            yield Fault(path, f"expected at least {context['ge']}{got}")
        case "less_than_equal":
            yield Fault(path, f"expected at most {context['le']}{got}")
        case "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            yield Fault(f"{path}.{tag}", f"expected {context['expected_tags']}, got {shown(context['tag'])}")
        case "union_tag_not_found":
            yield Fault(f"{path}.{context['discriminator'].strip(chr(39))}", "missing")
        case "too_short":
            yield Fault(path, f"expected at least {context['min_length']}, got {context['actual_length']}")
        case "too_long":
            yield Fault(path, f"expected at most {context['max_length']}, got {context['actual_length']}")
        case "value_error":
            yield Fault(path, f"{context['error']}{got}")
        case _ if kind in _KINDS:
            yield Fault(path, f"expected {_KINDS[kind]}{'' if secret else f', got {shown(value)}'}")
        case _:
            message: str = each["msg"]
            yield Fault(path, f"{message[:1].lower()}{message[1:]}{got}")


def _written(loc: tuple[str | int, ...]) -> list[str | int]:
    """The steps of a path without those that name the member of a union."""
    steps: list[str | int] = []
    for at, step in enumerate(loc):
        if step == "[key]" and at == len(loc) - 1:  # how pydantic marks a key that is at fault
            continue
        before = loc[at - 1] if at else None
        named = before if isinstance(before, str) else loc[at - 2] if at > 1 else None
        in_list = isinstance(before, int) and named == "artifacts"
        if (in_list or before in _UNIONS) and step in _TAGS:
            continue
        steps.append(step)
    return steps


_TAGS: Final = frozenset((
    "oci-container", "native-archive", "python-standalone", "embedded-application", "huggingface-http",
    "huggingface-snapshot", "gguf-file", "manifest", "exec",
))  # fmt: skip
