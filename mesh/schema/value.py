"""What every value of the format has in common: frozen, strict, closed, and one way to and from bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Self, cast, dataclass_transform

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from mesh.errors import EncodingError, SchemaError, UsageError
from mesh.schema import canonical
from mesh.schema.limits import MAX_NAME_CHARS, MAX_TOKEN_ID, MAX_TOKENS, MAX_UINT

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Id16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
UInt = Annotated[int, Meta(ge=0, le=MAX_UINT)]
TokenCount = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
FidelityLevel = Annotated[int, Meta(ge=0, le=3)]
# Names and reasons end up in terminals and headers: no control characters, no line breaks. Nor lone surrogates, which
# Python text may hold and UTF-8 cannot.
Name = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+\Z")
]
Token = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?\Z")]
# A technical name in the spelling of its own field: a quantization, a precision.
Label = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{1,64}\Z")]

# Byte strings are what they are, as CBOR has them; msgspec's own formats would want base64.
_AS_CBOR = (bytes,)


# What every class of values is made with. No value can hold itself, so the garbage collector need not look for cycles.
_OPTIONS: dict[str, Any] = {
    "frozen": True,
    "kw_only": True,
    "forbid_unknown_fields": True,
    "omit_defaults": True,
    "gc": False,
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _ValueType(msgspec.StructMeta):
    """Fields are declared in the order that reads best; msgspec is shown them in canonical map order, so that what it
    makes of a value needs no sorting before it is encoded. Calling the class validates, as `of` does: msgspec by itself
    would take whatever it is given."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _ValueType:
        own = namespace.get("__annotations__", {})
        namespace["__annotations__"] = {field: own[field] for field in sorted(own, key=canonical.key_order)}
        return super().__new__(cls, name, bases, namespace, **_OPTIONS | options)

    def __call__(cls, **fields: Any) -> Any:
        return cast(type[Value], cls).from_map(fields)


_copied: Callable[[Any], Any] = msgspec.Struct.__copy__  # type: ignore[attr-defined]  # what copy.copy calls


class Value(msgspec.Struct, metaclass=_ValueType):
    """A frozen value. Make it with `of` or `from_map`, to which None is absence (on the
    wire there is no null); read it back with `from_cbor`. They
    raise SchemaError. Lists in a value are lists, as the wire has them: whoever holds one leaves it alone."""

    @classmethod
    def of(cls, **fields: Any) -> Self:
        return cls.from_map(fields)

    @classmethod
    def from_map(cls, fields: Any) -> Self:
        try:
            return msgspec.convert(fields, cls, builtin_types=_AS_CBOR)
        except msgspec.ValidationError as e:
            raise SchemaError(f"{cls.what()}: {explain(e)}") from None
        except UnicodeEncodeError as e:
            raise SchemaError(f"{cls.what()}: text is not valid unicode: {e.reason}") from None

    @classmethod
    def from_cbor(cls, data: bytes, *, max_bytes: int) -> Self:
        """The value whose canonical encoding `data` is. Raises EncodingError where it is no canonical encoding at all,
        SchemaError where it encodes something else."""
        try:
            value = msgspec.convert(canonical.parse_unchecked(data, max_bytes=max_bytes), cls, builtin_types=_AS_CBOR)
        except msgspec.ValidationError as e:
            canonical.decode_map(data, max_bytes=max_bytes)
            raise SchemaError(f"{cls.what()}: {explain(e)}") from None
        # A value has one encoding, so bytes that differ from it are misspelled: `decode` says how.
        if value.to_cbor() != data:
            canonical.decode(data, max_bytes=max_bytes)
            raise EncodingError("not the canonical encoding")
        return value

    def changed(self, **fields: Any) -> Self:
        """This value with other fields, for whose kinds and limits the caller answers: what holds between fields is
        checked again, they by themselves are not. Far cheaper than `of`, for values that are made at every serve."""
        return msgspec.structs.replace(self, **fields)

    def beside(self, field: str, value: Any) -> Self:
        """This value but for one field, for which the caller answers as in `changed`, and which no other field has to
        do with: nothing is checked. A fifth of the cost of `changed`."""
        other: Self = _copied(self)
        force_setattr(other, field, value)
        return other

    @classmethod
    def what(cls) -> str:
        return "".join(" " + c.lower() if c.isupper() else c for c in cls.__name__).strip()

    @classmethod
    def required(cls) -> dict[str, bool]:
        """The fields' names, in canonical order, and whether each must be there."""
        return {field.name: field.required for field in msgspec.structs.fields(cls)}

    def to_map(self) -> dict[str, Any]:
        """The value as a map in canonical key order, absent fields left out."""
        fields: dict[str, Any] = msgspec.to_builtins(self, builtin_types=_AS_CBOR)
        return fields

    def to_cbor(self) -> bytes:
        return canonical.encode_ordered(msgspec.to_builtins(self, builtin_types=_AS_CBOR))


def fits(text: object, kind: Any) -> bool:
    """Whether a field of this kind could hold the text."""
    try:
        msgspec.convert(text, kind, builtin_types=_AS_CBOR)
    except msgspec.ValidationError:
        return False
    return True


def remembered(kind: Any) -> Callable[[str, str], None]:
    """A check of text by its kind and the name of its field, for a `__post_init__`: the field itself is then `str`. To
    match a pattern takes longer than to convert the rest of a small map, and the same few names come with every receipt
    of one engine. The check raises ValueError."""

    @lru_cache(maxsize=1024)
    def check(text: str, field: str) -> None:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError as e:
            raise ValueError(f"{field}: {explain(e)}") from None
        except UnicodeEncodeError as e:
            raise ValueError(f"{field}: text is not valid unicode: {e.reason}") from None

    return check


check_known_name = remembered(Name)


def check_name(name: str, of: str) -> None:
    """`of` says in an error whose name it is. Raises UsageError where no receipt could hold it."""
    if not fits(name, Name):
        raise UsageError(f"{of} {name[:80]!r}: no name that a receipt can hold: 1 to 256 printable characters")


_FAULT = re.compile(r"(?s)(?P<what>.*?)(?: - at `(?P<key>key)` in `\$(?P<map>.*)`| - at `\$(?P<path>.*)`)?\Z")
_OF_A_FIELD = re.compile(r"(?s)Object (?:contains (?P<unknown>unknown)|missing required) field `(?P<name>.*)`\Z")
_CBOR_NAMES = {"object": "map", "str": "text", "bytes": "byte string"}


def explain(error: msgspec.ValidationError) -> str:
    """The first fault of a validation, as `field: what is wrong`; never what was given."""
    fault = _FAULT.match(str(error))
    assert fault is not None
    path, what = (fault["path"] or fault["map"] or "").lstrip("."), fault["what"]
    if field := _OF_A_FIELD.match(what):
        path = f"{path}.{_shown(field['name'])}".lstrip(".")
        what = "unknown field" if field["unknown"] else "missing"
    elif fault["key"]:
        what = "a key is not text"
    elif what.startswith("Invalid enum value"):
        what = "none of the words that are allowed"
    else:
        what = re.sub(r"`(\w+)`", lambda kind: _CBOR_NAMES.get(kind[1], kind[1]), what)
        what = what[:1].lower() + what[1:]
    return f"{path}: {what}" if path else what


def _shown(name: str) -> str:
    """A field's name, which for an unknown field is whatever a stranger wrote."""
    return name if len(name) <= 64 and name.isprintable() else ascii(name[:64])
