"""The bounds in figures: what other implementations were told, and what a gateway's operator was."""

from __future__ import annotations

from mesh.schema import limits

PUBLISHED = {
    "MAX_DEPTH": 16,
    "MAX_ENVELOPE_BYTES": 65_536,
    "MAX_HEADER_BYTES": 2_048,
    "MAX_PAYLOAD_BYTES": 32_768,
    "MAX_SETTINGS_BYTES": 65_536,
    "MAX_DISCLOSURE_BYTES": 67_108_864,
    "MAX_TRUST_FILE_BYTES": 1_048_576,
    "MAX_UINT": 9_223_372_036_854_775_807,
    "MAX_TOKEN_ID": 4_294_967_295,
    "MAX_TOKENS": 2_147_483_647,
    "MAX_SEED": 4_294_967_294,
    "MAX_STOP_STRINGS": 16,
    "MAX_STOP_STRING_BYTES": 1_024,
    "MAX_STOP_IDS": 256,
    "MAX_LOGIT_BIASES": 1_024,
    "MAX_NAME_CHARS": 256,
    "MAX_SOURCES": 64,
    "MAX_RANKS": 64,
    "MAX_GRANT_BYTES": 4_096,
    "MAX_GRANT_BLOCKS": 8,
    "MAX_CAVEAT_ITEMS": 64,
    "MAX_REVOCATION_FILE_BYTES": 16_777_216,
}


def test_bounds_are_those_that_were_published():
    assert {name: value for name, value in vars(limits).items() if name.startswith("MAX_")} == PUBLISHED
