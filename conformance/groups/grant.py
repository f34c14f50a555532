"""Grants: chains in every wrong order, blocks in every wrong shape, and what each caveat admits."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from conformance.case import Group
from conformance.digests import b3, plain, steward_text
from conformance.grants import (
    BACKEND,
    BEARERS,
    GRANT_TYPE,
    ISSUER,
    STEWARD,
    Chain,
    block,
    block_id,
    content,
    first_content,
    grant_text,
    header,
    whole,
)
from conformance.material import (
    MAX_UINT,
    OTHER,
    RECEIPT_TYPE,
    STARTED_NS,
    Map,
    checkpoint,
    digest,
    receipt,
    sign1,
    signed_checkpoint,
    signed_receipt,
    to_be_signed,
    trust_file,
)
from conformance.writer import NULL, array, bstr, head, indefinite, integer, item, mapping, tag, text

A, B, C = BEARERS[:3]
TRUST = trust_file(ISSUER)
ONE_STEWARD = {"steward-in": [STEWARD]}
W, X, BLUEPRINT = digest(0x0A), digest(0x0B), digest(0x0C)
NOW = STARTED_NS
MAX_BYTES = 4_096

THREE = Chain({"max-tokens": 50}, {"model-in": [W]}, {})
FIRST, SECOND, THIRD = THREE.blocks
PLAIN = item(first_content(A))
WEAK = (1).to_bytes(32, "little")


def one(payload: bytes | Map, **rest: object) -> bytes:
    """A grant of one block with this payload."""
    data = payload if isinstance(payload, bytes) else item(payload)
    return whole([block(ISSUER, data, **rest)], A)  # type: ignore[arg-type]


def two(payload: Map, **rest: object) -> bytes:
    parent = block_id(ISSUER, PLAIN)
    return whole([block(ISSUER, PLAIN), block(A, item(payload), parent, **rest)], B)  # type: ignore[arg-type]


def of_length(size: int) -> Chain:
    """Open, as long as what an unknown caveat states makes it."""
    room = size - len(Chain({"of-tomorrow": "a" * 256}).open()) + 256
    chain = Chain({"of-tomorrow": "a" * room})
    assert len(chain.open()) == size
    return chain


def good() -> Iterator[tuple[str, bytes, bytes, str]]:
    every = Chain(
        {"model-in": [W, X], "recipe-in": [digest(1), "a", "smollm2-135m"], "backend-in": [BACKEND]},
        {"blueprint-in": [BLUEPRINT], "fidelity-at-least": 3, "max-tokens": 2**31 - 1, "max-uj": MAX_UINT},
        {**ONE_STEWARD, "total-uj": 0, "total-tokens": MAX_UINT, "not-before": 0, "not-after": NOW},
        {"of-tomorrow": {"a": [1, True, b"", "x", -5]}},
    )
    small, wider = Chain({"max-tokens": 50}), Chain({"max-tokens": 5}, {"max-tokens": 50})
    eight = Chain(*({} for _ in range(8)))
    many = Chain({"model-in": [bytes([n]) * 32 for n in range(64)]})
    longest, later = of_length(MAX_BYTES), Chain(ONE_STEWARD, {"total-uj": 5})
    yield "one", small.open(), small.id, "One block, open."
    yield "one-closed", small.closed(), small.id, "The same, closed: the same id."
    yield "three", THREE.open(), THREE.id, "Three blocks, open."
    yield "three-closed", THREE.closed(), THREE.id, "Three blocks, closed."
    yield "no-caveats", Chain({}).open(), Chain({}).id, "Nothing is stated."
    yield "every-caveat", every.open(), every.id, "Every caveat there is, and one that there is not."
    yield "eight", eight.open(), eight.id, "As many blocks as there may be."
    yield "list-64", many.open(), many.id, "A list of 64."
    yield "total-later", later.open(), later.id, "A total, and the one steward in a block before."
    yield "longest", longest.open(), longest.id, "4096 bytes."
    yield "widened", wider.open(), wider.id, "A later block that states more. It is well-formed, and widens nothing."


PAIRS = [
    (integer(1), integer(-19)),
    (integer(3), text(GRANT_TYPE)),
    (integer(4), bstr(ISSUER.public)),
]
ENCODING = [
    ("empty", b"", "No bytes."),
    ("truncated", THREE.open()[:-1], "The last byte is missing."),
    ("trailing", THREE.open() + b"\x00", "A byte too many."),
    ("wide", b"\xb8\x02" + THREE.open()[1:], "The map's head is wider than it need be."),
    ("order", mapping([(text("secret"), bstr(A.seed)), (text("blocks"), array([bstr(FIRST)]))]),
        "Keys that do not ascend."),
    ("twice", mapping([(text("blocks"), array([]))] * 2), "A key twice."),
    ("too-long", whole([FIRST] * 24, A), "More than 4096 bytes."),
    ("long", of_length(MAX_BYTES + 1).open(), "4097 bytes, and nothing else is wrong."),
    ("envelope", FIRST, "A block, and no grant."),
    ("array", array([]), "An array, where a map is due."),
    ("null", mapping([(text("blocks"), array([bstr(FIRST)])), (text("secret"), NULL)]), "Null, where a secret may be."),
]  # fmt: skip
SCHEMA = [
    ("no-blocks", item({"secret": A.seed}), "No blocks."),
    ("blocks-empty", whole([], A), "A list of no block."),
    ("nine", whole([FIRST] * 9, A), "Nine blocks."),
    ("block-text", item({"blocks": ["x"], "secret": A.seed}), "A block that is text."),
    ("no-end", whole([block(ISSUER, PLAIN)]), "Neither a secret nor an end."),
    ("both-ends", whole([block(ISSUER, PLAIN)], A, closing=bytes(64)), "Both."),
    ("secret-short", whole([block(ISSUER, PLAIN)], secret=A.seed[:31]), "A secret of 31 bytes."),
    ("closing-short", whole([block(ISSUER, PLAIN)], closing=bytes(63)), "A closing signature of 63 bytes."),
    ("unknown-field", whole([block(ISSUER, PLAIN)], A, note="x"), "A field that is not known."),
]
STRUCTURE = [
    ("block-garbage", whole([b"not a block"], A), "Text in the place of a block."),
    ("block-payload", whole([PLAIN], A), "A payload without its envelope."),
    ("block-no-tag", whole([FIRST[1:]], A), "A block without its tag."),
    ("block-truncated", whole([FIRST[:-1]], A), "A block whose last byte is missing."),
    ("header-array", one(PLAIN, head=array([])), "A protected header that is an array."),
]
CANONICAL = [
    ("block-trailing", whole([FIRST + b"\x00"], A), "A byte after the block."),
    ("block-wide-tag", whole([b"\xd8\x12" + FIRST[1:]], A), "The tag's head is wider than it need be."),
    ("header-order", one(PLAIN, head=mapping(PAIRS[::-1])), "The header's keys do not ascend."),
    ("header-wide", one(PLAIN, head=header(ISSUER, alg=head(1, 18, 1))), "A wide head in the header."),
    ("block-indefinite", whole([tag(18, indefinite(4, b"".join((
        bstr(header(ISSUER)), b"\xa0", bstr(PLAIN), bstr(ISSUER.sign(to_be_signed(header(ISSUER), PLAIN)))))))], A),
        "An array without a length."),
]  # fmt: skip
HEADER = [
    ("header-empty", one(PLAIN, head=b"\xa0"), "An empty protected header."),
    ("alg-eddsa", one(PLAIN, head=header(ISSUER, alg=integer(-8))), "Algorithm -8, which names no curve."),
    ("no-alg", one(PLAIN, head=header(ISSUER, alg=None)), "No algorithm."),
    ("no-type", one(PLAIN, head=header(ISSUER, type=None)), "No type."),
    ("type-receipt", one(PLAIN, head=header(ISSUER, type=text(RECEIPT_TYPE))), "The type of a receipt."),
    ("no-kid", one(PLAIN, head=header(ISSUER, kid=None)), "No key."),
    ("kid-short", one(PLAIN, head=header(ISSUER, kid=bstr(ISSUER.public[:31]))), "A key of 31 bytes."),
    ("header-claims", one(PLAIN, head=mapping([*PAIRS, (integer(15), mapping(
        [(integer(1), text(steward_text(ISSUER.public))), (integer(2), text("x"))]))])),
        "The claims that a receipt has."),
    ("unprotected", one(PLAIN, unprotected=item({394: [b"a proof"]})), "An unprotected header."),
    ("removed", whole([FIRST, THIRD], C), "The block in the middle is missing."),
    ("reordered", whole([FIRST, THIRD, SECOND], B), "Two blocks have changed places."),
    ("duplicate", whole([FIRST, SECOND, SECOND], B), "A block twice."),
    ("duplicate-first", whole([FIRST, FIRST], A), "The first block twice."),
    ("wrong-next", whole([FIRST, block(OTHER, item(content(B)), THREE.ids[0])], B),
        "A block signed by a key that its parent does not name."),
    ("issuer-again", whole([FIRST, block(ISSUER, item(content(B)), THREE.ids[0])], B),
        "The issuer signs a later block, and the parent names another."),
    ("receipt", whole([signed_receipt(receipt())], A), "A receipt in the place of a block."),
    ("checkpoint", whole([signed_checkpoint(checkpoint())], A), "A checkpoint in the place of a block."),
]  # fmt: skip
UNTRUSTED = [
    ("stranger", Chain({}, issuer=OTHER).open(), "An issuer whom nobody named."),
    ("first-removed", whole([SECOND, THIRD], C), "The issuer's block is missing."),
    ("turned", whole([THIRD, SECOND, FIRST], A), "The chain backwards."),
]


def signed_wrong() -> Iterator[tuple[str, bytes, str]]:
    other = Chain({"max-tokens": 50}, nonce=bytes(16))
    yield "zeros", one(PLAIN, signature=bytes(64)), "A signature of zeros."
    yield "widened-first", whole([sign1(item(first_content(A, {"max-tokens": 51})), header(ISSUER),
        signature=FIRST[-64:])], A), "A caveat widened after it was signed."  # fmt: skip
    yield "other-parent", whole([*other.blocks, SECOND], B), "A block from another chain with the same keys."
    yield "no-parent", whole([FIRST, block(A, item(content(B)))], B), "A later block, signed as if it were the first."
    yield "a-parent", whole([block(ISSUER, PLAIN, digest(1))], A), "A first block, signed as if there were one before."
    context = ISSUER.sign(to_be_signed(header(ISSUER), PLAIN, context="Signature"))
    yield "context", one(PLAIN, signature=context), "Signed in another context."
    yield "by-another", one(PLAIN, signature=OTHER.sign(to_be_signed(header(ISSUER), PLAIN))), "Signed by another hand."
    weak = item(content(A, next=WEAK, nonce=bytes(16)))
    anything = WEAK + bytes(32)
    forged = sign1(item(content(B)), header(A, kid=bstr(WEAK)), signature=anything)
    yield "weak-next", whole([block(ISSUER, weak), forged], B), "A key of small order goes on."


def ended_wrong() -> Iterator[tuple[str, bytes, str]]:
    blocks = THREE.blocks
    yield "secret-other", whole(blocks, OTHER), "The secret of a key that the last block does not name."
    yield "secret-before", whole(blocks, B), "The secret of the block before: what its bearer gave away."
    yield "last-removed", whole(blocks[:2], C), "The last block is missing, its secret is there."
    yield "closing-zeros", whole(blocks, closing=bytes(64)), "A closing signature of zeros."
    shorter = Chain({"max-tokens": 50}, {"model-in": [W]})
    yield "closing-before", whole(blocks, closing=shorter.closing), "The closing signature of the chain before."
    yield "closing-shortened", whole(shorter.blocks, closing=THREE.closing), "A closed chain without its last block."
    bare = THREE.bearer.sign(THREE.id)
    yield "closing-bare", whole(blocks, closing=bare), "A signature over the id alone."
    after = THREE.bearer.sign(to_be_signed(header(C), item(content(A)), aad=THREE.id))
    yield "closing-block", whole(blocks, closing=after), "The signature of a block that comes after."
    receipt_like = THREE.bearer.sign(to_be_signed(header(C), b""))
    yield "closing-no-aad", whole(blocks, closing=receipt_like), "A closing signature over no block."


def by_hand(*caveats: tuple[bytes, bytes]) -> bytes:
    """A first payload with caveats that no map could hold."""
    fields = {"v": text("mesh/1"), "next": bstr(A.public), "nonce": bstr(bytes(16)), "caveats": mapping(caveats)}
    return mapping((text(name), value) for name, value in fields.items())


BAD_CAVEATS: tuple[tuple[str, Map, str], ...] = (
    ("model-in-empty", {"model-in": []}, "A list of nothing."),
    ("model-in-order", {"model-in": [X, W]}, "A list that does not ascend."),
    ("model-in-twice", {"model-in": [W, W]}, "An item twice."),
    ("model-in-short", {"model-in": [W[:31]]}, "A digest of 31 bytes."),
    ("model-in-text", {"model-in": [b3(W)]}, "A digest in its text form."),
    ("model-in-65", {"model-in": [bytes([n]) * 32 for n in range(65)]}, "A list of 65."),
    ("recipe-in-order", {"recipe-in": ["bb", "a"]}, "Names that do not ascend by their encodings."),
    ("recipe-in-mixed", {"recipe-in": ["a", W]}, "A name before a digest."),
    ("recipe-in-control", {"recipe-in": ["a\n"]}, "A name with a line break."),
    ("backend-in-parts", {"backend-in": ["gguf/1"]}, "A backend id of two parts."),
    ("steward-in-one", {"steward-in": STEWARD}, "A key that is in no list."),
    ("fidelity-4", {"fidelity-at-least": 4}, "Fidelity 4."),
    ("max-tokens-0", {"max-tokens": 0}, "No tokens at all."),
    ("max-uj-negative", {"max-uj": -1}, "Less than nothing."),
    ("max-uj-high", {"max-uj": 2**63}, "2^63."),
    ("not-after-text", {"not-after": "2026-11-30T08:00:00Z"}, "A time in text."),
    ("max-tokens-true", {"max-tokens": True}, "A boolean for a count."),
    ("name-empty", {"": 1}, "A caveat without a name."),
    ("total-alone", {"total-uj": 5}, "A total without a steward."),
    ("total-two", {"steward-in": sorted([STEWARD, ISSUER.public]), "total-tokens": 5}, "A total with two stewards."),
)
BAD_PAYLOADS = [
    ("v-2", one(first_content(A, v="mesh/2")), "Another version."),
    ("no-next", one(first_content(A, next=None)), "No next key."),
    ("next-short", one(first_content(A, next=A.public[:31])), "A next key of 31 bytes."),
    ("no-caveats", one(item({"v": "mesh/1", "next": A.public, "nonce": bytes(16)})), "No caveats."),
    ("caveats-list", one({**first_content(A), "caveats": [["max-tokens", 5]]}), "Caveats in a list."),
    ("no-nonce", one(content(A)), "A first block without a nonce."),
    ("nonce-short", one(first_content(A, nonce=bytes(15))), "A nonce of 15 bytes."),
    ("nonce-later", two(content(B, nonce=bytes(16))), "A later block with a nonce."),
    ("unknown", one(first_content(A, note=1)), "A field that is not known."),
    ("float", one(by_hand((text("x"), b"\xf9\x3c\x00"))), "A float in an unknown caveat."),
    ("caveat-twice", one(by_hand((text("max-uj"), integer(1)), (text("max-uj"), integer(1)))), "A caveat twice."),
    ("empty", one(b""), "An empty payload, which only the end of a chain has."),
    ("receipt", one(receipt()), "The payload of a receipt."),
    ("total-before", two(content(B, {"total-uj": 5})), "A total, and no steward in any block."),
]  # fmt: skip


def texts(group: Group) -> None:
    data = Chain({"max-tokens": 50}).open()
    good = grant_text(data)
    where = "grants"
    group.accept("text-good", f"grant-text {good}", b3(plain(data)), where, "The text form.", feature="grant")
    padded = "mg1_" + base64.urlsafe_b64encode(b"\x00" * 4).decode()
    for name, word, comment in (
        ("prefix", good[4:], "No prefix."),
        ("prefix-upper", "MG1_" + good[4:], "The prefix in capitals."),
        ("prefix-2", "mg2_" + good[4:], "Another version."),
        ("padded", padded, "Padding."),
        ("plain-base64", "mg1_+/+/", "The other alphabet."),
        ("letter", "mg1_AB.D", "A letter of no alphabet."),
        ("one-over", "mg1_AAAAA", "A character that holds no byte."),
        ("spare-bits", "mg1_AB", "Bits that no byte has."),
    ):
        group.reject(f"text-{name}", f"grant-text {word}", "schema", where, comment, feature="grant")


def cases() -> Group:
    group = Group("grant")
    call = "grant input.cbor trust.txt"

    def reject(name: str, data: bytes, error: str, rule: int, comment: str) -> None:
        files = {"input.cbor": data, "trust.txt": TRUST}
        group.reject(name, call, error, f"grants.{rule}", comment, files, feature="grant")

    for name, data, grant_id, comment in good():
        files = {"input.cbor": data, "trust.txt": TRUST}
        group.accept(name, call, b3(grant_id), "grants", comment, files, feature="grant")
    for rule, error, faults in (
        (1, "encoding", ENCODING),
        (2, "schema", SCHEMA),
        (3, "structure", STRUCTURE),
        (4, "canonical", CANONICAL),
        (5, "header", HEADER),
        (6, "trust", UNTRUSTED),
        (7, "signature", list(signed_wrong())),
    ):
        for name, data, comment in faults:
            reject(f"{error}-{name}", data, error, rule, comment)
    for name, data, comment in BAD_PAYLOADS:
        reject(f"payload-{name}", data, "payload", 8, comment)
    for name, caveats, comment in BAD_CAVEATS:
        reject(f"caveat-{name}", one(first_content(A, caveats)), "payload", 8, comment)
    for name, data, comment in ended_wrong():
        reject(f"end-{name}", data, "signature", 9, comment)
    texts(group)
    return group
