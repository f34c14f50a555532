"""The caveats there are: what each may state, which field of the frame it is about, and when it holds.

A caveat that is not here has no meaning to this program, so it never holds. That lets an issuer state one that only
newer gateways know: older ones refuse, and never let through what they do not understand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mesh.grant.frame import Frame
from mesh.schema.canonical import encode
from mesh.schema.limits import MAX_CAVEAT_ITEMS
from mesh.schema.receipt import check_backend_id
from mesh.schema.value import Digest, FidelityLevel, MaxTokens, Name, UInt, fits

STEWARD_IN = "steward-in"
TOTAL_UJ, TOTAL_TOKENS = "total-uj", "total-tokens"
# Which totals there are, and what a serve may draw from each: its worst case.
TOTALS: Mapping[str, Callable[[Frame], int | None]] = {
    TOTAL_UJ: lambda frame: frame.est_uj,
    TOTAL_TOKENS: lambda frame: frame.tokens,
}


@dataclass(frozen=True, slots=True)
class Caveat:
    """`fault` says what is wrong with a stated value, None where nothing is; `offered` is what the frame has to say,
    None where it lacks that; `holds` compares the two, with the leeway between clocks in nanoseconds."""

    fault: Callable[[Any], str | None]
    offered: Callable[[Frame], Any]
    holds: Callable[[Any, Any, int], bool]


def check_caveats(caveats: Mapping[str, Any]) -> None:
    """Raises ValueError for a name that is none, and for a known caveat that does not state what it should. The values
    of unknown ones are anybody's."""
    for name, stated in caveats.items():
        known = CAVEATS.get(name)
        if known is None and not fits(name, Name):
            raise ValueError("a caveat's name is 1 to 256 characters without control characters")
        fault = None if known is None else known.fault(stated)
        if fault is not None:
            raise ValueError(f"caveat {name} {fault}")


def _of_kind(kind: Any, what: str) -> Callable[[Any], str | None]:
    return lambda stated: None if fits(stated, kind) else f"must state {what}"


def _list_of(is_one: Callable[[Any], bool], what: str) -> Callable[[Any], str | None]:
    def fault(stated: Any) -> str | None:
        if type(stated) is not list or not all(map(is_one, stated)):
            return f"must state a list of {what}"
        if not 1 <= len(stated) <= MAX_CAVEAT_ITEMS:
            return f"must state 1 to {MAX_CAVEAT_ITEMS} {what}"
        spelled = [encode(item) for item in stated]
        if spelled != sorted(set(spelled)):
            return f"must state {what} in the order of their encodings, each once"
        return None

    return fault


def _is_digest(item: Any) -> bool:
    return fits(item, Digest)


def _is_name_or_digest(item: Any) -> bool:
    return fits(item, Name) or fits(item, Digest)


def _is_backend_id(item: Any) -> bool:
    try:
        check_backend_id(item)
    except (TypeError, ValueError):
        return False
    return True


def _one_of(is_one: Callable[[Any], bool], what: str, offered: Callable[[Frame], Any]) -> Caveat:
    return Caveat(_list_of(is_one, what), offered, lambda stated, got, _: got in stated)


def _at_most(kind: Any, what: str, offered: Callable[[Frame], Any]) -> Caveat:
    return Caveat(_of_kind(kind, what), offered, lambda stated, got, _: got <= stated)


def _recipes(frame: Frame) -> list[bytes | str]:
    digest = frame.runtime_recipe_digest
    return [frame.recipe_id] if digest is None else [frame.recipe_id, digest]


def _is_recipe(stated: list[bytes | str], got: list[bytes | str], _: int) -> bool:
    """A digest says more than the name that a gateway gave a model: where both sides have one, it decides alone."""
    both = len(got) > 1 and any(type(one) is bytes for one in stated)
    return got[both] in stated


_UNSIGNED = "a whole number from 0 to 2^63-1"

CAVEATS: Mapping[str, Caveat] = {
    "model-in": _one_of(_is_digest, "weights digests", lambda frame: frame.weights_digest),
    "recipe-in": Caveat(_list_of(_is_name_or_digest, "model names or recipe digests"), _recipes, _is_recipe),
    "backend-in": _one_of(_is_backend_id, "backend ids", lambda frame: frame.backend_id),
    "blueprint-in": _one_of(_is_digest, "blueprint ids", lambda frame: frame.blueprint_id),
    STEWARD_IN: _one_of(_is_digest, "steward keys", lambda frame: frame.steward),
    "fidelity-at-least": Caveat(
        _of_kind(FidelityLevel, "a fidelity from 0 to 3"),
        lambda frame: frame.fidelity,
        lambda stated, got, _: got >= stated,
    ),
    "max-tokens": _at_most(MaxTokens, "a count of 1 to 2^31-1", lambda frame: frame.max_tokens),
    "max-uj": _at_most(UInt, _UNSIGNED, lambda frame: frame.est_uj),
    "not-before": Caveat(
        _of_kind(UInt, _UNSIGNED),
        lambda frame: frame.now_ns,
        lambda stated, got, leeway_ns: got + leeway_ns >= stated,
    ),
    "not-after": Caveat(
        _of_kind(UInt, _UNSIGNED),
        lambda frame: frame.now_ns,
        lambda stated, got, leeway_ns: got - leeway_ns <= stated,
    ),
    # Whether one serve alone would be too much; what others drew before is for the decision.
    **{name: _at_most(UInt, _UNSIGNED, drawn) for name, drawn in TOTALS.items()},
}
