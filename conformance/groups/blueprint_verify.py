"""Blueprints: files that may be used, each step of the check broken by itself, and what was served before."""

from __future__ import annotations

from conformance import postcards as hand
from conformance.case import Group
from conformance.groups.blueprint import CERTIFICATE, FEATURE, FULL, GOOD, ID, LITE, SIGNATURES, flipped, kept
from conformance.postcards import NOW_S, kbp, vec


def cases() -> Group:
    group = Group("blueprint")
    _verify(group)
    _lineage(group)
    return group


def _verify(group: Group) -> None:
    roots, listed = kept("roots"), kept("list")
    full = kbp(GOOD, FULL, block=kept("block"))

    def files(data: bytes, keys: bytes, revoked: bytes) -> dict[str, bytes]:
        return {"input.bin": data, "roots.bin": keys, "list.bin": revoked}

    def accept(name: str, data: bytes, comment: str) -> None:
        call = f"blueprint-verify input.bin roots.bin list.bin {NOW_S}"
        group.accept(name, call, ID, "blueprints.10", comment, files(data, roots, listed), feature=FEATURE)

    def reject(
        name: str, data: bytes, error: str, step: int, comment: str, *, keys: bytes = roots, revoked: bytes = listed,
        now_s: int = NOW_S,
    ) -> None:  # fmt: skip
        call = f"blueprint-verify input.bin roots.bin list.bin {now_s}"
        group.reject(
            name, call, error, f"blueprints.{step}", comment, files(data, keys, revoked), feature=FEATURE
        )  # fmt: skip

    accept("signed-full", full, "Signed by one whom the root certified.")
    accept("signed-lite", kbp(GOOD, LITE, b"", kept("block")), "The same signatures, without the module.")
    accept("signed-by-two", kbp(GOOD, FULL, block=kept("block-of-two")), "Certified by one whom the root certified.")
    reject("not-signed", kbp(GOOD, FULL), "signer", 3, "A preview.")
    reject("no-certificates", kbp(GOOD, FULL, block=flipped(kept("block"), 0)), "signer", 3, "No certificates.")
    count = 1 + CERTIFICATE + SIGNATURES
    reject(
        "kernels-more",
        kbp(GOOD, FULL, block=flipped(kept("block"), count, 2)),
        "signer",
        3,
        "Three kernels in the bytes of one.",
    )
    reject("certificate-magic", kbp(GOOD, FULL, block=flipped(kept("block"), 1)), "chain", 4, "No certificate.")
    reject(
        "certificate-flags",
        kbp(GOOD, FULL, block=flipped(kept("block"), 7, 2)),
        "chain",
        4,
        "A flag that there is not.",
    )
    weak = kept("block")[:73] + bytes(32) + kept("block")[105:]
    reject("key-of-small-order", kbp(GOOD, FULL, block=weak), "chain", 4, "An Ed25519 key that can bind nobody.")
    for name, comment in (
        ("magic", "Well signed, and no certificate."),
        ("flags", "Well signed, with a flag that there is not."),
        ("small-order", "Well signed, of an Ed25519 key that can bind nobody."),
    ):
        reject(f"signed-{name}", kbp(GOOD, FULL, block=kept(f"block-of-{name}")), "chain", 4, comment)
    reject(
        "may-not-certify",
        kbp(GOOD, FULL, block=kept("block-not-certified")),
        "chain",
        4,
        "A certificate by one who may not.",
    )
    reject(
        "link-changed",
        kbp(GOOD, FULL, block=flipped(kept("block-of-two"), 10)),
        "chain",
        4,
        "A serial is another, and the signature does not hold.",
    )
    reject(
        "other-root",
        full,
        "untrusted-root",
        5,
        "A root that nobody named.",
        keys=kept("other-roots"),
        revoked=kept("list-of-other"),
    )
    reject(
        "certificate-changed",
        kbp(GOOD, FULL, block=flipped(kept("block"), 26)),
        "chain",
        6,
        "A date is another, and the signature does not hold.",
    )
    reject("expired", full, "expired", 7, "At the first second that it is not valid.", now_s=NOW_S + 365 * 86_400)
    reject("expired-certificate", kbp(GOOD, FULL, block=kept("block-late")), "expired", 7, "It was valid until now.")
    reject("not-yet", full, "expired", 7, "Before it is valid.", now_s=NOW_S - 86_401)
    reject("list-late", full, "stale-revocations", 8, "The list says nothing any more.", now_s=NOW_S + 86_400)
    both = roots + kept("other-roots")
    reject(
        "list-of-other",
        full,
        "stale-revocations",
        8,
        "A list of another root, which is trusted too.",
        keys=both,
        revoked=kept("list-of-other"),
    )
    for which in ("signer", "certificate", "blueprint", "kernel"):
        revoked = kept(f"list-with-{which}")
        reject(f"revoked-{which}", full, "revoked", 9, f"The list names its {which}.", revoked=revoked)
    at = 1 + CERTIFICATE
    for name, place, comment in (
        ("ed25519", at, "The Ed25519 signature over the body."),
        ("ml-dsa", at + 64, "The ML-DSA-65 signature over the body."),
        ("kernel-ed25519", at + SIGNATURES + 34, "The Ed25519 signature over the kernel."),
        ("kernel-ml-dsa", at + SIGNATURES + 34 + 64, "The ML-DSA-65 signature over the kernel."),
    ):
        reject(
            f"signature-{name}",
            kbp(GOOD, FULL, block=flipped(kept("block"), place)),
            "signer",
            10,
            f"{comment[:-1]} does not hold.",
        )
    reject(
        "signed-other-body",
        kbp(hand.body(behind=b""), FULL, block=kept("block-of-garbage")),
        "signer",
        10,
        "Signatures over another body.",
    )
    reject(
        "signed-payload-behind",
        kbp(GOOD, FULL, hand.MODULE + b"!", kept("block")),
        "container",
        11,
        "A byte that no locator is about.",
    )
    reject(
        "signed-payload-changed",
        kbp(GOOD, FULL, hand.MODULE[:-1] + b"!", kept("block")),
        "kernel",
        12,
        "A module with another digest.",
    )
    reject("signed-not-located", kbp(GOOD, vec(), b"", kept("block")), "kernel", 12, "What is signed is not located.")
    reject(
        "signed-garbage",
        kbp(b"\xff" * 40, FULL, block=kept("block-of-garbage")),
        "postcard",
        13,
        "Well signed, and no body.",
    )
    reject(
        "first-kernel",
        kbp(b"\xff" * 40, vec(), b"", kept("block-of-garbage")),
        "kernel",
        12,
        "What is signed is not located, and the body is none.",
    )
    contradiction = hand.body(arms=vec(hand.arm(0, 1, 64)[:-1] + b"!"))
    reject(
        "signed-contradiction",
        kbp(contradiction, FULL, block=kept("block-of-contradiction")),
        "body",
        14,
        "Well signed, and its arm has another digest.",
    )
    reject(
        "signed-architecture",
        kbp(hand.body(isa="aarch64-neon"), FULL, block=kept("block-of-architecture")),
        "kernel",
        15,
        "Well signed, and for another machine.",
    )
    reject(
        "signed-length",
        kbp(hand.body(length=5), FULL, block=kept("block-of-length")),
        "kernel",
        15,
        "Well signed, and of another length.",
    )


def _lineage(group: Group) -> None:
    files = {"input.bin": kbp(GOOD, LITE, b"")}
    own, other = ID.removeprefix("b3:"), "00" * 32
    for name, revision, served, comment in (
        ("lineage-later", hand.REVISION - 1, other, "A higher revision than was served."),
        ("lineage-same", hand.REVISION, own, "The one that was served."),
    ):
        call = f"blueprint-lineage input.bin {revision} {served}"
        group.accept(name, call, ID, "blueprints.16", comment, files, feature=FEATURE)
    for name, revision, served, comment in (
        ("lineage-lower", hand.REVISION + 1, other, "A higher revision was served before."),
        ("lineage-other", hand.REVISION, other, "Another body was served as this revision."),
    ):
        call = f"blueprint-lineage input.bin {revision} {served}"
        group.reject(name, call, "lineage", "blueprints.16", comment, files, feature=FEATURE)
