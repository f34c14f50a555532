"""Makes `conformance/signed`: signatures of the blueprints in the vectors. ML-DSA-65 signs otherwise each time, so that
they are made once and kept, and what is there already stays:

    python -m conformance.sign_blueprints

Bodies and lists are those of `postcards`; what is kept are certificates, lists and signature blocks, and the SHA-256
of each: a damaged one would be made into vectors that no client can pass.
"""

from __future__ import annotations

import hashlib
from typing import Final

from conformance import postcards as hand
from conformance.postcards import NOW_S, SIGNED
from conformance.sums import SUMS
from mesh.blueprint.certificate import SIGNED_BYTES, Certificate, certify
from mesh.blueprint.revocation import revoke
from mesh.blueprint.signature import SecretKey

DAY_S: Final = 86_400
ROOT, OTHER, MIDDLE, SIGNER = (SecretKey(bytes((number,)) * 64) for number in range(1, 5))


def certificate(
    issuer: SecretKey, subject: SecretKey, *, until_s: int = NOW_S + 365 * DAY_S, **more: bool
) -> Certificate:
    return certify(
        issuer, subject.public, label="of a vector", from_s=NOW_S - DAY_S, until_s=until_s, serial=b"s" * 16,
        may_certify=more.get("may_certify", False),
    )  # fmt: skip


def block(made: bytes, *chain: Certificate, key: SecretKey = SIGNER) -> bytes:
    certificates = b"".join(one.data for one in chain)
    kernel = hand.DIGEST + key.sign("kernel", hand.DIGEST)
    return bytes((len(chain),)) + certificates + key.sign("body", hand.signed_content(made)) + b"\1\0" + kernel


def main() -> None:
    leaf, above = certificate(ROOT, SIGNER), certificate(ROOT, MIDDLE, may_certify=True)
    below = certificate(MIDDLE, SIGNER)
    times = {"number": 1, "made_s": NOW_S - DAY_S, "until_s": NOW_S + DAY_S}
    good = hand.body()
    files = {
        "roots": ROOT.public.data, "other-roots": OTHER.public.data,
        "list": revoke(ROOT, (), **times), "list-of-other": revoke(OTHER, (), **times),
        "list-with-signer": revoke(ROOT, (SIGNER.public.id,), **times),
        "list-with-certificate": revoke(ROOT, (leaf.id,), **times),
        "list-with-blueprint": revoke(ROOT, (hashlib.sha256(good).digest(),), **times),
        "list-with-kernel": revoke(ROOT, (hand.DIGEST,), **times),
        "block": block(good, leaf), "block-of-two": block(good, below, above),
        "block-not-certified": block(good, below, certificate(ROOT, MIDDLE)),
        "block-late": block(good, certificate(ROOT, SIGNER, until_s=NOW_S)),
        "block-of-garbage": block(b"\xff" * 40, leaf),
        "block-of-contradiction": block(hand.body(arms=hand.vec(hand.arm(0, 1, 64)[:-1] + b"!")), leaf),
        "block-of-architecture": block(hand.body(isa="aarch64-neon"), leaf),
        "block-of-length": block(hand.body(length=5), leaf),
    }  # fmt: skip
    for name, (at, other) in {"magic": (0, b"MKBD"), "flags": (6, b"\2"), "small-order": (72, bytes(32))}.items():
        signed = leaf.data[:at] + other + leaf.data[at + len(other) : SIGNED_BYTES]
        false = signed + ROOT.sign("certificate", signed)
        files[f"block-of-{name}"] = b"\1" + false + block(good, leaf)[1 + len(false) :]
    SIGNED.mkdir(exist_ok=True)
    for name, data in files.items():
        if not (SIGNED / f"{name}.bin").exists():
            (SIGNED / f"{name}.bin").write_bytes(data)
    (SIGNED / SUMS).write_text(
        "".join(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(SIGNED.glob("*.bin"))
        )
    )


if __name__ == "__main__":
    main()
