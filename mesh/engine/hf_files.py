"""The JSON files of a Hugging Face model folder, read as what they are: text from strangers."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from mesh.errors import ModelFileError
from mesh.identity.files import open_regular

MAX_FILE_BYTES: Final = 64 * 1024 * 1024  # the largest published tokenizer.json has half of that
# Values and objects begun, over one file: a parsed one takes up to a hundred bytes, however short it was written. The
# largest vocabularies have 300,000 tokens and 600,000 merges of two.
MAX_VALUES: Final = 8_000_000

_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object of the file `label`; `path` is where in it, ending in a dot, "" for the whole. The getters give
    None for a field that is absent or null, and raise ModelFileError for one that is of another type."""

    label: str
    path: str
    values: Mapping[str, Any]

    def fault(self, key: str, fault: str) -> ModelFileError:
        """An error that names this file and the field `key` of this object."""
        field = shown(self.path + key)
        return ModelFileError(f"{self.label}: {field}: {fault}", field=field)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self.fault(key, f"{kind_of(value)}, expected text")

    def integer(self, key: str, *, minimum: int, maximum: int) -> int | None:
        value = self.values.get(key)
        return None if value is None else self.checked_integer(key, value, minimum=minimum, maximum=maximum)

    def checked_integer(self, key: str, value: object, *, minimum: int, maximum: int) -> int:
        """`value`, found at `key`. JSON's true is no 1, and 1.0 is no integer either."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(key, f"{kind_of(value)}, expected an integer")
        if not minimum <= value <= maximum:
            # a number may have thousands of digits
            raise self.fault(key, f"{shown(str(value), 24)}, expected {minimum} to {maximum}")
        return value

    def flag(self, key: str) -> bool:
        """False where it is absent."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.fault(key, f"{kind_of(value)}, expected true or false")

    def array(self, key: str) -> list[Any] | None:
        value = self.values.get(key)
        if value is None or isinstance(value, list):
            return value
        raise self.fault(key, f"{kind_of(value)}, expected a list")

    def section(self, key: str) -> JsonObject | None:
        value = self.values.get(key)
        return None if value is None else self.within(key, value)

    def within(self, key: str, value: object) -> JsonObject:
        """`value`, found at `key`, as an object of its own."""
        if not isinstance(value, dict):
            raise self.fault(key, f"{kind_of(value)}, expected an object")
        return JsonObject(self.label, f"{self.path}{key}.", value)


def read_json(folder: Path, name: str) -> JsonObject | None:
    """The object that a file holds, None where there is no such file. In what is returned every text is valid Unicode,
    every number is finite, and no key was there twice (readers differ on which of the two they take). Raises
    ModelFileError."""
    text = read_text(folder, name)
    if text is None:
        return None
    if sum(map(text.count, ",[{")) > MAX_VALUES:
        raise ModelFileError(f"{name}: more than {MAX_VALUES} values")

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ModelFileError(f"{name}: {shown(twice)}: there twice in one object", field=shown(twice))
        return made

    try:
        value = json.loads(text, object_pairs_hook=object_of, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ModelFileError(f"{name}: nested too deep") from None
    except ValueError as e:
        raise ModelFileError(f"{name}: not JSON: {e}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{name}: {kind_of(value)}, expected an object")
    if _MAYBE_SURROGATE.search(text) and (field := _surrogate_field(value)) is not None:
        raise ModelFileError(f"{name}: {field}: half of a surrogate pair, expected valid unicode", field=field)
    return JsonObject(name, "", value)


def read_text(folder: Path, name: str, *, max_bytes: int = MAX_FILE_BYTES) -> str | None:
    """The UTF-8 text of a file, None where there is none. Raises ModelFileError."""
    path = folder / name
    if not os.path.lexists(path):  # a link to nowhere is a fault, not an absent file
        return None
    try:
        with open_regular(path) as file:
            raw = file.read(max_bytes + 1)
    except OSError as e:
        raise ModelFileError(f"{name}: {e.strerror or e}") from None
    if len(raw) > max_bytes:
        raise ModelFileError(f"{name}: more than {max_bytes} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise ModelFileError(f"{name}: not UTF-8: {e.reason}", offset=e.start) from None


def kind_of(value: object) -> str:
    """What JSON calls it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def shown(text: str, most: int = 80) -> str:
    """Text of a stranger as an error message may hold it: short, and nothing that a terminal would obey."""
    text = text if len(text) <= most else text[:most] + "..."
    return text if text.isprintable() else repr(text)[1:-1]


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:24]} is out of range")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _surrogate_field(value: dict[str, Any]) -> str | None:
    """Where a lone surrogate is. Escaped characters beyond U+FFFF look alike until they are parsed."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        path, value = left.pop()
        inner: Any = ()
        if isinstance(value, str) and _SURROGATE.search(value):
            return path
        if isinstance(value, dict):
            for key in value:
                if _SURROGATE.search(key):
                    return shown(f"{path}.{key}".lstrip("."))
            inner = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        left += [
            (shown(f"{path}.{key}".lstrip(".")), item) for key, item in inner if isinstance(item, str | dict | list)
        ]
    return None
