"""Identities: what they commit to, and every way to contradict themselves."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.case import Group, dashed
from conformance.identities import (
    ARTIFACT,
    AXES,
    LABELS,
    A,
    B,
    C,
    binding,
    cut,
    document,
    fingerprint,
    identity,
    line,
    spelled,
)
from conformance.material import Map, changed

FEATURE = "identity"
PLAIN = identity()
LARGEST = 2**53 - 1
VERSIONS = ("boundary_schema_version", "protocol_schema_version")
TEXTS = [name for name in (*AXES, *LABELS) if name not in VERSIONS]


def good() -> Iterator[tuple[str, Map, str]]:
    yield "whole", PLAIN, "A whole model that one host computes."
    yield "part", identity(shard_start=1, shard_end=2), "A host that has the whole file and computes one layer of it."
    yield "cut", cut(1, 3), "A cut has the digests of the whole that it was cut from."
    yield "cut-part", cut(1, 4, shard_end=2), "A host need not compute all that its cut holds."
    yield "cut-tail", cut(0, 4, shard_start=2), "A host need not begin where its cut does."
    yield (
        "renamed",
        identity(recipe__recipe_id="x", recipe__recipe_version="y", recipe__catalogue_version="z"),
        ("Labels are not digested."),
    )
    yield (
        "mirrored",
        identity(artifact__artifact_id="mirror", artifact__revision="v2"),
        ("Where the bytes came from is not digested."),
    )
    swapped = {"activation_dtype": AXES["compute_dtype"], "compute_dtype": AXES["activation_dtype"]}
    yield "swapped", identity(recipe={**AXES, **LABELS, **swapped}), "Two values that change places: another recipe."
    for name, value in (
        ("content_digest", B), ("architecture", "qwen2"), ("architecture_digest", B), ("layer_count", 9),
    ):  # fmt: skip
        yield f"other-{dashed(name)}", identity(**{f"artifact__{name}": value}), f"Another {name}: another artifact."
    for axis in AXES:
        value = 9 if axis in VERSIONS else "other"
        yield f"axis-{dashed(axis)}", identity(**{f"recipe__{axis}": value}), f"Another {axis}: another recipe."
    yield (
        "beyond-ascii",
        identity(recipe__kv_layout="日本 é 🌧 \u2260", artifact__architecture="λ"),
        ("Characters beyond ASCII are digested as UTF-8, not escaped."),
    )
    yield (
        "quotes",
        identity(recipe__kv_layout='a "b" \\ /c'),
        "Quotation marks and backslashes are escaped, slashes not.",
    )
    yield "longest", identity(recipe__kv_layout="é" * 256), "A text of 256 characters."
    yield (
        "largest",
        identity(artifact__layer_count=LARGEST, recipe__boundary_schema_version=LARGEST),
        ("The largest integer, 2^53-1."),
    )
    yield (
        "not-moving",
        identity(artifact__revision="mainline", recipe__tokenizer_revision="v1/refs"),
        ("Revisions that only look like ones that move."),
    )
    yield "declared", identity(fingerprint=fingerprint(PLAIN)), "A declared fingerprint that follows."
    yield (
        "declared-renamed",
        identity(fingerprint=fingerprint(PLAIN, recipe_id="another")),
        ("Labels of a declared fingerprint do not count."),
    )


def shapes() -> Iterator[tuple[str, object, str]]:
    yield "version-2", identity(schema_version=2), "Another version of the form."
    yield "version-true", identity(schema_version=True), "true is no 1."
    yield "version-text", identity(schema_version="1"), "A version as text."
    for name in ("schema_version", "artifact", "recipe", "shard_start", "shard_end"):
        yield f"no-{dashed(name)}", identity(**{name: None}), f"{name} is missing."
    for name in ARTIFACT:
        yield f"artifact-no-{dashed(name)}", identity(**{f"artifact__{name}": None}), f"{name} is missing."
    for name in AXES:
        yield (
            f"recipe-no-{dashed(name)}",
            identity(**{f"recipe__{name}": None}),
            f"{name} is missing, and no axis has a default.",
        )
    for name in LABELS:
        yield f"recipe-no-{dashed(name)}", identity(**{f"recipe__{name}": None}), f"{name} is missing."
    for where in ("", "artifact__", "recipe__"):
        yield (
            f"{where.replace('__', '-')}unknown-field",
            identity(**{f"{where}rope_theta": 1}),
            "A field that is not known.",
        )
    for name in TEXTS:
        yield f"recipe-{dashed(name)}-empty", identity(**{f"recipe__{name}": ""}), "A text that says nothing."
    yield "recipe-blank", identity(recipe__kv_layout=" \u00a0\u3000"), "Only spaces."
    yield "recipe-control", identity(recipe__kv_layout="a\tb"), "A control character."
    yield "recipe-long", identity(recipe__kv_layout="x" * 257), "A text of 257 characters."
    yield "recipe-number", identity(recipe__kv_layout=7), "A number for a text."
    for name in VERSIONS:
        yield f"recipe-{dashed(name)}-0", identity(**{f"recipe__{name}": 0}), "A version of 0."
        yield f"recipe-{dashed(name)}-text", identity(**{f"recipe__{name}": "1"}), "A text for an integer."
    for name, value in (
        ("short", A[2:]), ("long", A + "aa"), ("upper-case", A.upper()), ("prefixed", f"b3:{A}"), ("number", 5),
    ):  # fmt: skip
        yield f"digest-{name}", identity(artifact__content_digest=value), "Not 64 lower-case hex digits."
    yield "layer-count-0", identity(artifact__layer_count=0), "A model without layers."
    yield "layer-count-fraction", identity(artifact__layer_count=4.5), "A fraction for an integer."
    yield "layer-count-too-large", identity(artifact__layer_count=LARGEST + 1), "More than 2^53-1."
    yield "shard-start-negative", identity(shard_start=-1), "A layer before the first."
    yield "shard-end-0", identity(shard_end=0), "An end of 0."
    yield "shard-start-true", identity(shard_start=True, shard_end=2), "true is no 1."
    cut_from = binding(1, 3)
    yield "cut-number", cut(1, 3, artifact__derived_from=5), "A cut that is no object."
    yield "cut-unknown-field", cut(1, 3, artifact__derived_from={**cut_from, "x": 1}), "A field that is not known."
    for name in cut_from:
        yield (
            f"cut-no-{dashed(name)}",
            cut(1, 3, artifact__derived_from=changed(cut_from, **{name: None})),
            (f"{name} is missing."),
        )
    yield "declared-empty", identity(fingerprint={}), "A declared fingerprint without digests."
    yield (
        "declared-short",
        identity(fingerprint=fingerprint(PLAIN, runtime_recipe_digest="aa")),
        "A digest that is none.",
    )
    yield "array", [PLAIN], "An array."
    yield "text", "identity", "A text."


def cases() -> Group:
    group = Group("identity")
    for name, value, comment in good():
        group.accept(
            name,
            "identity input.txt",
            line(value),
            "identity.2",
            comment,
            {"input.txt": document(value)},
            feature=FEATURE,
        )
    null = PLAIN | {"artifact": ARTIFACT | {"derived_from": None}, "fingerprint": None}
    text = spelled(PLAIN)
    for name, data, comment in (
        ("null", document(null), "null where there is no cut and nothing is declared."),
        ("compact", text, "No space at all, and keys in another order."),
        ("escaped", text.replace(b"llama.cpp/llama", b"\\u006clama.cpp\\/llama"), "Escapes that need not be."),
        ("filled", text + b" " * (65_536 - len(text)), "65536 bytes."),
    ):
        group.accept(
            name, "identity input.txt", line(PLAIN), "identity.1", comment, {"input.txt": data}, feature=FEATURE
        )
    _reject(group)
    return group


def _reject(group: Group) -> None:
    def reject(name: str, data: bytes, error: str, step: int, comment: str) -> None:
        files = {"input.txt": data}
        group.reject(name, "identity input.txt", error, f"identity.{step}", comment, files, feature=FEATURE)

    text = spelled(PLAIN)
    start = b'"shard_start":0'
    for name, data, comment in (
        ("empty", b"", "No bytes."),
        ("cut-off", text[:-1], "The last byte is missing."),
        ("more", text + b"{}", "Something after it."),
        ("byte-order-mark", b"\xef\xbb\xbf" + text, "A byte-order mark."),
        ("not-utf-8", text.replace(b"small", b"sm\xffll"), "A byte that is no UTF-8."),
        ("half-a-pair", text.replace(b"someone", b"\\ud800"), "Half of a surrogate pair."),
        ("key-twice", text.replace(start, start + b"," + start), "A key that is there twice, with one value."),
        ("not-a-number", text.replace(start, b'"shard_start":NaN'), "NaN."),
        ("trailing-comma", text[:-1] + b",}", "A comma after the last field."),
        ("deep", text.replace(start, b'"shard_start":' + b"[" * 16 + b"]" * 16), "Nested 17 deep."),
        ("too-long", text + b" " * (65_537 - len(text)), "65537 bytes."),
    ):
        reject(f"encoding-{name}", data, "encoding", 1, comment)
    for name, value, comment in shapes():
        reject(f"schema-{name}", document(value), "schema", 2, comment)
    for name, digits in (("fraction", b"0.0"), ("exponent", b"0e1"), ("digits", b"1" * 17)):
        data = text.replace(start, b'"shard_start":' + digits)
        reject(f"schema-{name}", data, "schema", 2, "No integer of at most 16 digits.")
    data = text.replace(start, b'"shard_start":' + b"[" * 15 + b"]" * 15)
    reject("schema-deep", data, "schema", 2, "Nested 16 deep, which is JSON as it may be; no field holds that.")
    moving = ("main", "master", "HEAD", " latest ", "Dev", "trunk", "refs/heads/x", "REFS/tags/v1")
    for number, name in enumerate(moving):
        field = ("artifact__revision", "recipe__tokenizer_revision")[number % 2]
        data = document(identity(**{field: name}))
        reject(f"moving-{number}", data, "moving-reference", 3, f"A revision that moves: {name.strip()}.")
    for name, value, comment in (
        ("cut-empty", cut(1, 3, artifact__derived_from=binding(2, 2)), "A cut without layers."),
        ("cut-backwards", cut(1, 3, artifact__derived_from=binding(3, 1)), "A cut that ends before it begins."),
        ("cut-of-itself", cut(1, 3, artifact__content_digest=A), "A cut that is its own source."),
        ("cut-beyond", cut(1, 3, artifact__derived_from=binding(0, 5)), "A cut with a layer that the model has not."),
        ("not-held-before", cut(1, 3, shard_start=0), "A layer before those that the cut holds."),
        ("not-held-after", cut(1, 3, shard_end=4), "A layer after those that the cut holds."),
        ("empty", identity(shard_start=4), "A host that computes no layer."),
        ("backwards", identity(shard_start=3, shard_end=2), "A range that ends before it begins."),
        ("beyond", identity(shard_end=5), "A layer that the model has not."),
    ):
        reject(f"layers-{name}", document(value), "layers", 4, comment)
    for name, declared in (
        ("artifact", fingerprint(PLAIN, model_artifact_digest=B)),
        ("recipe", fingerprint(PLAIN, runtime_recipe_digest=C)),
        ("exchanged", fingerprint(PLAIN, model_artifact_digest=fingerprint(PLAIN)["runtime_recipe_digest"],
                                  runtime_recipe_digest=fingerprint(PLAIN)["model_artifact_digest"])),
    ):  # fmt: skip
        value = identity(fingerprint=declared)
        reject(f"fingerprint-{name}", document(value), "fingerprint", 5, "A declared digest that does not follow.")
