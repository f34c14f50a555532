"""A small blueprint, whole: a model of one layer, two kernels in one module."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from mesh.blueprint.body import (
    SCHEMA,
    Arm,
    Body,
    Checkpoint,
    Evidence,
    Group,
    Hardware,
    Kernel,
    Module,
    encode_body,
    planned,
)
from mesh.blueprint.certificate import Certificate, certify
from mesh.blueprint.circuit import Circuit, Edge, Format, Node, State, Weight
from mesh.blueprint.container import Container, Inline, Internal, Locator, head_of
from mesh.blueprint.revocation import Revocations, revoke
from mesh.blueprint.sealing import sign
from mesh.blueprint.settings import GgufSettings
from mesh.blueprint.signature import PublicKey, SecretKey
from mesh.blueprint.verification import Blueprint, Policy, verify

ROOT, MIDDLE, SIGNER = (SecretKey(bytes((number,)) * 64) for number in (1, 2, 3))
NOW_S = 1_800_000_000
YEAR_S = 365 * 86_400
PAYLOAD = b"\x7fELF" + b"a module" * 8
SETTINGS = GgufSettings(
    name="tiny", slots=2, context_tokens=64, kv_type="q8_0", flash_attention=True, n_batch=512, n_ubatch=64, threads=1,
    batch_threads=1, repack=True, together_always=False, chat_template=None, tokenizer_pre=None, eos_id=None,
    fidelity=None, environment=(("OMP_PROC_BIND", "true"),),
)  # fmt: skip


def circuit() -> Circuit:
    return Circuit(
        formats=(Format("F32", 1, 32), Format("Q4_1", 32, 160), Format("Q8_1", 32, 288)),
        weights=(Weight("norm", 0, (64,)), Weight("proj", 1, (64, 64))),
        blocks=("layer 0",),
        states=(State("kv", 0, 128),),
        nodes=(
            Node("tokens", "input", 0, None, (), None),
            Node("norm", "norm", 0, 0, (0,), None),
            Node("norm to Q8_1", "quantize", 2, 0, (), None),
            Node("proj", "linear", 0, 0, (1,), 0),
            Node("logits", "output", 0, None, (), None),
        ),
        edges=(Edge(0, 1, 0, 64), Edge(1, 2, 0, 64), Edge(2, 3, 2, 64), Edge(3, 4, 0, 64)),
    )


def body(payload: bytes = PAYLOAD, **fields: Any) -> Body:
    modules = (Module("lib.so", hashlib.sha256(payload).digest(), len(payload), "x86_64-avx2", "lib 1"),)
    kernels = (
        Kernel(0, "mul_mat", "matmul", "Q4_1 x Q8_1, sums in F32"),
        Kernel(0, "norm", "norm", "F32"),
    )
    groups = (Group(1, (1,)), Group(0, (2, 3)))
    arms = (Arm("prefill", 1, 64, groups, b""), Arm("decode", 1, 1, groups, b""), Arm("decode", 2, 2, groups, b""))
    made = Body(
        schema=SCHEMA,
        name="tiny on a test",
        lineage=bytes(range(16)),
        revision=3,
        checkpoint=Checkpoint("gguf", b"w" * 32, b"c" * 32, "llama", b"a" * 32, 1, "Q4_1"),
        hardware=Hardware("x86_64-avx2", "cpu", ("avx2", "fma")),
        circuit=circuit(),
        plan=tuple(planned(arm, modules, kernels) for arm in arms),
        modules=modules,
        kernels=kernels,
        settings=SETTINGS,
        evidence=(Evidence("self-check", b"r" * 32, "b11549", b"e" * 32, b"v" * 32, b"n" * 32),),
    )
    return replace(made, **fields)


def certificate(
    issuer: SecretKey = ROOT, subject: PublicKey = SIGNER.public, *, may_certify: bool = False, **fields: Any
) -> Certificate:
    told: dict[str, Any] = {"label": "a signer", "from_s": NOW_S - YEAR_S, "until_s": NOW_S + YEAR_S, **fields}
    return certify(issuer, subject, may_certify=may_certify, serial=b"s" * 16, **told)


def chain() -> tuple[Certificate, ...]:
    """Of two: the root certifies MIDDLE, which certifies SIGNER."""
    return certificate(MIDDLE), certificate(subject=MIDDLE.public, may_certify=True)


def revocations(*ids: bytes, root: SecretKey = ROOT, **fields: Any) -> Revocations:
    told = {"number": 1, "made_s": NOW_S - 86_400, "until_s": NOW_S + 86_400, **fields}
    return Revocations.from_bytes(revoke(root, ids, **told), {root.public.id: root.public})


def policy(*revoked: bytes, **fields: Any) -> Policy:
    return replace(Policy({ROOT.public.id: ROOT.public}, revocations(*revoked), NOW_S), **fields)


def kbp(
    made: Body | None = None, *, full: bool = True, certificates: tuple[Certificate, ...] | None = None,
    key: SecretKey | None = SIGNER, payload: bytes = PAYLOAD,
) -> bytes:  # fmt: skip
    """A file; signed by `key`, unless that is None."""
    made = body(payload) if made is None else made
    spelled = encode_body(made)
    locators = tuple(Locator(module.digest, Inline(0, len(payload)) if full else Internal()) for module in made.modules)
    head = head_of(spelled, locators)
    tail = payload if full else b""
    if key is None:
        return head + tail
    from mesh.blueprint.container import Container

    header = Container.of_bytes(head + tail).header
    block = sign(key, chain() if certificates is None else certificates, header, [one.digest for one in made.modules])
    return head_of(spelled, locators, block) + tail + block


def verified(made: Body | None = None) -> Blueprint:
    from mesh.blueprint.container import Container

    return verify(Container.of_bytes(kbp(made)), policy())


POLICY = policy()


def checked(data: bytes, trusted: Policy = POLICY) -> Blueprint:
    return verify(Container.of_bytes(data), trusted)
