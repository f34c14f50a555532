"""What the steward is asked of a call."""

from __future__ import annotations

from mesh.gateway.preparing import Prepared
from tests.support.stewards import request


def test_what_was_said_is_not_in_a_repr() -> None:
    told = repr(Prepared(request(), (104, 105), "a secret", options=((71, 72),)))
    assert told == f"Prepared(request={request()!r})"
