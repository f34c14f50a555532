"""Postcard by hand, and a small blueprint in it: what vectors are made of, without the encoder that they are for."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

SIGNED = Path(__file__).parent / "signed"  # see `sign_blueprints`
NOW_S = 1_800_000_000
MODULE = b"\x7fELF a compiled module"
DIGEST = hashlib.sha256(MODULE).digest()
# The head of an ELF file for aarch64.
OTHER_MODULE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + b" a module"
ISA, FUNCTIONS = "x86_64-avx2", ("mul_mat", "norm")
LINEAGE, REVISION = bytes(range(16)), 3
WEIGHTS = hashlib.sha256(b"weights").digest()


def u(number: int) -> bytes:
    """A varint."""
    out = b""
    while number >= 0x80:
        out += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return out + bytes((number,))


def text(words: str) -> bytes:
    data = words.encode()
    return u(len(data)) + data


def vec(*items: bytes) -> bytes:
    return u(len(items)) + b"".join(items)


def some(item: bytes | None) -> bytes:
    return b"\0" if item is None else b"\1" + item


def node(name: str, kind: int, format_: int, block: int | None, *weights: int, state: int | None = None) -> bytes:
    place = some(None if block is None else u(block))
    kept = some(None if state is None else u(state))
    return text(name) + u(kind) + u(format_) + place + vec(*map(u, weights)) + kept


def edge(start: int, end: int, format_: int) -> bytes:
    return u(start) + u(end) + u(format_) + u(64)


FORMATS = tuple(
    text(name) + u(block) + u(bits) for name, block, bits in (("F32", 1, 32), ("Q4_1", 32, 160), ("Q8_1", 32, 288))
)
WIRES = (text("norm") + u(0) + vec(u(64)), text("proj") + u(1) + vec(u(64), u(64)))
BLOCKS, STATES = (text("layer 0"),), (text("kv") + u(0) + u(128),)
NODES = (
    node("tokens", 0, 0, None), node("norm", 2, 0, 0, 0), node("norm in Q8_1", 12, 2, 0),
    node("proj", 3, 0, 0, 1, state=0), node("logits", 14, 0, None),
)  # fmt: skip
EDGES = (edge(0, 1, 0), edge(1, 2, 0), edge(2, 3, 2), edge(3, 4, 0))
FEATURES = (text("avx2"), text("fma"))
GROUPS = ((1, (1,)), (0, (2, 3)))


def circuit(**parts: tuple[bytes, ...]) -> bytes:
    """`parts` in place of the lists of that name."""
    lists = {
        "formats": FORMATS, "weights": WIRES, "blocks": BLOCKS, "states": STATES, "nodes": NODES, "edges": EDGES,
        **parts,
    }  # fmt: skip
    return b"".join(vec(*items) for items in lists.values())


def arm(
    mode: int, first: int, last: int, groups: tuple[tuple[int, tuple[int, ...]], ...] = GROUPS, module: bytes = DIGEST,
    functions: tuple[str, ...] = FUNCTIONS,
) -> bytes:  # fmt: skip
    spelled = vec(*(module + text(functions[kernel]) + vec(*map(u, nodes)) for kernel, nodes in groups))
    digest = hashlib.sha256(b"mesh blueprint arm v1\0" + u(mode) + u(first) + u(last) + spelled).digest()
    return u(mode) + u(first) + u(last) + vec(*(u(kernel) + vec(*map(u, nodes)) for kernel, nodes in groups)) + digest


def settings(*, environment: bytes | None = None) -> bytes:
    flags = (True, 512, 64, 1, 1, True, False)
    numbers = b"".join(bytes((flag,)) if isinstance(flag, bool) else u(flag) for flag in flags)
    levers = vec(text("OMP_PROC_BIND") + text("true")) if environment is None else environment
    return u(0) + text("tiny") + u(2) + u(64) + u(3) + numbers + some(None) * 4 + levers


KERNELS = (
    text(FUNCTIONS[0]) + text("matmul") + text("Q4_1 x Q8_1"),
    text(FUNCTIONS[1]) + text("norm") + text("F32"),
)


def body(
    *, schema: str = "mesh-blueprint/1", isa: str = ISA, length: int = len(MODULE), arms: bytes | None = None,
    wires: bytes | None = None, told: bytes | None = None, behind: bytes = b"", module: bytes = DIGEST,
    features: tuple[bytes, ...] = FEATURES, kernels: tuple[bytes, ...] | None = None, modules: tuple[bytes, ...] = (),
    records: tuple[bytes, ...] = (b"r" * 32,),
) -> bytes:  # fmt: skip
    checkpoint = u(0) + WEIGHTS + b"c" * 32 + text("llama") + b"a" * 32 + u(1) + text("Q4_1")
    rows = ((0, 1, 64), (1, 1, 1), (1, 2, 2))
    plan = vec(*(arm(*which, module=module) for which in rows)) if arms is None else arms
    own = text("lib.so") + module + u(length) + text(ISA) + text("lib 1")
    listed = KERNELS if kernels is None else kernels
    evidence = (u(0) + one + text("b11549") + b"e" * 32 + b"v" * 32 + b"n" * 32 for one in records)
    return b"".join((
        text(schema), text("tiny on a test"), LINEAGE, u(REVISION), checkpoint, text(isa), text("cpu"),
        vec(*features), circuit() if wires is None else wires, plan, vec(own, *modules),
        vec(*(u(0) + kernel for kernel in listed)), settings() if told is None else told, vec(*evidence), behind,
    ))  # fmt: skip


def inline(offset: int = 0, length: int = len(MODULE), digest: bytes = DIGEST) -> bytes:
    return digest + u(0) + u(offset) + u(length)


def internal(digest: bytes = DIGEST) -> bytes:
    return digest + u(1)


def kbp(
    made: bytes, locators: bytes, payload: bytes = MODULE, block: bytes = b"", *, magic: bytes = b"MKBP",
    version: int = 1, flags: int = 0, lengths: tuple[int, ...] | None = None, digest: bytes | None = None,
) -> bytes:  # fmt: skip
    sizes = (len(made), len(locators), len(payload), len(block)) if lengths is None else lengths
    found = hashlib.sha256(made).digest() if digest is None else digest
    return struct.pack("<4sHHQQQQ32s", magic, version, flags, *sizes, found) + made + locators + payload + block


def signed_content(made: bytes) -> bytes:
    """What the signatures over a body are over, but for the purpose."""
    return struct.pack("<HQ", 1, len(made)) + hashlib.sha256(made).digest()
