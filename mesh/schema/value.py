"""What every value of the format has in common: frozen, strict, closed, and one way to and from bytes."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from mesh.errors import SchemaError
from mesh.schema import canonical
from mesh.schema.limits import MAX_NAME_CHARS, MAX_TOKEN_ID, MAX_TOKENS, MAX_UINT

T = TypeVar("T")


class _NeverNull:
    """An optional field is absent or has a value; null is neither. The Python attribute reads None when absent."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        return schema["schema"] if schema["type"] == "nullable" else schema


Opt = Annotated[T | None, _NeverNull()]
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
Id16 = Annotated[bytes, Field(min_length=16, max_length=16)]
UInt = Annotated[int, Field(ge=0, le=MAX_UINT)]
TokenCount = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
FidelityLevel = Annotated[int, Field(ge=0, le=3)]
# Names and reasons end up in terminals and headers: no control characters, no line breaks.
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Token = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$")]
# A technical name in the spelling of its own field: a quantization, a precision.
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,64}$")]


class Value(BaseModel):
    """A frozen value. Make it with `of`, which drops None, or `from_map`; read it back with `from_cbor`. They raise
    SchemaError; calling the class raises pydantic's own ValidationError, as pydantic's users expect. Lists in a value
    are lists, as the wire has them: whoever holds one leaves it alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True, ser_json_bytes="hex")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Fields are declared in the order that reads best; pydantic is shown them in canonical map order, so that what
        # it makes of a value needs no sorting before it is encoded.
        own = inspect.get_annotations(cls)
        cls.__annotations__ = {name: own[name] for name in sorted(own, key=canonical.key_order)}
        super().__init_subclass__(**kwargs)

    @classmethod
    def of(cls, **fields: Any) -> Self:
        return cls.from_map({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_map(cls, fields: Any) -> Self:
        try:
            # what model_validate calls, without its arguments that are not for here
            value: Self = cls.__pydantic_validator__.validate_python(fields)
        except ValidationError as e:
            raise SchemaError(f"{cls.what()}: {explain(e)}") from None
        return value

    @classmethod
    def from_cbor(cls, data: bytes, *, max_bytes: int) -> Self:
        """The value whose canonical encoding `data` is. Raises EncodingError where it is no canonical encoding at all,
        SchemaError where it encodes something else."""
        fields = canonical.parse_ordered(data, max_bytes=max_bytes)
        try:
            value = cls.from_map(fields)
        except SchemaError:
            canonical.decode(data, max_bytes=max_bytes)
            raise
        # the fields are strict, so none has let a type through that a payload may not hold
        canonical.check_spelling(fields, data)
        return value

    @classmethod
    def what(cls) -> str:
        return "".join(" " + c.lower() if c.isupper() else c for c in cls.__name__).strip()

    def to_map(self) -> dict[str, Any]:
        """The value as a map in canonical key order, absent fields left out."""
        fields: dict[str, Any] = self.__pydantic_serializer__.to_python(self, exclude_none=True)
        return fields

    def to_cbor(self) -> bytes:
        return canonical.encode_ordered(self.to_map())


def explain(error: ValidationError) -> str:
    """The first fault of a validation, as `field: what is wrong`."""
    faults = error.errors(include_url=False, include_input=False)
    first = faults[0]
    path = ".".join(_shown(str(part)) for part in first["loc"])
    message = {
        "extra_forbidden": "unknown field",
        "missing": "missing",
    }.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{path}: {message}{more}" if path else f"{message}{more}"


def _shown(name: str) -> str:
    """A field's name, which for an unknown field is whatever a stranger wrote."""
    return name if len(name) <= 64 and name.isprintable() else ascii(name[:64])
