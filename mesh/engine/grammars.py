"""Grammars that an engine was told, by digest: a request holds the digest, and an engine needs the text.

A request's `sampling.grammar` is the BLAKE3 digest of the grammar's UTF-8 text. Whoever serves or replays such a
request tells the engine the text first; it is checked against the digest by construction.

The text is GBNF, llama.cpp's notation, and its rule `root` is the whole output.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol, runtime_checkable

from mesh.schema.ids import ContentId
from mesh.schema.request import Sampling

MAX_GRAMMARS: Final = 1024  # more than serves run and wait at once


@runtime_checkable
class GrammarEngine(Protocol):
    """An engine that can hold an output to a grammar."""

    def learn(self, grammar: str) -> bytes:
        """Keep `grammar` for a while; returns its digest, 32 bytes, for `sampling.grammar`."""
        ...


class Grammars:
    """The last `MAX_GRAMMARS` that were used."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def learn(self, grammar: str) -> bytes:
        digest = bytes(ContentId.of_bytes(grammar.encode()))
        self._texts[digest] = grammar
        self._texts.move_to_end(digest)
        if len(self._texts) > MAX_GRAMMARS:
            self._texts.popitem(last=False)
        return digest

    def text(self, digest: bytes | None) -> str | None:
        """The text of a digest; None for none, and for one that is not known any more."""
        return None if digest is None else self._texts.get(digest)

    def refusal(self, sampling: Sampling) -> str | None:
        """Why a request with this grammar cannot be served; None where it can, or has none."""
        if sampling.grammar is None:
            return None
        if sampling.grammar not in self._texts:
            return "grammar: this engine was not told the text of its digest"
        return "ignore_eos: an output that is held to a grammar ends with it" if sampling.ignore_eos else None
