"""Which 32 bytes can be a steward's key at all, whoever trusts it."""

from __future__ import annotations

from functools import lru_cache

from mesh.errors import SignatureError

# The encodings of points of small order, canonical and not, sign bit cleared: a signature under such a key fits many
# messages, so it binds nobody.
_SMALL_ORDER = frozenset(
    bytes.fromhex(h)
    for h in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
)
_FIELD_PRIME = 2**255 - 19
_D = -121665 * pow(121666, -1, _FIELD_PRIME) % _FIELD_PRIME


@lru_cache(maxsize=256)
def check_public_key(key: bytes) -> None:
    """Refuse a 32-byte key that is no canonical encoding of a point, or of one of small order, at registration and at
    verification. Raises SignatureError."""
    if len(key) != 32:
        raise SignatureError(f"public key: {len(key)} bytes, expected 32")
    y = key[:31] + bytes((key[31] & 0x7F,))
    if y in _SMALL_ORDER:
        raise SignatureError("public key: a point of small order cannot bind its holder")
    number = int.from_bytes(y, "little")
    if number >= _FIELD_PRIME:
        raise SignatureError("public key: not a canonical point encoding")
    # The curve: x^2 = (y^2 - 1) / (d y^2 + 1), and u / v is a square where u * v is.
    square = (number * number - 1) * (_D * number * number + 1) % _FIELD_PRIME
    if pow(square, (_FIELD_PRIME - 1) // 2, _FIELD_PRIME) != 1:
        raise SignatureError("public key: not a point of the curve")
