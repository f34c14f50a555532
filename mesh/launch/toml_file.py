"""Reading what an operator writes: a TOML file of bounded size, held to a model that knows every key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mesh.errors import UsageError

MAX_FILE_BYTES = 1 << 20
_MAX_SHOWN = 80


class Table(BaseModel):
    """A table of a file: frozen, nothing converted on the quiet, no key that nobody reads."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


T = TypeVar("T", bound=Table)


def read_bounded(path: Path) -> bytes:
    """The file's bytes. Raises UsageError over the bound, OSError where it cannot be read."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: over {MAX_FILE_BYTES} bytes")
    return data


def parse_toml(data: bytes, source: str) -> dict[str, Any]:
    """Raises UsageError naming `source`, and the line where there is one."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise UsageError(f"{source}: begins with a byte order mark, which toml does not have: save it as plain utf-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(f"{source}: not valid utf-8 at byte {e.start}") from None
    for number, line in enumerate(text.splitlines(), 1):
        # A merge that was never finished: the parser would blame a key.
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            raise UsageError(f"{source}: line {number} is a merge-conflict marker, {line[:_MAX_SHOWN]!r}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{source}: not valid toml: {e}") from None
    except RecursionError:
        raise UsageError(f"{source}: nested too deep") from None


def validated(model: type[T], values: dict[str, Any], source: str) -> T:
    """Raises UsageError naming every key at fault."""
    try:
        return model.model_validate(values)
    except ValidationError as e:
        faults = "; ".join(_fault(fault) for fault in e.errors(include_url=False))
        raise UsageError(f"{source}: {faults}") from None


def _fault(fault: Any) -> str:
    # a union's path names the member it was tried as; the operator's file does not
    path = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "str", "list["))]
    key = ".".join(part for part in path if part.islower() or not part.isidentifier() or len(path) == 1 or "_" in part)
    if path[:1] == ["env"] and len(path) > 1:
        key = f"env.{path[1]}"  # as it is written, and of either kind that a value may be
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key"
    if fault["type"] == "missing":
        return f"{key}: missing"
    message: str = fault["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = fault.get("input")
    if not key or path[:1] == ["env"] or not isinstance(value, (str, int, float)):
        return f"{key}: {message}" if key else message  # a value of [env] may be a secret
    return f"{key}: {message}, got {str(value)[:_MAX_SHOWN]!r}"
