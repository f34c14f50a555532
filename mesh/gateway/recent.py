"""What the newest receipts of the ledger say in figures, read once each and kept in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from mesh.gateway.receipts import receipt_of
from mesh.ledger import Entry, LedgerReader

KEPT: Final = 20_000  # of some 500 bytes
_BATCH: Final = 512  # read before others have the thread and this process its lock again


@dataclass(frozen=True, slots=True)
class Row:
    """One receipt. Times are Unix nanoseconds, `uj` microjoules; None is unknown."""

    seq: int
    caller: str
    model: str
    finish: str
    started_ns: int
    ended_ns: int
    tokens_in: int | None
    tokens_out: int | None
    tokens_accepted: int | None
    basis: str
    uj: int | None


class Recent:
    """Filled when somebody asks: who never looks at the page pays nothing for it."""

    def __init__(self, reader: LedgerReader, kept: int = KEPT) -> None:
        self._reader = reader
        self._rows: deque[Row] = deque(maxlen=kept)
        self._words: dict[str, str] = {}
        self._filling = asyncio.Lock()
        self._seen = -1

    async def rows(self) -> tuple[Row, ...]:
        """In the order of their numbers, without gaps, the newest last. Raises LedgerError."""
        async with self._filling:
            if self._seen < 0:
                count = await asyncio.to_thread(self._reader.count)
                self._seen = max(-1, count - 1 - (self._rows.maxlen or count))
            while batch := await asyncio.to_thread(self._read):
                self._rows.extend(batch)
                self._seen = batch[-1].seq
                if len(batch) < _BATCH:
                    break
            return tuple(self._rows)

    def _read(self) -> list[Row]:
        return [self._row(entry) for entry in self._reader.receipts(after_seq=self._seen, limit=_BATCH)]

    def _row(self, entry: Entry) -> Row:
        receipt = receipt_of(entry)
        outcome, energy = receipt.outcome, receipt.energy
        return Row(
            entry.seq, self._one(entry.caller), self._one(receipt.engine.recipe_id), self._one(outcome.finish),
            receipt.started_ns, receipt.ended_ns, outcome.tokens_in, outcome.tokens_out, outcome.tokens_accepted,
            self._one(energy.basis), energy.uj,
        )  # fmt: skip

    def _one(self, word: str) -> str:
        """The same string for the same word: a few names stand in thousands of rows."""
        if len(self._words) > KEPT:
            self._words.clear()
        return self._words.setdefault(word, word)
