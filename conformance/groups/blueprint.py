"""Blueprints: what a file is, whoever made it, and each way in which it is none."""

from __future__ import annotations

import hashlib
from functools import cache

from conformance import postcards as hand
from conformance.case import Group
from conformance.postcards import SIGNED, inline, internal, kbp, vec
from conformance.sums import SUMS, CannotRun, held, read_sums

FEATURE = "blueprint"
GOOD = hand.body()
ID = f"b3:{hashlib.sha256(GOOD).hexdigest()}"
FULL, LITE = vec(inline()), vec(internal())
CERTIFICATE, SIGNATURES = 5493, 3373


def kept(name: str) -> bytes:
    """Signed once: see `sign_blueprints`. Raises CannotRun where it is not what was signed."""
    file = f"{name}.bin"
    if file not in sums():
        raise CannotRun(f"{SIGNED / SUMS}: expected a line for {file}")
    return held(SIGNED, file, sums()[file])


@cache
def sums() -> dict[str, str]:
    return read_sums(SIGNED / SUMS)


def flipped(data: bytes, at: int, flip: int = 1) -> bytes:
    return data[:at] + bytes((data[at] ^ flip,)) + data[at + 1 :]


def cases() -> Group:
    group = Group("blueprint")
    _read(group)
    return group


def _read(group: Group) -> None:
    """Without signatures: what a file is, whoever made it."""

    def accept(name: str, data: bytes, comment: str, made: bytes = GOOD) -> None:
        line = f"b3:{hashlib.sha256(made).hexdigest()}"
        group.accept(name, "blueprint input.bin", line, "blueprints.1", comment, {"input.bin": data}, feature=FEATURE)

    def reject(name: str, data: bytes, error: str, step: int, comment: str) -> None:
        files = {"input.bin": data}
        group.reject(name, "blueprint input.bin", error, f"blueprints.{step}", comment, files, feature=FEATURE)

    full, lite = kbp(GOOD, FULL), kbp(GOOD, LITE, b"")
    accept("preview-full", full, "Nobody has signed it, and the module is inline.")
    accept("preview-lite", lite, "The same blueprint: its id is that of the body.")
    accept(
        "preview-disk", kbp(GOOD, vec(hand.DIGEST + hand.u(2) + hand.text("/opt/lib.so")), b""), "A module on a disk."
    )
    accept(
        "preview-remote", kbp(GOOD, vec(hand.DIGEST + hand.u(3) + hand.text("https://host.invalid/lib.so")), b""),
        "A module elsewhere.",
    )  # fmt: skip
    bare = hand.body(told=hand.settings(environment=vec()))
    accept("preview-no-levers", kbp(bare, LITE, b""), "No variable of the environment is stated.", bare)
    sizes = (len(GOOD), len(FULL), len(hand.MODULE), 0)
    for name, data, comment in (
        ("empty", b"", "No bytes."),
        ("header-cut", full[:71], "A byte too few for a header."),
        ("magic", kbp(GOOD, FULL, magic=b"MKBQ"), "Another magic."),
        ("version", kbp(GOOD, FULL, version=2), "Another version."),
        ("flags", kbp(GOOD, FULL, flags=1), "A flag."),
        ("cut", full[:-1], "The last byte is missing."),
        ("behind", full + b"\0", "A byte behind the last section."),
        ("body-huge", kbp(GOOD, FULL, lengths=(2**26 + 1, *sizes[1:])), "A body over its bound."),
        ("body-overflow", kbp(GOOD, FULL, lengths=(2**64 - 1, *sizes[1:])), "A length that overflows."),
        ("signature-huge", kbp(GOOD, FULL, lengths=(*sizes[:3], 2**20 + 1)), "A signature block over its bound."),
        (
            "lengths-swapped",
            kbp(GOOD, FULL, lengths=(sizes[0] + 1, sizes[1] - 2, *sizes[2:])),
            "Lengths that do not add up.",
        ),
    ):
        reject(name, data, "container", 1, comment)
    reject("body-changed", flipped(full, 100), "body-hash", 2, "A byte of the body is another.")
    reject("hash-changed", kbp(GOOD, FULL, digest=b"\0" * 32), "body-hash", 2, "Another hash in the header.")
    for name, table, payload, comment in (
        ("locators-behind", FULL + b"\0", hand.MODULE, "A byte behind the table."),
        ("locators-twice", vec(internal(), internal()), b"", "A digest twice."),
        ("locators-descending", vec(internal(), internal(b"\0" * 32)), b"", "Digests descend."),
        ("locators-source", vec(hand.DIGEST + hand.u(4)), b"", "A source that there is not."),
        ("locators-long", vec(hand.DIGEST + b"\x81\x00"), b"", "A varint longer than it need be."),
        ("payload-unreferenced", LITE, hand.MODULE, "Bytes that no locator is about."),
        ("payload-behind", FULL, hand.MODULE + b"!", "A byte behind the last payload."),
        ("payload-gap", vec(inline(1)), b"!" + hand.MODULE, "A byte before the first payload."),
        (
            "payload-overlap",
            vec(inline(0, 4, b"\0" * 32), inline(2, len(hand.MODULE) - 2)),
            hand.MODULE,
            "Two ranges overlap.",
        ),
        (
            "payload-twice",
            vec(inline(0, 4, b"\0" * 32), inline(0, len(hand.MODULE) - 4)),
            hand.MODULE,
            "Two ranges begin at one byte, and are as long together as the payloads.",
        ),
        ("payload-beyond", vec(inline(0, len(hand.MODULE) + 1)), hand.MODULE, "A range that ends behind the payloads."),
        ("payload-overflow", vec(inline(0, 2**64 - 1)), hand.MODULE, "A range that overflows."),
    ):
        reject(name, kbp(GOOD, table, payload), "container", 11, comment)
    reject("payload-changed", kbp(GOOD, FULL, hand.MODULE[:-1] + b"!"), "kernel", 12, "A payload with another digest.")
    for name, made, comment in (
        ("schema", hand.body(schema="mesh-blueprint/2"), "Another schema."),
        ("body-behind", hand.body(behind=b"\0"), "A byte behind the body's value."),
        ("body-cut", GOOD[:-1], "The body's last byte is missing."),
        (
            "kv-type",
            GOOD.replace(hand.settings(), hand.settings().replace(b"\x04tiny\x02\x40\x03", b"\x04tiny\x02\x40\x08")),
            "A type of the cache that there is not.",
        ),
        (
            "flag-two",
            GOOD.replace(hand.settings(), hand.settings().replace(b"\x02\x40\x03\x01", b"\x02\x40\x03\x02")),
            "A boolean that is 2.",
        ),
        ("name-empty", GOOD.replace(hand.text("tiny on a test"), hand.text("")), "No name."),
        ("nodes-huge", GOOD.replace(hand.vec(hand.text("layer 0")), hand.u(2**16)), "More blocks than bytes are left."),
    ):
        assert made != GOOD
        reject(name, kbp(made, LITE, b""), "postcard", 13, comment)
    digest_off = hand.vec(hand.arm(0, 1, 64)[:-1] + b"!", hand.arm(1, 1, 1), hand.arm(1, 2, 2))
    for name, made, comment in (
        ("arm-digest", hand.body(arms=digest_off), "A digest that does not follow from its groups."),
        ("arms-overlap", hand.body(arms=vec(hand.arm(1, 1, 2), hand.arm(1, 2, 3))), "Two arms for the same rows."),
        ("arms-none", hand.body(arms=vec()), "No arm."),
        ("arm-rows", hand.body(arms=vec(hand.arm(1, 2, 1))), "Rows from 2 to 1."),
        (
            "edge-backwards",
            hand.body(wires=hand.circuit(edges=(*hand.EDGES[:3], hand.edge(4, 4, 0)))),
            "An edge from a node to itself.",
        ),
        (
            "edge-nowhere",
            hand.body(wires=hand.circuit(edges=(*hand.EDGES[:3], hand.edge(3, 9, 0)))),
            "An edge to a node that is not there.",
        ),
        (
            "edge-format",
            hand.body(wires=hand.circuit(edges=(*hand.EDGES[:3], hand.edge(3, 4, 2)))),
            "An edge in another format than its node.",
        ),
        (
            "levers-descending",
            hand.body(
                told=hand.settings(environment=vec(hand.text("B") + hand.text(""), hand.text("A") + hand.text("")))
            ),
            "Variables that descend.",
        ),
        (
            "lever-name",
            hand.body(told=hand.settings(environment=vec(hand.text("A B") + hand.text("")))),
            "No name of a variable.",
        ),
    ):
        reject(name, kbp(made, LITE, b""), "body", 14, comment)
    reject("architecture", kbp(hand.body(isa="aarch64-neon"), LITE, b""), "kernel", 15, "A module for another machine.")
    reject("not-located", kbp(GOOD, vec(), b""), "kernel", 15, "Nothing says where the module is.")
    other = vec(internal(), internal(b"\xff" * 32))
    reject("located-for-nothing", kbp(GOOD, other, b""), "kernel", 15, "A module that no kernel is of.")
    reject("inline-length", kbp(hand.body(length=5), FULL), "kernel", 15, "Another length than is pinned.")
    other = hashlib.sha256(hand.OTHER_MODULE).digest()
    made = hand.body(length=len(hand.OTHER_MODULE), module=other)
    table = vec(inline(0, len(hand.OTHER_MODULE), other))
    reject("inline-machine", kbp(made, table, hand.OTHER_MODULE), "kernel", 15, "Its head says that it is for aarch64.")
    # the first of two faults is the one to name
    both = hand.body(told=hand.settings(environment=vec(hand.text("A B") + hand.text(""))), behind=b"\0")
    reject("first-postcard", kbp(both, LITE, b""), "postcard", 13, "No name of a variable, and a byte behind the body.")
    both = hand.body(arms=vec(), isa="aarch64-neon")
    reject("first-body", kbp(both, LITE, b""), "body", 14, "No arm, and a module for another machine.")
    _contradict(group)


def _contradict(group: Group) -> None:
    """Bodies of which one thing does not go with another."""

    def arms(*groups: tuple[int, tuple[int, ...]]) -> bytes:
        return vec(hand.arm(1, 1, 1, groups))

    edges, nodes, kernels = hand.EDGES, hand.NODES, hand.KERNELS
    late = hand.text("lib 2") + b"\xff" * 32 + hand.u(1) + hand.text(hand.ISA) + hand.text("lib 2")
    circuits: dict[str, tuple[dict[str, tuple[bytes, ...]], str]] = {
        "formats-descending": ({"formats": hand.FORMATS[::-1]}, "Names of formats descend."),
        "weights-descending": ({"weights": hand.WIRES[::-1]}, "Names of weights descend."),
        "edges-descending": ({"edges": (*edges[:2], edges[3], edges[2])}, "Edges descend."),
        "edge-twice": ({"edges": (edges[0], *edges)}, "An edge twice."),
        "nodes-of-a-name": ({"nodes": (*nodes[:4], hand.node("norm", 14, 0, None))}, "Two nodes of a name."),
        "blocks-of-a-name": ({"blocks": hand.BLOCKS * 2}, "Two blocks of a name, of which one is not used either."),
        "node-not-reached": ({"edges": edges[:3]}, "No edge into the output."),
        "format-unused": ({"formats": (*hand.FORMATS, hand.text("Z") + hand.u(1) + hand.u(8))}, "A format of nothing."),
        "weight-unused": ({"weights": (*hand.WIRES, hand.text("z") + hand.u(0) + vec())}, "A weight of no node."),
        "block-unused": ({"blocks": (*hand.BLOCKS, hand.text("layer 1"))}, "A block of no node."),
        "state-unused": ({"states": (*hand.STATES, hand.text("z") + hand.u(0) + hand.u(1))}, "A state of no node."),
        "node-format": ({"nodes": (*nodes[:4], hand.node("logits", 14, 3, None))}, "A format that is not there."),
        "node-weight": ({"nodes": (*nodes[:4], hand.node("logits", 14, 0, None, 2))}, "A weight that is not there."),
        "node-block": ({"nodes": (*nodes[:4], hand.node("logits", 14, 0, 1))}, "A block that is not there."),
        "node-state": ({"nodes": (*nodes[:4], hand.node("logits", 14, 0, None, state=1))}, "No such state."),
    }  # fmt: skip
    bodies = {name: (hand.body(wires=hand.circuit(**parts)), told) for name, (parts, told) in circuits.items()} | {
        "input-reached": (
            hand.body(
                wires=hand.circuit(nodes=(nodes[0], hand.node("norm", 0, 0, 0, 0), *nodes[2:])),
                arms=arms((1, (2,)), (0, (3,))),
            ),
            "An edge into an input.",
        ),
        "features-descending": (hand.body(features=hand.FEATURES[::-1]), "Features descend."),
        "records-twice": (hand.body(records=(b"r" * 32,) * 2), "One record twice."),
        "kernels-descending": (
            hand.body(kernels=kernels[::-1], arms=vec(hand.arm(1, 1, 1, functions=hand.FUNCTIONS[::-1]))),
            "Names of functions descend.",
        ),
        "kernel-unused": (hand.body(arms=arms((0, (1,)), (0, (2, 3)))), "A kernel that computes nothing."),
        "kernel-nowhere": (hand.body(kernels=kernels[:1]), "A group of a kernel that is not there."),
        "module-unused": (hand.body(modules=(late,)), "A module of which no kernel is."),
        "group-empty": (hand.body(arms=arms(*hand.GROUPS, (0, ()))), "A group of no nodes."),
        "node-twice": (hand.body(arms=arms(*hand.GROUPS, (0, (3,)))), "A node that is computed twice."),
        "node-not-computed": (hand.body(arms=arms((1, (1,)), (0, (2,)))), "A node that nothing computes."),
        "input-computed": (hand.body(arms=arms((1, (0, 1)), (0, (2, 3)))), "The input is computed."),
        "node-nowhere": (hand.body(arms=arms(*hand.GROUPS, (0, (5,)))), "A node that is not there is computed."),
        "rows-none": (hand.body(arms=vec(hand.arm(1, 0, 1))), "Rows from 0 on."),
        "modes-descending": (hand.body(arms=vec(hand.arm(1, 1, 1), hand.arm(0, 1, 1))), "Modes descend."),
    }  # fmt: skip
    for name, (made, told) in bodies.items():
        files = {"input.bin": kbp(made, LITE, b"")}
        group.reject(name, "blueprint input.bin", "body", "blueprints.14", told, files, feature=FEATURE)
