"""What crosses the pipe between a GGUF engine and its child, in frames."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

# those who speak of a GGUF child's frames find all of it here
from mesh.engine.frames import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from mesh.engine.frames import FrameReader as FrameReader
from mesh.engine.frames import Known as Known
from mesh.engine.frames import pack_frame as pack_frame
from mesh.engine.protocol import CheckResult, Difference, Scores
from mesh.errors import EngineFailed, SchemaError
from mesh.schema.request import unpack_ids

_MARGIN: Final = struct.Struct("<d")
_SCORE: Final = struct.Struct("<Id")
_DIFFERENCE: Final = struct.Struct("<qqqd")

# From the engine to its child.
TO_CHILD: Final[Known] = {
    # `checks`: threads and width that passes over known outputs may take where they change no bit
    "load": {"path": str, "settings": dict, "overrides": list, "together_always": bool, "checks": dict},
    # `scores`: of how many of the likeliest ids, -1: none at all; `grammar`: its text, empty: none
    "serve": {"serve": int, "prompt": bytes, "max_tokens": int, "sampling": dict, "scores": int,
              "grammar": str},
    # `options`: packed ids; `ending`: each is scored with the end of the answer after it
    "decide": {"serve": int, "prompt": bytes, "options": list, "ending": bool},
    # a known output, packed ids, to be held against what the rest, as in `serve`, gives
    "check": {"serve": int, "prompt": bytes, "max_tokens": int, "sampling": dict, "scores": int, "grammar": str,
              "output": bytes, "cut": bool},
    "cancel": {"serve": int},
    "encode": {"call": int, "text": str, "special": bool, "bare": bool},
    "ping": {},
}  # fmt: skip
# From the child. `step` has one [serve, id, margin, scores] for each sequence that grew; a margin is 8 bytes of
# little-endian float64 (payload values have no floats), empty where there is none. Scores are that of the id and, for
# each of the likeliest, its id as u32 and its own; empty where nobody wants them. `alive` stands for a step in which
# none grew.
FROM_CHILD: Final[Known] = {
    "loaded": {
        "version": str, "library": bytes, "pieces": list, "bos": bytes, "eos": bytes, "add_bos": bool, "check": dict,
        "slots": int, "token_cpu_ns": int, "width": int,
    },
    "step": {"tokens": list},
    "alive": {},
    "pong": {},
    "done": {"serve": int, "finish": str},
    "decided": {"serve": int, "logprobs": bytes},  # 8 bytes of little-endian float64 for each option
    # `differences`: 32 bytes for each: index, id served, id expected as little-endian i64, -1 where that side had
    # ended, and margin as float64, nan where there is none; `finish`: empty where it was not judged
    "checked": {"serve": int, "compared": int, "differences": bytes, "finish": str},
    "failed": {"serve": int, "reason": str},
    "encoded": {"call": int, "ids": bytes},
    "refused": {"call": int, "reason": str},
    "fault": {"kind": str, "reason": str},
}  # fmt: skip
FINISHES: Final = frozenset({"stop", "length", "cancelled"})


def pack_margin(margin: float | None) -> bytes:
    return b"" if margin is None else _MARGIN.pack(margin)


def pack_scores(scores: Scores | None) -> bytes:
    if scores is None:
        return b""
    return _MARGIN.pack(scores.chosen) + b"".join(_SCORE.pack(*pair) for pair in scores.best)


def _unpack_scores(data: bytes) -> Scores | None:
    if not data:
        return None
    (chosen,) = _MARGIN.unpack_from(data)
    return Scores(chosen, tuple(_SCORE.iter_unpack(data[_MARGIN.size :])))


def unpack_step(tokens: list[Any]) -> list[tuple[int, int, float | None, Scores | None]]:
    """(serve, id, margin, scores) of a `step`. Raises EngineFailed."""
    out = []
    for item in tokens:
        match item:
            case [int(serve), int(token), bytes(margin), bytes(scores)] if (
                len(margin) in (0, _MARGIN.size)
                and token >= 0
                and (not scores or (len(scores) >= _MARGIN.size and (len(scores) - _MARGIN.size) % _SCORE.size == 0))
            ):
                out.append((serve, token, _MARGIN.unpack(margin)[0] if margin else None, _unpack_scores(scores)))
            case _:
                raise EngineFailed("engine pipe: step.tokens holds something else than [serve, id, margin, scores]")
    return out


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    return b"".join(map(_MARGIN.pack, logprobs))


def unpack_logprobs(data: bytes) -> tuple[float, ...]:
    """The log-probabilities of a `decided`. Raises EngineFailed for what can be none."""
    values = [value for (value,) in _MARGIN.iter_unpack(data)] if len(data) % _MARGIN.size == 0 else []
    # a sum of a few of them may come out a hair above 0
    if not values or not all(value < 1e-6 for value in values):
        raise EngineFailed("engine pipe: decided.logprobs holds something else than log-probabilities")
    return tuple(values)


def pack_check(result: CheckResult) -> dict[str, Any]:
    packed = (
        _DIFFERENCE.pack(
            one.at, _or(one.served, -1), _or(one.expected, -1), math.nan if one.margin is None else one.margin
        )
        for one in result.differences
    )
    return {"compared": result.compared, "differences": b"".join(packed), "finish": result.finish or ""}


def unpack_check(message: dict[str, Any], length: int) -> CheckResult:
    """The result of a `checked` of an output of `length` ids. Raises EngineFailed for what can be none."""
    compared, data, finish = message["compared"], message["differences"], message["finish"]
    if not 0 <= compared <= length or len(data) % _DIFFERENCE.size or finish not in ("", "stop", "length"):
        raise EngineFailed("engine pipe: checked has a count or finish that no check gives")
    found: list[Difference] = []
    for at, served, expected, margin in _DIFFERENCE.iter_unpack(data):
        if not (found[-1].at if found else -1) < at <= length or served < -1 or expected < -1 or served == expected:
            raise EngineFailed("engine pipe: checked.differences holds something else than differences")
        known = None if math.isnan(margin) else margin
        found.append(Difference(at, _unless(served, -1), _unless(expected, -1), known))
    if found:
        return CheckResult("differs", compared, tuple(found))
    if compared != length:
        raise EngineFailed(f"engine pipe: checked agrees and compared {compared} of {length} ids")
    return CheckResult("agreed", compared, (), finish or None, compared if finish else None)


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _unless(value: int, none: int) -> int | None:
    return None if value == none else value


def unpack_encoded(ids: bytes) -> list[int]:
    """The ids of an `encoded`. Raises EngineFailed."""
    try:
        return unpack_ids(ids)
    except SchemaError as e:
        raise EngineFailed(f"engine pipe: encoded.ids: {e}") from None


def check_loaded(message: dict[str, Any]) -> None:
    """Raises EngineFailed where `loaded` holds something else than it should."""
    if not message["pieces"] or not all(type(piece) is bytes for piece in message["pieces"]):
        raise EngineFailed("engine pipe: loaded.pieces is not a list of byte strings")
    if len(message["library"]) != 32 or message["slots"] < 1 or min(message["token_cpu_ns"], message["width"]) < 0:
        raise EngineFailed("engine pipe: loaded has a count or digest out of range")
    if not message["check"] or not all(type(at) is int and at >= -1 for at in message["check"].values()):
        raise EngineFailed("engine pipe: loaded.check is not a map of positions")
