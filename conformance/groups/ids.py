"""Content ids, text forms, and the documents that are only ever named by their id."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id, derived, plain
from conformance.material import KEY, SETTINGS, Map, digest
from conformance.writer import item, text

KINDS = ("receipt", "request", "weights", "settings", "launch", "route", "grant-block", "checkpoint", "head")
NO_KINDS = ("payload", "opening-key", "output-commitment", "Receipt", "receipts", "outcome")
VALUE = {"a": 1, "bb": [b"\x00", True, -1, "ü"]}

HEX = digest(0xAB).hex()
UUID = "01a0c450-6c00-7000-8000-000000000000"


def cases() -> Group:
    group = Group("ids")
    _content_ids(group)
    _text_forms(group)
    _documents(group)
    return group


def _content_ids(group: Group) -> None:
    files = {"input.cbor": item(VALUE)}
    for kind in KINDS:
        line = b3(content_id(kind, VALUE))
        group.accept(f"kind-{kind}", f"id {kind} input.cbor", line, "ids", f"The id of a value of kind {kind}.", files)
    marked = {"\ufeffa": "\ufeff", "a": "\ufeffa"}
    group.accept(
        "byte-order-mark", "id receipt input.cbor", b3(content_id("receipt", marked)), "ids",
        "U+FEFF at the beginning of a text is part of it, and of what is hashed.", {"input.cbor": item(marked)},
    )  # fmt: skip
    for kind in NO_KINDS:
        name = f"no-kind-{kind}" if kind.islower() else "no-kind-upper-case"
        comment = f"{kind} is not among the kinds, which are a closed list."
        group.reject(name, f"id {kind} input.cbor", "schema", "ids", comment, files)
    group.reject(
        "not-canonical", "id receipt input.cbor", "encoding", "ids", "Only what is canonical has an id.",
        {"input.cbor": b"\xa1" + text("a", 1) + b"\x01"},
    )  # fmt: skip
    # The block is 64 bytes, the chunk 1024, and the tree splits at powers of two of them.
    for size in (0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 4096, 8193, 31744):
        data = bytes(n % 251 for n in range(size))
        comment = f"Plain BLAKE3 of {size} bytes that count up modulo 251."
        group.accept(f"bytes-{size}", "digest input.bin", b3(plain(data)), "ids", comment, {"input.bin": data})


def _text_forms(group: Group) -> None:
    for form, spelled, raw in (
        ("content-id", f"b3:{HEX}", HEX),
        ("steward", f"ed25519:{KEY.public.hex()}", KEY.public.hex()),
        ("serve-id", UUID, UUID.replace("-", "")),
        ("serve-id", "ffffffff-ffff-ffff-ffff-ffffffffffff", "f" * 32),
    ):
        name = f"text-{form}" if spelled[0] != "f" else f"text-{form}-any-version"
        group.accept(name, f"text {form} {spelled}", raw, "ids", f"The text form of a {form}.")
    for name, form, spelled, comment in (
        ("upper-case", "content-id", f"b3:{HEX.upper()}", "Hex digits in capitals."),
        ("no-prefix", "content-id", HEX, "Without its prefix."),
        ("prefix-capital", "content-id", f"B3:{HEX}", "The prefix in capitals."),
        ("other-prefix", "content-id", f"ed25519:{HEX}", "A steward is no content id."),
        ("63-digits", "content-id", f"b3:{HEX[:-1]}", "One digit too few."),
        ("66-digits", "content-id", f"b3:{HEX}ab", "Two digits too many."),
        ("not-hex", "content-id", f"b3:{HEX[:-1]}g", "A letter that is no digit."),
        ("colon-only", "content-id", "b3:", "No digits."),
        ("steward-upper-case", "steward", f"ed25519:{HEX.upper()}", "Hex digits in capitals."),
        ("steward-no-prefix", "steward", HEX, "Without its prefix."),
        ("steward-other-prefix", "steward", f"b3:{HEX}", "A content id is no steward."),
        ("steward-31-bytes", "steward", f"ed25519:{HEX[:-2]}", "31 bytes."),
        ("serve-id-upper-case", "serve-id", UUID.upper(), "Hex digits in capitals."),
        ("serve-id-no-dashes", "serve-id", UUID.replace("-", ""), "Without dashes."),
        *(
            (f"serve-id-no-dash-{n}", "serve-id", UUID[:at] + UUID[at + 1 :], f"Without dash {n} of four.")
            for n, at in enumerate((8, 13, 18, 23), 1)
        ),
        ("serve-id-braces", "serve-id", f"{{{UUID}}}", "In braces."),
        ("serve-id-urn", "serve-id", f"urn:uuid:{UUID}", "As a URN."),
        ("serve-id-dashes-moved", "serve-id", "01a0c4506c00-7000-8000-0000-00000000", "Dashes in other places."),
        ("serve-id-short", "serve-id", UUID[:-1], "One digit too few."),
    ):
        group.reject(f"text-{name}", f"text {form} {spelled}", "schema", "ids", comment)


def _documents(group: Group) -> None:
    one: Map = {"files": [["model.gguf", digest(1)]]}
    many: Map = {"files": [[f"model-{n:05d}-of-00003.gguf", digest(n)] for n in (1, 2, 3)]}
    # By UTF-8 bytes a capital comes first, and a character of two bytes after every ASCII one.
    named: Map = {
        "files": [["Z.json", digest(1)], ["a.json", digest(2)], ["a/b.json", digest(3)], ["é.json", digest(4)]]
    }
    # U+FFEE takes three bytes that begin with ef, U+1F642 four that begin with f0; in UTF-16 it begins with d83d.
    astral: Map = {"files": [["\uffee.json", digest(1)], ["\U0001f642.json", digest(2)]]}
    room = 65_536 - len(item({"files": [["m" * 65_000, digest(1)]]})) + 65_000
    for name, value, comment in (
        ("one", one, "A model in one file."),
        ("shards", many, "A model in three files."),
        ("folder", named, "Names in the order of their UTF-8 bytes."),
        ("astral", astral, "A character beyond 2^16 comes after U+FFEE, although its first half in UTF-16 is lower."),
        ("longest", {"files": [["m" * room, digest(1)]]}, "65536 bytes."),
    ):
        line = b3(content_id("weights", value))
        group.accept(f"weights-{name}", "weights input.cbor", line, "ids.3", comment, {"input.cbor": item(value)})
    faults: tuple[tuple[str, int, object, str], ...] = (
        ("not-a-map", 1, one["files"], "An array where a map has to be."),
        ("too-long", 1, {"files": [["m" * (room + 1), digest(1)]]}, "65537 bytes."),
        ("none", 2, {"files": []}, "No files."),
        ("short-id", 2, {"files": [["model.gguf", bytes(31)]]}, "A digest of 31 bytes."),
        ("name-bytes", 2, {"files": [[b"model.gguf", digest(1)]]}, "A name that is no text."),
        ("triple", 2, {"files": [["model.gguf", digest(1), 1]]}, "A third element."),
        ("unknown-field", 2, {**one, "size": 1}, "A field that is not in the CDDL."),
        ("no-files", 2, {}, "The one field is missing."),
        ("order", 3, {"files": many["files"][::-1]}, "Names in another order."),
        ("order-utf16", 3, {"files": astral["files"][::-1]}, "The order of UTF-16 units, which is not that of bytes."),
        ("twice", 3, {"files": one["files"] * 2}, "One name twice."),
    )
    for name, rule, document, comment in faults:
        call, error = "weights input.cbor", "encoding" if rule == 1 else "schema"
        group.reject(f"weights-{name}", call, error, f"ids.{rule}", comment, {"input.cbor": item(document)})
    longest = {"note": "a" * (65536 - 1 - 5 - 3)}
    for name, settings, comment in (
        ("empty", {}, "A document without any setting."),
        ("nested", SETTINGS, "Values of every type."),
        ("longest", longest, "65536 bytes."),
    ):
        line = b3(derived("settings", item(settings)))
        call = "settings input.cbor"
        group.accept(f"settings-{name}", call, line, "limits", comment, {"input.cbor": item(settings)})
    for name, rule, data, comment in (
        ("too-long", 1, item({"note": longest["note"] + "a"}), "65537 bytes."),
        ("not-a-map", 3, item([]), "An array where a map has to be."),
        ("float", 3, b"\xa1\x61a\xf9\x3c\x00", "A float in it."),
    ):
        call = "settings input.cbor"
        group.reject(f"settings-{name}", call, "encoding", f"encoding.{rule}", comment, {"input.cbor": data})
