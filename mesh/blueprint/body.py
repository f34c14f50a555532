"""What a blueprint states, whole: the value behind the body's bytes.

It starts with the name of its schema, since postcard does not describe itself. Whatever is here contradicts nothing
else that is here: an arm's digest follows from its groups, every kernel is used, every index leads somewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from mesh.blueprint import postcard as p
from mesh.blueprint.circuit import CIRCUIT, MAX_NODES, Circuit
from mesh.blueprint.container import MAX_MODULES
from mesh.blueprint.postcard_scalars import U32, U64, Constant, Fixed, Text, Unsigned, Words
from mesh.blueprint.settings import SETTINGS, Settings
from mesh.errors import BodyError, KernelError

SCHEMA: Final = "mesh-blueprint/1"
MODES: Final = ("prefill", "decode")
MAX_ARMS: Final = 64
MAX_KERNELS: Final = 4096
MAX_REVISION: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`weights_digest` is what receipts name, `content_digest` and `architecture_digest` what identities do."""

    format: str
    weights_digest: bytes
    content_digest: bytes
    architecture: str
    architecture_digest: bytes
    layers: int
    precision: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """`isa` as in a `backend_id`; `features` are what the processor must have, in order."""

    isa: str
    device: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled module: `length` bytes with this SHA-256, for `architecture`, as `origin` released it."""

    name: str
    digest: bytes
    length: int
    architecture: str
    origin: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a module; `numerics` is what it takes and what it sums up in."""

    module: int
    function: str
    family: str
    numerics: str


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that one kernel computes together."""

    kernel: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """How the circuit is computed in a mode, for `rows_from` to `rows_to` rows at once. A loader must come to the same
    `digest` from the checkpoint and the settings alone."""

    mode: str
    rows_from: int
    rows_to: int
    groups: tuple[Group, ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """A record somewhere else, by its SHA-256, with the engine and the hashes of the command that it came from."""

    kind: str
    record: bytes
    engine_commit: str
    engine_binary: bytes
    argv: bytes
    env: bytes


@dataclass(frozen=True, slots=True)
class Body:
    """Raises BodyError where it contradicts itself, KernelError where a module is for another machine."""

    schema: str
    name: str
    lineage: bytes
    revision: int
    checkpoint: Checkpoint
    hardware: Hardware
    circuit: Circuit
    plan: tuple[Arm, ...]
    modules: tuple[Module, ...]
    kernels: tuple[Kernel, ...]
    settings: Settings
    evidence: tuple[Evidence, ...]

    def __post_init__(self) -> None:
        _ascending("hardware.features", self.hardware.features)
        _ascending("modules", [module.digest for module in self.modules])
        _ascending("kernels", [(kernel.module, kernel.function.encode()) for kernel in self.kernels])
        _ascending("evidence", [one.record for one in self.evidence])
        for number, kernel in enumerate(self.kernels):
            _within(f"kernels[{number}].module", kernel.module, len(self.modules))
        if {kernel.module for kernel in self.kernels} != set(range(len(self.modules))):
            raise BodyError("blueprint: a module of which no kernel is")
        if not self.plan:
            raise BodyError("blueprint: no plan")
        _ascending("plan", [(MODES.index(arm.mode), arm.rows_from) for arm in self.plan])
        for number, arm in enumerate(self.plan):
            self._check_arm(f"plan[{number}]", arm)
        for number, (before, after) in enumerate(pairwise(self.plan)):
            if before.mode == after.mode and before.rows_to >= after.rows_from:
                raise BodyError(f"blueprint: plan[{number + 1}] is for rows that plan[{number}] is for")
        used = {group.kernel for arm in self.plan for group in arm.groups}
        for number, kernel in enumerate(self.kernels):
            if number not in used:
                raise BodyError(f"blueprint: kernel {kernel.function!r} computes nothing")
        for kernel in self.kernels:  # last, as another step of the check
            machine = self.modules[kernel.module].architecture.partition("-")[0]
            if machine != self.hardware.isa.partition("-")[0]:
                raise KernelError(
                    f"kernel {kernel.function!r}: for architecture {machine!r}, the hardware is {self.hardware.isa!r}"
                )

    def _check_arm(self, what: str, arm: Arm) -> None:
        if not 0 < arm.rows_from <= arm.rows_to:
            raise BodyError(f"blueprint: {what}: rows {arm.rows_from} to {arm.rows_to}")
        planned = [node for group in arm.groups for node in group.nodes]
        if any(node >= len(self.circuit.nodes) for node in planned) or len(planned) != len(set(planned)):
            raise BodyError(f"blueprint: {what}: a node that is not there, or is computed twice")
        ends = {number for number, node in enumerate(self.circuit.nodes) if node.kind in ("input", "output")}
        if set(planned) != set(range(len(self.circuit.nodes))) - ends:
            raise BodyError(f"blueprint: {what}: not all nodes are computed, or an end of the circuit is")
        for number, group in enumerate(arm.groups):
            _within(f"{what}.groups[{number}].kernel", group.kernel, len(self.kernels))
            if not group.nodes:
                raise BodyError(f"blueprint: {what}.groups[{number}]: no nodes")
        expected = arm_digest(arm, self.modules, self.kernels)
        if arm.digest != expected:
            raise BodyError(f"blueprint: {what}: its digest is {arm.digest.hex()}, its groups give {expected.hex()}")


def _within(what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise BodyError(f"blueprint: {what} is {index}, expected less than {count}")


def _ascending(what: str, keys: Sequence[object]) -> None:
    for number, (before, after) in enumerate(pairwise(keys)):
        if before >= after:  # type: ignore[operator]  # keys of one sequence are of one kind
            raise BodyError(f"blueprint: {what}[{number + 1}] is not above the one before it")


_NAME, _DIGEST = Text(256), Fixed(32)
_GROUPS = p.Seq(p.Struct(Group, kernel=U32, nodes=p.Seq(U32, 64)), MAX_NODES)
_GROUP_CONTENT = p.Seq(p.Tuple(_DIGEST, _NAME, p.Seq(U32, 64)), MAX_NODES)
_ARM_CONTENT = p.Tuple(Words(*MODES), U32, U32, _GROUP_CONTENT)
BODY: Final = p.Struct(
    Body,
    schema=Constant(SCHEMA),
    name=_NAME,
    lineage=Fixed(16),
    revision=Unsigned(64, MAX_REVISION),
    checkpoint=p.Struct(
        Checkpoint, format=Words("gguf", "safetensors"), weights_digest=_DIGEST, content_digest=_DIGEST,
        architecture=_NAME, architecture_digest=_DIGEST, layers=U32, precision=_NAME,
    ),
    hardware=p.Struct(Hardware, isa=_NAME, device=_NAME, features=p.Seq(Text(64), 64)),
    circuit=CIRCUIT,
    plan=p.Seq(
        p.Struct(Arm, mode=Words(*MODES), rows_from=U32, rows_to=U32, groups=_GROUPS, digest=_DIGEST), MAX_ARMS
    ),
    modules=p.Seq(
        p.Struct(Module, name=_NAME, digest=_DIGEST, length=U64, architecture=_NAME, origin=_NAME), MAX_MODULES
    ),
    kernels=p.Seq(p.Struct(Kernel, module=U32, function=_NAME, family=_NAME, numerics=_NAME), MAX_KERNELS),
    settings=SETTINGS,
    evidence=p.Seq(
        p.Struct(
            Evidence, kind=Words("self-check", "measurement", "receipt"), record=_DIGEST, engine_commit=_NAME,
            engine_binary=_DIGEST, argv=_DIGEST, env=_DIGEST,
        ),
        256,
    ),
)  # fmt: skip


def arm_digest(arm: Arm, modules: Sequence[Module], kernels: Sequence[Kernel]) -> bytes:
    """SHA-256 over the arm with its kernels spelled out, so that it stands for what is computed and not for places in
    a list."""
    content = (
        arm.mode,
        arm.rows_from,
        arm.rows_to,
        tuple(
            (modules[kernels[group.kernel].module].digest, kernels[group.kernel].function, group.nodes)
            for group in arm.groups
        ),
    )
    return hashlib.sha256(b"mesh blueprint arm v1\0" + p.encode(_ARM_CONTENT, content, "arm")).digest()


def planned(arm: Arm, modules: Sequence[Module], kernels: Sequence[Kernel]) -> Arm:
    """The arm with the digest that follows."""
    return replace(arm, digest=arm_digest(arm, modules, kernels))


def encode_body(body: Body) -> bytes:
    """Raises PostcardError."""
    return p.encode(BODY, body, "blueprint")


def decode_body(data: bytes) -> Body:
    """Raises PostcardError for bytes that are not the encoding of one, BodyError for one that contradicts itself,
    KernelError for one whose modules are for another machine than its hardware."""
    body: Body = p.decode(BODY, data, "blueprint")
    return body


def blueprint_id(data: bytes) -> bytes:
    """Of a body's bytes: their SHA-256."""
    return hashlib.sha256(data).digest()
