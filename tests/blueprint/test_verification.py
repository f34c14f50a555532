"""One order of checks: each fault is told by the first step that it is a fault of, and the body is read last."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from mesh.blueprint.body import Body, encode_body
from mesh.blueprint.certificate import CERTIFICATE_BYTES, SIGNED_BYTES
from mesh.blueprint.container import HEADER, Container, Disk, Inline, Internal, Locator, Remote, Source, head_of
from mesh.blueprint.revocation import Revocations
from mesh.blueprint.sealing import sign
from mesh.blueprint.signature import SIGNATURE_BYTES
from mesh.blueprint.verification import Served, check_lineage, read_unverified
from mesh.errors import (
    BlueprintError,
    BodyError,
    BodyHashError,
    ChainError,
    ContainerError,
    KernelError,
    LineageError,
    MeshError,
    PostcardError,
    SignerError,
    UntrustedRoot,
)
from tests.blueprint.bodies import (
    NOW_S,
    PAYLOAD,
    ROOT,
    SIGNER,
    body,
    chain,
    checked,
    kbp,
)


def of_bytes(spelled: bytes, payload: bytes = PAYLOAD) -> bytes:
    """A full file, well signed, of any body."""
    digest = hashlib.sha256(payload).digest()
    locators = (Locator(digest, Inline(0, len(payload))),)
    header = Container.of_bytes(head_of(spelled, locators) + payload).header
    block = sign(SIGNER, chain(), header, [digest])
    return head_of(spelled, locators, block) + payload + block


def test_full_and_lite_file_are_the_same_blueprint() -> None:
    made = body()
    full, lite = checked(kbp(made)), checked(kbp(made, full=False))
    assert full.body == lite.body == made
    assert full.id == lite.id == hashlib.sha256(encode_body(made)).digest()
    assert [one.label for one in full.chain] == ["a signer", "a signer"]


GARBAGE = of_bytes(b"\xff" * 40)
_LOCATORS_AT = HEADER.size + 40
_PAYLOAD_AT = _LOCATORS_AT + 36
_BLOCK_AT = _PAYLOAD_AT + len(PAYLOAD)
_BODY_SIGNATURE_AT = _BLOCK_AT + 1 + 2 * CERTIFICATE_BYTES
_KERNELS_AT = _BODY_SIGNATURE_AT + SIGNATURE_BYTES


def reason(at: int) -> tuple[type[MeshError], ...]:
    """What a change of the byte at `at` may be told as."""
    if at < 40:
        return (ContainerError,)
    if at < _LOCATORS_AT:
        return (BodyHashError,)
    if at < _PAYLOAD_AT:
        return (ContainerError, KernelError)
    if at < _BLOCK_AT:
        return (KernelError,)
    if at == _BLOCK_AT:
        return (SignerError,)
    if at < _BODY_SIGNATURE_AT:
        # whose the last certificate is says which root to look for
        issuer = _BLOCK_AT + 1 + CERTIFICATE_BYTES + 40
        return (UntrustedRoot,) if issuer <= at < issuer + 32 else (ChainError,)
    return (SignerError,)


def test_body_that_is_none_is_refused_last() -> None:
    """So that whatever else is told of this file was told before its body was decoded."""
    assert len(GARBAGE) == _KERNELS_AT + 2 + 32 + SIGNATURE_BYTES
    with pytest.raises(PostcardError):
        checked(GARBAGE)


def check_changes(every: int) -> None:
    changed = bytearray(GARBAGE)
    for at in range(0, len(GARBAGE), every):
        changed[at] ^= 1 << at % 8
        with pytest.raises(reason(at)) as told:
            checked(bytes(changed))
        assert not isinstance(told.value, PostcardError), at
        changed[at] = GARBAGE[at]


def test_changed_byte_is_refused_before_the_body_is_decoded_with_its_reason() -> None:
    check_changes(every=61)


@pytest.mark.deep
def test_every_changed_byte_is_refused_before_the_body_is_decoded_with_its_reason() -> None:
    check_changes(every=1)


def test_changed_byte_of_header_tables_and_fields_is_refused_with_its_reason() -> None:
    changed = bytearray(GARBAGE)
    fields = [*range(_BLOCK_AT + 1 + 72 + 40), *range(_BLOCK_AT + 1 + SIGNED_BYTES - 64, _BLOCK_AT + 1 + SIGNED_BYTES)]
    for at in (*fields, *range(_KERNELS_AT, _KERNELS_AT + 34), _BODY_SIGNATURE_AT - 1, len(GARBAGE) - 1):
        for flip in (0x01, 0x80):
            changed[at] ^= flip
            with pytest.raises(reason(at)):
                checked(bytes(changed))
            changed[at] = GARBAGE[at]


@pytest.mark.parametrize("count", [1, 1000])
def test_cut_and_lengthened_files_are_refused(count: int) -> None:
    for data in (GARBAGE[:-count], GARBAGE + b"\0" * count, GARBAGE[:40], b""):
        with pytest.raises(ContainerError):
            checked(data)


def test_lengths_are_held_against_the_file_before_anything_is_read() -> None:
    for field in range(4):
        data = bytearray(GARBAGE)
        data[8 + 8 * field : 16 + 8 * field] = (2**62).to_bytes(8, "little")
        with pytest.raises(ContainerError, match="expected at most"):
            checked(bytes(data))


def test_unsigned_file_is_read_and_never_verified() -> None:
    data = kbp(key=None)
    assert read_unverified(Container.of_bytes(data)).body == body()
    with pytest.raises(SignerError, match="not signed"):
        checked(data)


def test_first_of_two_faults_is_the_one_that_is_told() -> None:
    made = body()
    told = replace(made.settings)
    object.__setattr__(told, "environment", (("B", ""), ("A", "")))
    contradiction = replace(made, settings=told)
    with pytest.raises(BodyError, match="do not ascend"):
        checked(of_bytes(encode_body(contradiction)))
    with pytest.raises(PostcardError, match="1 bytes follow"):
        checked(of_bytes(encode_body(contradiction) + b"\0"))
    hardware = replace(made.hardware)
    object.__setattr__(hardware, "isa", "aarch64-neon")
    both = replace(made)
    object.__setattr__(both, "hardware", hardware)
    with pytest.raises(KernelError, match="the hardware is 'aarch64-neon'"):
        checked(of_bytes(encode_body(both)))
    object.__setattr__(both, "plan", ())
    with pytest.raises(BodyError, match="no plan"):
        checked(of_bytes(encode_body(both)))


def test_inline_module_for_another_machine_is_refused_whatever_the_body_says_of_it() -> None:
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00"
    for number, machine in ((183, "aarch64"), (190, "cuda")):
        payload = head + number.to_bytes(2, "little") + b" code"
        with pytest.raises(KernelError, match=f"compiled for {machine}, expected x86_64-avx2"):
            checked(kbp(body(payload), payload=payload))
    for payload in (head + b"\x3e\x00 code", head + b"\xff\xff code", b"no ELF file"):
        assert checked(kbp(body(payload), payload=payload)).signed


def test_block_without_certificates_or_with_a_kernel_twice_is_none() -> None:
    container = Container.of_bytes(kbp())
    block = container.signature_block
    kernel = block[_KERNELS_AT - _BLOCK_AT + 2 :]
    bare = b"\0" + block[1 + 2 * CERTIFICATE_BYTES :]
    twice = block[: _KERNELS_AT - _BLOCK_AT] + b"\2\0" + kernel * 2
    for made, told in ((bare, "0 certificates"), (twice, "do not ascend")):
        data = head_of(container.body, container.locators(), made) + PAYLOAD + made
        with pytest.raises(SignerError, match=told):
            checked(data)


def test_inline_module_that_is_shorter_than_its_pin_is_refused() -> None:
    made = body()
    modules = (replace(made.modules[0], length=len(PAYLOAD) + 1),)
    with pytest.raises(KernelError, match=f"{len(PAYLOAD)} bytes inline, expected {len(PAYLOAD) + 1}"):
        checked(kbp(replace(made, modules=modules)))


def test_list_names_each_id_once_and_has_a_time() -> None:
    def listed(count: int, until_s: int) -> bytes:
        head = b"MKRL\1\0\0\0" + b"".join(n.to_bytes(8, "little") for n in (1, NOW_S, until_s)) + ROOT.public.id
        head += count.to_bytes(4, "little") + b"i" * 32 * count
        return head + ROOT.sign("revocations", head)

    roots = {ROOT.public.id: ROOT.public}
    assert Revocations.from_bytes(listed(1, NOW_S + 1), roots).ids == {b"i" * 32}
    with pytest.raises(ChainError, match="do not ascend"):
        Revocations.from_bytes(listed(2, NOW_S + 1), roots)
    with pytest.raises(ChainError, match="which is never"):
        Revocations.from_bytes(listed(1, NOW_S), roots)


def test_both_signatures_over_the_body_must_hold() -> None:
    data = bytearray(GARBAGE)
    data[_BODY_SIGNATURE_AT] ^= 1
    with pytest.raises(SignerError, match=r"^blueprint: its Ed25519"):
        checked(bytes(data))
    data[_BODY_SIGNATURE_AT] ^= 1
    data[_BODY_SIGNATURE_AT + 64] ^= 1
    with pytest.raises(SignerError, match=r"^blueprint: its ML-DSA-65"):
        checked(bytes(data))


# --- kernels


def located(*locators: Locator, payload: bytes = PAYLOAD, made: Body | None = None) -> bytes:
    spelled = encode_body(body() if made is None else made)
    header = Container.of_bytes(head_of(spelled, ())).header
    block = sign(SIGNER, chain(), header, [hashlib.sha256(PAYLOAD).digest()])
    head = bytearray(head_of(spelled, tuple(locators), block))
    head[24:32] = len(payload).to_bytes(8, "little")
    return bytes(head) + payload + block


DIGEST = hashlib.sha256(PAYLOAD).digest()
SIZE = len(PAYLOAD)


@pytest.mark.parametrize("source", [Internal(), Disk("/opt/lib.so"), Remote("https://host.invalid/lib.so")])
def test_kernel_may_be_anywhere(source: Source) -> None:
    assert checked(located(Locator(DIGEST, source), payload=b"")).locators == (Locator(DIGEST, source),)


@pytest.mark.parametrize(
    ("locators", "payload", "error", "told"),
    [
        ((Locator(DIGEST, Inline(0, SIZE)),), PAYLOAD[:-1] + b"!", KernelError, "payload: is"),
        ((Locator(DIGEST, Inline(0, SIZE)),), PAYLOAD + b"!", ContainerError, "1 bytes that no locator is about"),
        ((Locator(DIGEST, Inline(1, SIZE)),), b"!" + PAYLOAD, ContainerError, "leaves bytes before it"),
        ((Locator(DIGEST, Inline(0, SIZE + 1)),), PAYLOAD, ContainerError, "ends at"),
        ((Locator(DIGEST, Inline(0, 2**30)),), PAYLOAD, ContainerError, "ends at"),
        ((Locator(DIGEST, Internal()),), PAYLOAD, ContainerError, "no locator is about"),
        (
            (Locator(b"\0" * 32, Inline(0, 4)), Locator(b"\x01" * 32, Inline(2, 2))), b"abcd", ContainerError,
            "overlaps",
        ),
        ((Locator(DIGEST, Internal()), Locator(DIGEST, Internal())), b"", ContainerError, "not above"),
        ((Locator(b"\0" * 32, Internal()), Locator(DIGEST, Internal())), b"", KernelError, "located and not signed"),
        ((), b"", KernelError, "signed and not located"),
    ],
)  # fmt: skip
def test_bytes_that_are_not_where_they_are_said_to_be_are_refused(
    locators: tuple[Locator, ...], payload: bytes, error: type[BlueprintError], told: str
) -> None:
    with pytest.raises(error, match=told):
        checked(located(*locators, payload=payload))


def test_kernels_of_the_body_are_those_that_are_signed() -> None:
    other = b"another module"
    with pytest.raises(KernelError, match="nothing says where"):
        checked(of_bytes(encode_body(body(other))))
    long = body()
    lying = replace(long, modules=(replace(long.modules[0], length=1),))
    with pytest.raises(KernelError, match=f"{SIZE} bytes inline, expected 1"):
        checked(kbp(lying))


def test_kernel_of_another_architecture_is_refused_whatever_its_source() -> None:
    made = body()
    with pytest.raises(KernelError, match="for architecture 'aarch64'"):
        replace(made, modules=(replace(made.modules[0], architecture="aarch64-neon"),))
    # and so in bytes that were signed all the same
    spelled = encode_body(made).replace(b"\x0bx86_64-avx2\x05lib 1", b"\x0caarch64-neon\x05lib 1")
    with pytest.raises(KernelError, match="for architecture 'aarch64'"):
        checked(of_bytes(spelled))


# --- lineage


def test_lower_revision_is_refused_unless_that_is_allowed_and_told() -> None:
    blueprint = checked(kbp())
    assert check_lineage(blueprint, None, allow=False) is None
    assert check_lineage(blueprint, Served(2, b"x" * 32), allow=False) is None
    assert check_lineage(blueprint, Served(3, blueprint.id), allow=False) is None
    for served, told in ((Served(4, b"x" * 32), "lower-revision"), (Served(3, b"x" * 32), "other-body")):
        with pytest.raises(LineageError, match="revision 3"):
            check_lineage(blueprint, served, allow=False)
        assert check_lineage(blueprint, served, allow=True) == told


def test_body_that_contradicts_itself_is_refused_after_its_signatures() -> None:
    made = body()
    spelled = bytearray(encode_body(made))
    digest = made.plan[0].digest
    spelled[spelled.index(digest)] ^= 1
    with pytest.raises(BodyError, match=r"plan\[0\]: its digest is"):
        checked(of_bytes(bytes(spelled)))
