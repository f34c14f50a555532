"""From a token as a vocabulary spells it to the bytes that it adds to a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mesh.engine.hf_files import JsonObject, kind_of, shown

MAX_STEPS: Final = 16

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>\Z")  # the library's number parser takes a plus sign
# The order in which a sequence may name its steps. Another order, or a step twice, would work across the border of two
# tokens, and then a token has no bytes of its own.
_ORDER: Final = {"Replace": 0, "Metaspace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a printable Latin-1 character stands for its own byte, the other 68 bytes follow from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in own}
    for byte in range(256):
        if byte not in own:
            alphabet[chr(0x100 + len(alphabet) - len(own))] = byte
    return alphabet


_BYTES: Final = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class PieceDecoder:
    """What a `decoder` of tokenizer.json does to one token.

    `strip` is a character and how many of it the library takes away from the start of a whole text; Metaspace does the
    same with spaces (-1: all of the first token's). A piece keeps them: most tokens do not start a text, and an output
    follows a prompt. Nor does the library show a byte that is no valid UTF-8 in its text, but U+FFFD; a piece is bytes.
    """

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: tuple[str, int] | None = None

    def piece(self, spelling: str) -> bytes:
        if self.byte_level:
            try:
                return bytes([_BYTES[character] for character in spelling])
            except KeyError:  # an added token is spelled in plain text; one character tells, as in the library
                return spelling.encode()
        for pattern, content in self.replacements:
            spelling = spelling.replace(pattern, content)
        if self.byte_fallback and (byte := _BYTE.match(spelling)):
            return bytes([int(byte[1], 16)])
        return spelling.encode()


def read_decoder(tokenizer: JsonObject) -> PieceDecoder:
    """The decoder of a tokenizer.json. Raises ModelFileError naming one that does more than bytes per token."""
    decoder = tokenizer.section("decoder")
    if decoder is None:
        raise tokenizer.fault("decoder", "none, expected ByteLevel, Metaspace or a Sequence with ByteFallback")
    steps = [decoder]
    if _type(decoder) == "Sequence":
        items = decoder.array("decoders") or []
        if not 0 < len(items) <= MAX_STEPS:
            raise decoder.fault("decoders", f"{len(items)} steps, expected 1 to {MAX_STEPS}")
        steps = [decoder.within(f"decoders.{i}", item) for i, item in enumerate(items)]
    if _type(steps[0]) == "ByteLevel":
        for step in steps[1:]:
            if _type(step) != "Fuse":
                raise step.fault("type", f"{shown(_type(step))} after ByteLevel, expected nothing but Fuse")
        return PieceDecoder(byte_level=True)
    return _steps(steps)


def _steps(steps: list[JsonObject]) -> PieceDecoder:
    replacements: list[tuple[str, str]] = []
    strip, byte_fallback, reached = None, False, 0
    for step in steps:
        kind = _type(step)
        order = _ORDER.get(kind)
        if order is None:
            raise step.fault("type", f"decoder {shown(kind)} is not supported")
        if order < reached or order == reached > 0:
            raise step.fault("type", f"decoder {kind} at this place of a sequence is not supported")
        reached = order
        if kind == "Replace":
            replacements.append(_replacement(step))
        elif kind == "Metaspace":
            replacements.append((_character(step, "replacement"), " "))
            if step.values.get("prepend_scheme") != "never" and step.values.get("add_prefix_space") is not False:
                strip = (" ", -1)
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "Strip":
            if len(steps) < 2 or _type(steps[-2]) != "Fuse":
                raise step.fault("type", "decoder Strip without Fuse before it is not supported")
            if step.integer("stop", minimum=0, maximum=2**31):
                raise step.fault("stop", "stripping the end of a text is not supported")
            start = step.integer("start", minimum=0, maximum=2**31) or 0
            strip = (_character(step, "content"), start) if start else strip
    return PieceDecoder(False, tuple(replacements), byte_fallback, strip)


def _type(decoder: JsonObject) -> str:
    kind = decoder.text("type")
    if kind is None:
        raise decoder.fault("type", "missing, expected the name of a decoder")
    return kind


def _replacement(step: JsonObject) -> tuple[str, str]:
    pattern = step.section("pattern")
    literal, content = pattern.text("String") if pattern else None, step.text("content")
    if not literal:
        raise step.fault("pattern", "not a literal text; expressions are not supported")
    if content is None:
        raise step.fault("content", "missing, expected text")
    # else a small file could ask for much memory
    if len(content.encode()) > len(literal.encode()):
        raise step.fault("content", "longer than what it replaces")
    return literal, content


def _character(step: JsonObject, key: str) -> str:
    value = step.text(key)
    if value is None or len(value) != 1:
        found = kind_of(value) if value is None else f"{len(value)} characters"
        raise step.fault(key, f"{found}, expected one character")
    return value
