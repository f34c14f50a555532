"""Launch records: what was started where, on its own and signed."""

from __future__ import annotations

from typing import Any

from conformance.case import Group, dashed
from conformance.digests import b3, content_id, steward_text
from conformance.material import (
    CHECKPOINT_TYPE,
    KEY,
    MAX_UINT,
    OTHER,
    STARTED_NS,
    Map,
    changed,
    digest,
    protected,
    receipt,
    sign1,
    signed_receipt,
    trust_file,
)
from conformance.sizes import PAYLOAD_BYTES
from conformance.writer import MAP, Raw, head, item, text

LAUNCH_TYPE = "application/mesh-launch+cbor"
SHA256 = "sha256:" + "a1" * 32
GIT = "git-sha1:" + "b2" * 20


def small_rank(**fields: Any) -> Map:
    return changed({"rank": 0, "node": "n0", "argv": ["mesh"], "environment": {}, "found": {}}, **fields)


def rank(**fields: Any) -> Map:
    argv = ["vllm", "serve", "org/model", "--port", "30000", ""]
    environment = {"B": "2", "A_LONGER_NAME": "", "a": "é\n"}
    return changed(small_rank(argv=argv, environment=environment, found={"weights": "b3:" + "00" * 32}), **fields)


def small_launch(**fields: Any) -> Map:
    """Without any optional field, on one node."""
    value = {
        "v": "mesh/1", "signer": KEY.public, "launched_ns": STARTED_NS, "run": "20260921T141320-a1b2c3",
        "recipe": "smollm2", "engine": "llama.cpp", "model": "smollm2-135m", "recipe_digest": digest(40),
        "config_digests": [], "allowed_levers": [], "pinned_files": {}, "ranks": [small_rank()],
    }  # fmt: skip
    return changed(value, **fields)


def launch(**fields: Any) -> Map:
    """With every optional field, on two nodes."""
    value = small_launch(
        engine="vllm",
        config_digests=[digest(41), digest(42)],
        allowed_levers=["--enable-expert-parallel", "VLLM_OF_TOMORROW"],
        pinned_files={"model.safetensors": SHA256, "config.json": GIT},
        ranks=[rank(), rank(rank=1, node="n1")],
        engine_version="0.32.0",
        model_revision="1" * 40,
        image="registry.example/vllm@sha256:" + "c3" * 32,
    )
    return changed(value, **fields)


def launch_of(size: int) -> Map:
    """Of that many bytes: a variable is filled."""
    base = len(item(launch(ranks=[rank(environment={"A": "a" * 1000})])))
    value = launch(ranks=[rank(environment={"A": "a" * (1000 + size - base)})])
    assert len(item(value)) == size
    return value


def signed(value: Map, **parts: Any) -> bytes:
    """`parts` are of the protected header, encoded."""
    parts = {"type": text(LAUNCH_TYPE), "sub": text(str(value.get("recipe"))), **parts}
    return sign1(item(value), protected(**parts))


def one(**fields: Any) -> Map:
    """On one node, whose rank has these fields."""
    return launch(ranks=[rank(**fields)])


GOOD: list[tuple[str, Map, str]] = [
    ("small", small_launch(), "Every optional field left out."),
    ("full", launch(), "Every field there."),
    ("engine-unknown", launch(engine="tomorrow-1.0"), "An engine that nobody knows yet."),
    ("ranks-64", launch(ranks=[small_rank(rank=n) for n in range(64)]), "64 ranks."),
    ("names", one(node="é" * 256, found={"é" * 256: ""}), "Names of 256 characters."),
    ("highest", launch(launched_ns=MAX_UINT), "The latest time."),
    ("longest", launch_of(PAYLOAD_BYTES), "32768 bytes."),
]

SHAPES: list[tuple[str, Map, str]] = [
    *((f"no-{dashed(name)}", small_launch(**{name: None}), f"{name} is missing.") for name in small_launch()),
    *((f"rank-no-{dashed(name)}", one(**{name: None}), f"{name} is missing.") for name in small_rank()),
    ("version", launch(v="mesh/2"), "Another version."),
    ("unknown-field", launch(steward=KEY.public), "A field that is not in the CDDL."),
    ("rank-unknown", one(image=""), "A field that is not in the CDDL."),
    ("signer-short", launch(signer=bytes(31)), "31 bytes."),
    ("launched-negative", launch(launched_ns=-1), "Before 1970."),
    ("launched-high", launch(launched_ns=MAX_UINT + 1), "2^63."),
    ("run-empty", launch(run=""), "An empty name."),
    ("recipe-line", launch(recipe="a\nb"), "A line break in a name."),
    ("recipe-long", launch(recipe="a" * 257), "A name of 257 characters."),
    ("engine-upper-case", launch(engine="vLLM"), "A capital in a token."),
    ("model-empty", launch(model=""), "An empty text."),
    ("image-bytes", launch(image=b"image"), "Bytes where text has to be."),
    ("recipe-digest-short", launch(recipe_digest=bytes(31)), "31 bytes."),
    ("config-digest-text", launch(config_digests=[SHA256]), "A digest that is text."),
    ("lever-empty", launch(allowed_levers=[""]), "An empty text."),
    ("lever-number", launch(allowed_levers=[1]), "A number where text has to be."),
    ("pinned-list", launch(pinned_files=[]), "An array is no map."),
    ("pinned-upper-case", launch(pinned_files={"a": SHA256.upper()}), "Hex digits in capitals."),
    ("pinned-short", launch(pinned_files={"a": SHA256[:-1]}), "63 hex digits."),
    ("pinned-bare", launch(pinned_files={"a": "a1" * 32}), "Hex digits of nobody knows which digest."),
    ("pinned-name-empty", launch(pinned_files={"": SHA256}), "A file without a name."),
    ("ranks-none", launch(ranks=[]), "No rank."),
    ("ranks-65", launch(ranks=[small_rank(rank=n) for n in range(65)]), "65 ranks."),
    ("ranks-map", launch(ranks=rank()), "A map is no array."),
    ("rank-negative", one(rank=-1), "Below 0."),
    ("node-empty", one(node=""), "An empty name."),
    ("argv-none", one(argv=[]), "No program."),
    ("argv-text", one(argv="vllm"), "Text is no array."),
    ("variable-space", one(environment={"A B": "1"}), "A space in a variable's name."),
    ("variable-digit", one(environment={"1A": "1"}), "A variable's name that begins with a digit."),
    ("variable-empty", one(environment={"": "1"}), "A variable without a name."),
    ("variable-number", one(environment={"A": 1}), "A number where text has to be."),
    ("found-empty", one(found={"": "x"}), "Something found of nothing."),
    ("found-bytes", one(found={"weights": digest(1)}), "Bytes where text has to be."),
]

BEYOND: list[tuple[str, Map, str]] = [
    ("ranks-from-1", one(rank=1), "The first rank is not 0."),
    ("ranks-turned", launch(ranks=[rank(rank=1), rank()]), "In another order."),
    ("ranks-gap", launch(ranks=[rank(), rank(rank=2)]), "A rank is missing."),
    ("ranks-twice", launch(ranks=[rank(), rank()]), "One rank twice."),
]

MISSPELLED = [
    ("null", item(launch(image=Raw(b"\xf6"))), "A null where the field should be left out."),
    ("wide", item(one(rank=Raw(b"\x18\x00"))), "0 in two bytes."),
    (
        "variables-turned",
        item(one(environment=Raw(head(MAP, 2) + item("bb") + item("") + item("a") + item("")))),
        "Variables in another order.",
    ),
    ("variable-twice", item(one(environment=Raw(head(MAP, 2) + 2 * (item("a") + item(""))))), "A variable twice."),
    ("not-a-map", item([]), "An array where a map has to be."),
    ("too-long", item(launch_of(PAYLOAD_BYTES + 1)), "32769 bytes."),
]

SIGNED = [
    ("type-checkpoint", "header", 3, signed(launch(), type=text(CHECKPOINT_TYPE)), "Under the type of a checkpoint."),
    ("type-receipt", "header", 3, signed_receipt(receipt()), "A receipt where a launch record is asked for."),
    (
        "issuer-other", "header", 3, signed(launch(), iss=text(steward_text(OTHER.public))),
        "An issuer that is not the text form of the key id.",
    ),
    ("subject-other", "payload", 6, signed(launch(), sub=text("other")), "A subject that is not the recipe."),
    ("subject-run", "payload", 6, signed(launch(), sub=text(launch()["run"])), "The run as subject."),
    ("signer-other", "payload", 6, signed(launch(signer=OTHER.public)), "A record of another launcher."),
    ("payload-receipt", "payload", 6, signed(receipt(), sub=text("smollm2")), "A receipt under the type of a launch."),
    ("payload-ranks", "payload", 6, signed(one(rank=1)), "A record that breaks step 3 of its own."),
]  # fmt: skip


def cases() -> Group:
    group = Group("launch")
    for name, value, comment in GOOD:
        line = b3(content_id("launch", value))
        group.accept(
            name, "launch input.cbor", line, "launch.3", comment, {"input.cbor": item(value)}, feature="launch"
        )
    for rule, faults in ((2, SHAPES), (3, BEYOND)):
        for name, value, comment in faults:
            files = {"input.cbor": item(value)}
            group.reject(name, "launch input.cbor", "schema", f"launch.{rule}", comment, files, feature="launch")
    for name, data, comment in MISSPELLED:
        files = {"input.cbor": data}
        group.reject(name, "launch input.cbor", "encoding", "launch.1", comment, files, feature="launch")
    call = "envelope launch input.cbor trust.txt"
    for name, value in (("signed", launch()), ("signed-small", small_launch())):
        files = {"input.cbor": signed(value), "trust.txt": trust_file()}
        group.accept(
            name, call, b3(content_id("launch", value)), "envelope.7", "As a launcher signs it.", files,
            feature="launch",
        )  # fmt: skip
    for name, error, rule, data, comment in SIGNED:
        files = {"input.cbor": data, "trust.txt": trust_file()}
        group.reject(f"{error}-{name}", call, error, f"envelope.{rule}", comment, files, feature="launch")
    files = {"input.cbor": signed(launch()), "trust.txt": trust_file(OTHER)}
    group.reject(
        "trust-other", call, "trust", "envelope.4", "Of a launcher that nobody named.", files, feature="launch"
    )
    late = f"{steward_text(KEY.public)} from=2030-01-01T00:00:00Z\n".encode()
    files = {"input.cbor": signed(launch()), "trust.txt": late}
    group.reject("trust-window", call, "trust", "envelope.7", "Before its key is trusted.", files, feature="launch")
    return group
