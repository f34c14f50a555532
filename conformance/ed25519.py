"""Ed25519 (RFC 8032) in plain integers: slow, not constant in time, for fixed keys that are public anyway.

It signs what no library will: under a key with a part of small order, with an R that was chosen, with S beyond the
group order.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
_SQRT_MINUS_1 = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]  # extended coordinates X, Y, Z, T
IDENTITY: Point = (0, 1, 1, 0)


def add(a: Point, b: Point) -> Point:
    e, f = (a[1] - a[0]) * (b[1] - b[0]), (a[1] + a[0]) * (b[1] + b[0])
    c, d = 2 * a[3] * b[3] * D, 2 * a[2] * b[2]
    e, f, g, h = f - e, d - c, d + c, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar: int, point: Point) -> Point:
    """The scalar is below 2^256."""
    out = IDENTITY
    for place, doubled in enumerate(doublings(point)):
        if scalar >> place & 1:
            out = add(out, doubled)
    return out


@lru_cache(4)
def doublings(point: Point) -> tuple[Point, ...]:
    """The point times 2^0 to 2^255; two thirds of a product is this, and most are of BASE."""
    out = [point]
    for _ in range(255):
        out.append(add(out[-1], out[-1]))
    return tuple(out)


def encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Point:
    """Raises ValueError for what encodes no point."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if v * x * x % P == (-u) % P:
        x = x * _SQRT_MINUS_1 % P
    if v * x * x % P != u:
        raise ValueError("not a point")
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def scalar_of(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % L


class Key:
    def __init__(self, seed: bytes) -> None:
        digest = hashlib.sha512(seed).digest()
        self.seed = seed
        self.secret = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
        self._prefix = digest[32:]
        self.public = encode(multiply(self.secret, BASE))

    def sign(self, message: bytes) -> bytes:
        nonce = scalar_of(self._prefix, message)
        return self.answer(encode(multiply(nonce, BASE)), nonce, message)

    def answer(self, r: bytes, nonce: int, message: bytes, public: bytes | None = None) -> bytes:
        """R and S for a nonce and an R that need not belong together."""
        challenge = scalar_of(r, public or self.public, message)
        return r + ((nonce + challenge * self.secret) % L).to_bytes(32, "little")
