"""A grant as one word, which any client of OpenAI's API can be given as its key."""

from __future__ import annotations

import base64
import re

from mesh.errors import SchemaError
from mesh.schema.limits import MAX_GRANT_BYTES

PREFIX = "mg1_"
_EXPECTED = f"{PREFIX}<base64url of a grant, as `mesh grant issue` prints it>"
_WORD = re.compile(r"[A-Za-z0-9_-]*\Z")
MAX_TEXT_CHARS = len(PREFIX) + (MAX_GRANT_BYTES * 4 + 2) // 3


def grant_text(data: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def grant_from_text(text: str) -> bytes:
    """The bytes, unchecked. Raises SchemaError; what was given is a secret and is not repeated."""
    if not text.startswith(PREFIX):
        raise SchemaError(f"grant: does not start with {PREFIX}, expected {_EXPECTED}")
    if len(text) > MAX_TEXT_CHARS:
        raise SchemaError(f"grant: over {MAX_TEXT_CHARS} characters, the most that {_EXPECTED} can have")
    word = text[len(PREFIX) :]
    if not _WORD.match(word) or len(word) % 4 == 1:
        raise SchemaError(f"grant: not base64url without padding, expected {_EXPECTED}")
    data = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    # base64 has spare bits at its end, and a grant has one spelling
    if grant_text(data) != text:
        raise SchemaError(f"grant: not the one base64url spelling of its bytes, expected {_EXPECTED}")
    return data
