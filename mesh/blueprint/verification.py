"""The one order in which a blueprint is checked. The first fault is the one that is told.

    1 container   bounds of every section, against the file's size
    2 body-hash   the body has the hash that the header names
    3 signer      there is a signature block, of its layout
    4 chain       certificates, and their signatures up to a root; untrusted-root
    5 expired     each of them, now
    6 revoked     none of them, no kernel and not the blueprint itself; stale-revocations
    7 signer      both signatures over the body, and over each kernel's digest
    8 container   locators, and that every payload byte is where one of them says; kernel: payloads have their digests
    9 postcard    only now is the body decoded; body: it contradicts nothing; kernel: its modules are those of 7 and 8
    10 lineage    no higher revision was served before

Nothing of the body is used, nor even decoded, before 9. SPEC.md has the steps one class each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from mesh.blueprint.body import Body, decode_body
from mesh.blueprint.certificate import Certificate, check_chain
from mesh.blueprint.container import Container, Inline, Locator
from mesh.blueprint.elf import machine_of
from mesh.blueprint.revocation import Revocations
from mesh.blueprint.sealing import SignatureBlock
from mesh.blueprint.signature import PublicKey
from mesh.errors import KernelError, LineageError, RevokedError


@dataclass(frozen=True, slots=True)
class Policy:
    """Whom a verifier trusts: roots by their key ids, what they revoked, and the time, Unix seconds."""

    roots: Mapping[bytes, PublicKey]
    revocations: Revocations
    now_s: int


@dataclass(frozen=True)
class Blueprint:
    """One whose body was decoded. `chain` is empty where it is not signed, or nobody checked that."""

    id: bytes
    body: Body
    locators: tuple[Locator, ...]
    chain: tuple[Certificate, ...] = ()

    @property
    def signed(self) -> bool:
        return bool(self.chain)


def verify(container: Container, policy: Policy) -> Blueprint:
    """Steps 3 to 9 on a container that was opened, which is 1 and 2. Raises the BlueprintError of the first fault,
    UntrustedRoot or StaleRevocations."""
    block = SignatureBlock.from_bytes(container.signature_block)
    root = check_chain(block.chain, policy.roots)
    for number, certificate in enumerate(block.chain):
        certificate.check_time(policy.now_s, f"certificate {number}")
    _check_revoked(container, block, root, policy)
    block.check(block.chain[0].subject, container.header)
    signed = {digest for digest, _ in block.kernels}
    locators = _located(container, signed)
    return _decoded(container, locators, block.chain)


def read_unverified(container: Container) -> Blueprint:
    """What a file says, whoever made it: steps 1, 2, 8 and 9. For looking at, not for use."""
    return _decoded(container, _located(container, None), ())


def _check_revoked(container: Container, block: SignatureBlock, root: PublicKey, policy: Policy) -> None:
    policy.revocations.check(root.id, policy.now_s)
    for number, certificate in enumerate(block.chain):
        _not_among(policy.revocations.ids, certificate.id, f"certificate {number}")
        _not_among(policy.revocations.ids, certificate.subject.id, f"the key of certificate {number}")
    _not_among(policy.revocations.ids, container.id, "the blueprint")
    for digest, _ in block.kernels:
        _not_among(policy.revocations.ids, digest, "kernel module")


def _not_among(revoked: Collection[bytes], one: bytes, what: str) -> None:
    if one in revoked:
        raise RevokedError(f"{what} {one.hex()} was revoked")


def _located(container: Container, signed: Collection[bytes] | None) -> tuple[Locator, ...]:
    locators = container.locators()
    if signed is not None:
        located = {locator.digest for locator in locators}
        for digest in sorted(located ^ set(signed)):
            how = "is located and not signed" if digest in located else "is signed and not located"
            raise KernelError(f"kernel module {digest.hex()} {how}")
    container.check_payloads(locators)
    return locators


def _decoded(container: Container, locators: tuple[Locator, ...], chain: tuple[Certificate, ...]) -> Blueprint:
    body = decode_body(container.body)
    found = {locator.digest: locator.source for locator in locators}
    for module in body.modules:
        source = found.pop(module.digest, None)
        if source is None:
            raise KernelError(f"kernel module {module.name!r}: nothing says where its bytes are")
        if isinstance(source, Inline) and source.length != module.length:
            raise KernelError(f"kernel module {module.name!r}: {source.length} bytes inline, expected {module.length}")
        compiled = machine_of(next(container.pieces(source), b"")) if isinstance(source, Inline) else None
        if compiled is not None and compiled != module.architecture.partition("-")[0]:
            raise KernelError(f"kernel module {module.name!r}: compiled for {compiled}, expected {module.architecture}")
    for digest in found:
        raise KernelError(f"kernel module {digest.hex()}: located, and of no kernel of the blueprint")
    return Blueprint(container.id, body, locators, chain)


Override = Literal["lower-revision", "other-body"]


@dataclass(frozen=True, slots=True)
class Served:
    """A revision of a lineage that was served under."""

    revision: int
    blueprint_id: bytes


def check_lineage(blueprint: Blueprint, highest: Served | None, *, allow: bool) -> Override | None:
    """Step 10, against the highest revision of its lineage that was served under. What was allowed although it would
    have been refused is returned, to be reported. Raises LineageError."""
    if highest is None:
        return None
    revision = blueprint.body.revision
    if revision < highest.revision:
        fault: Override = "lower-revision"
        told = f"revision {revision}, after revision {highest.revision} of its lineage was served"
    elif revision == highest.revision and blueprint.id != highest.blueprint_id:
        fault = "other-body"
        told = f"revision {revision}, as which {highest.blueprint_id.hex()} was served"
    else:
        return None
    if not allow:
        raise LineageError(f"blueprint {blueprint.id.hex()}: {told}")
    return fault
