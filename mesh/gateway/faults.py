"""What went wrong, in HTTP and in OpenAI's error shape: {"error": {message, type, param, code}}."""

from __future__ import annotations

import math
import traceback
from typing import Any

from mesh.errors import (
    BadRequest,
    Conflict,
    DeadlineExceeded,
    EngineError,
    EngineUnavailable,
    Forbidden,
    GrantRefused,
    LedgerError,
    MeshError,
    NoCandidate,
    NotFound,
    Overloaded,
    RouteIncompatible,
    Unauthorized,
)

_RETRY_S = 5  # where nobody knows better

# What a client is told of a ledger: the rest names the operator's files, and is in the log.
_LEDGER = {
    "ledger-unwritable": "the ledger cannot be written, and nothing is served without it",
    "ledger-locked": "the ledger is in another process's hands, and nothing is served without it",
}

_STATUS_OF_CODE = {
    "body_timeout": 408,
    "body_too_large": 413,
    "unsupported_encoding": 415,
    "unsupported_media_type": 415,
    "idempotency_mismatch": 422,
}

_KINDS: tuple[tuple[type[MeshError], int, str], ...] = (
    (BadRequest, 400, "invalid_request_error"),
    (NoCandidate, 400, "invalid_request_error"),
    (Unauthorized, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (NotFound, 404, "invalid_request_error"),
    (Conflict, 409, "invalid_request_error"),
    (RouteIncompatible, 409, "invalid_request_error"),
    (Overloaded, 429, "rate_limit_error"),
    (DeadlineExceeded, 504, "server_error"),
    (EngineUnavailable, 503, "server_error"),
    (EngineError, 502, "server_error"),
    (LedgerError, 503, "server_error"),
)


def status_of(error: MeshError) -> int:
    """The HTTP status that an error is answered with."""
    for kind, status, _ in _KINDS:
        if isinstance(error, kind):
            return _STATUS_OF_CODE.get(error.code, status)
    return 500


def told(error: MeshError) -> str:
    """What a client is told of an error: its message, but for faults that are the operator's to read of."""
    if isinstance(error, LedgerError):
        return _LEDGER.get(error.code, "the ledger cannot be used, and nothing is served without it")
    return str(error) if status_of(error) != 500 else "internal error"


def error_body(error: MeshError, **mesh: Any) -> dict[str, Any]:
    """The body. `mesh` is what the answer says of the serve, where there was one; it is inside of `error`, which is all
    that OpenAI's clients hand on."""
    kind = next((name for cls, _, name in _KINDS if isinstance(error, cls)), "server_error")
    body = plain_error(told(error), kind, error.code, param=getattr(error, "param", None))
    if isinstance(error, NoCandidate):
        body["error"]["reasons"] = error.reasons
    if isinstance(error, RouteIncompatible):
        body["error"] |= {"reasons": error.reasons, "retryable": False}
    if isinstance(error, GrantRefused):
        body["error"]["grant"] = error.grant
    if mesh:
        body["error"]["mesh"] = mesh
    return body


def plain_error(message: str, kind: str, code: str | None, *, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


INTERNAL = plain_error("internal error", "server_error", "internal")


def where(error: BaseException) -> str:
    """An unforeseen exception for the log: its type and where it was raised, without its message, which may quote what
    a client sent."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.filename}:{f.lineno} {f.name}" for f in reversed(frames))])


def let_go(error: BaseException) -> None:
    """To be called of an error that was answered: drops its frames, and those of the errors that led to it. One of them
    mostly has the error in a variable, and the request with its body in another: memory in a circle, which would be
    held until the collector comes by."""
    led: BaseException | None = error
    while led is not None:
        led.__traceback__ = None
        led = led.__cause__ or led.__context__


def headers_of(error: MeshError) -> dict[str, str]:
    if isinstance(error, Overloaded):
        return {"Retry-After": str(math.ceil(error.retry_after_s))}
    if isinstance(error, EngineUnavailable):
        return {"Retry-After": str(_RETRY_S if error.retry_after_s is None else error.retry_after_s)}
    if isinstance(error, LedgerError):
        return {"Retry-After": str(_RETRY_S)}
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    return {}
