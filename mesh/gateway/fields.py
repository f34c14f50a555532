"""Reading the fields of a request body by name: what is not read is refused, what is wrong is refused with its name."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from mesh.errors import BadRequest
from mesh.schema.request import MILLION


class Fields:
    """A JSON object taken apart. A field that is null counts as absent, as OpenAI's clients send it. Every reader
    raises BadRequest with the field's full name as `param`; `done` refuses whatever nobody asked for."""

    def __init__(self, values: dict[str, Any], *, within: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._within = within

    def name(self, field: str) -> str:
        return f"{self._within}.{field}" if self._within else field

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def among(self, fields: Iterable[str]) -> list[str]:
        """Those of `fields` that are there and not read yet, in their order."""
        return [field for field in fields if field in self._values]

    def any_of(self, fields: frozenset[str]) -> bool:
        """Whether any of `fields` is there and not read yet: mostly none of many is, and none is asked for."""
        return not fields.isdisjoint(self._values)

    @property
    def left(self) -> bool:
        """Whether any field is not read yet."""
        return bool(self._values)

    def take(self, field: str) -> Any:
        """The raw value, None where it is absent."""
        return self._values.pop(field, None)

    def text(self, field: str) -> str | None:
        value = self._values.pop(field, None)
        if value is not None and type(value) is not str:
            raise self.wrong(field, "text", value)
        return value

    def flag(self, field: str) -> bool | None:
        value = self._values.pop(field, None)
        if value is not None and type(value) is not bool:
            raise self.wrong(field, "true or false", value)
        return value

    def integer(self, field: str, low: int, high: int) -> int | None:
        value = self._values.pop(field, None)
        if value is None:
            return None
        if type(value) is not int:
            raise self.wrong(field, "a whole number", value)
        if not low <= value <= high:
            raise self.fault(field, f"{value} is out of range, expected {low} to {high}")
        return value

    def millionths(self, field: str, low: int, high: int) -> int | None:
        """A number between `low` and `high` (whole units) in millionths, exactly."""
        value = self._values.pop(field, None)
        return None if value is None else millionths(value, low, high, param=self.name(field))

    def object(self, field: str) -> Fields | None:
        value = self.take(field)
        if value is None:
            return None
        if type(value) is not dict:
            raise self.wrong(field, "an object", value)
        return Fields(value, within=self.name(field))

    def array(self, field: str) -> list[Any] | None:
        value = self.take(field)
        if value is not None and type(value) is not list:
            raise self.wrong(field, "an array", value)
        return value

    def refuse(self, fields: Iterable[str], why: str) -> None:
        """Refuse each of `fields` that is there with anything but an empty value, which asks for nothing."""
        for field in fields:
            value = self.take(field)
            if value not in (None, [], {}, ""):
                raise self.fault(field, why, code="unsupported_parameter")

    def only(self, field: str, allowed: tuple[Any, ...], why: str) -> None:
        """Refuse `field` unless it is absent or one of the values that change nothing here."""
        value = self.take(field)
        if value is not None and not any(type(value) is type(same) and value == same for same in allowed):
            raise self.fault(field, why, code="unsupported_value")

    def texts(self, max_chars: int) -> None:
        """Read every field left as a text of at most `max_chars`."""
        for field in list(self._values):
            if len(self.text(field) or "") > max_chars:
                raise self.fault(field[:80], f"over {max_chars} characters")

    def rest(self) -> dict[str, Any]:
        """Every field left, as it came."""
        rest, self._values = self._values, {}
        return rest

    def done(self) -> None:
        for field in self._values:
            raise self.fault(field[:80], "unknown field", code="unknown_parameter")

    def wrong(self, field: str, expected: str, got: Any) -> BadRequest:
        return self.fault(field, f"expected {expected}, got {kind(got)}")

    def fault(self, field: str, message: str, *, code: str = "invalid_value") -> BadRequest:
        name = self.name(field)
        return BadRequest(f"{name}: {message}", code=code, param=name)


def millionths(value: Any, low: int, high: int, *, param: str) -> int:
    """The number `value`, between `low` and `high`, in millionths. Raises BadRequest, for a field called `param`."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise BadRequest(f"{param}: expected a number, got {kind(value)}", code="invalid_value", param=param)
    if not low <= value <= high:
        raise BadRequest(f"{param}: out of range, expected {low} to {high}", code="invalid_value", param=param)
    return _exact_millionths(value, param) if isinstance(value, Decimal) else value * MILLION


def _exact_millionths(value: Decimal, param: str) -> int:
    """Taken from the digits: arithmetic on a Decimal rounds at 28 of them."""
    if value == 0:
        return 0
    sign, digits, exponent = value.as_tuple()
    assert type(exponent) is int  # not an infinity: JSON has none
    number = int("".join(map(str, digits)))
    while number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    if exponent < -6:
        message = f"{param}: more than six decimals, which a receipt could not repeat"
        raise BadRequest(message, code="invalid_value", param=param)
    for _ in range(exponent + 6):
        number *= 10
    return -number if sign else number


def kind(value: Any) -> str:
    """What JSON calls it. The value itself is not repeated: it may be a prompt."""
    return {bool: "a boolean", int: "a number", Decimal: "a number", str: "text", list: "an array", dict: "an object",
            type(None): "null"}.get(type(value), "something else")  # fmt: skip
