"""Digests over JSON: SHA-256 of the one spelling of a value, under a word that says what it commits to.

This is how fingerprints are made, and nothing else here: everything that the mesh signs is canonical CBOR. The spelling
is that of the system whose fingerprints these agree with: keys sorted, no space, characters beyond ASCII as themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical_sha256(value: Any) -> str:
    """64 hex digits over a value of maps, lists, text, integers, booleans and null."""
    spelled = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(spelled.encode()).hexdigest()


def domain_sha256(domain: str, body: Mapping[str, Any]) -> str:
    """The digest of `body` as what `domain` names: no digest of one domain is ever one of another."""
    return canonical_sha256({"domain": domain, "body": dict(body)})
