"""One llama.cpp context: cells of keys and values, sequences in them, and batches computed over them.

Lives in the child process only.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.engine import gguf_abi as abi
from mesh.errors import EngineFailed

Row = npt.NDArray[np.float32]  # one float32 logit for each id of the vocabulary


@dataclass(frozen=True, slots=True)
class Feed:
    """One token of a batch: `pos` is its place in sequence `slot`; `wanted` asks for the logits that follow it."""

    token: int
    pos: int
    slot: int
    wanted: bool


class Context:
    """`native` is the library's, of a model with `vocab_tokens` ids; a batch has at most `n_batch` tokens, in sequences
    0 to `sequences` - 1. Raises EngineFailed where the library does. Not thread-safe."""

    def __init__(self, library: c.CDLL, native: Any, *, vocab_tokens: int, n_batch: int, sequences: int) -> None:
        self._library = library
        self.native = native
        self._vocab_tokens = vocab_tokens
        self._memory = library.llama_get_memory(native)
        self._batch = _BatchArrays(n_batch, sequences)

    def decode(self, feeds: Sequence[Feed]) -> list[Row]:
        """Compute `feeds` (at most n_batch) in one call and give the logits of those that are wanted, in order. The
        rows are the library's own memory: read them before the next call."""
        code = self._library.llama_decode(self.native, self._batch.fill(feeds))
        if code != abi.DECODE_OK:
            raise EngineFailed(f"model: decoding {len(feeds)} tokens failed with code {code}")
        return [self._row(i) for i, feed in enumerate(feeds) if feed.wanted]

    def _row(self, index: int) -> Row:
        address = self._library.llama_get_logits_ith(self.native, index)
        if not address:
            raise EngineFailed(f"model: no logits at batch index {index}")
        row: Row = np.ctypeslib.as_array((c.c_float * self._vocab_tokens).from_address(address))
        return row

    def forget(self, slot: int, from_pos: int = 0) -> bool:
        """Drop what sequence `slot` computed at `from_pos` and after. False where the model cannot be cut there, which
        is never so at 0."""
        return bool(self._library.llama_memory_seq_rm(self._memory, slot, from_pos, -1))

    def forget_all(self) -> None:
        self._library.llama_memory_clear(self._memory, True)

    def branch(self, slot: int, other: int) -> None:
        """Let sequence `other` begin with all that sequence `slot` computed, without computing it again."""
        self._library.llama_memory_seq_cp(self._memory, slot, other, -1, -1)

    def close(self) -> None:
        self._library.llama_free(self.native)


class _BatchArrays:
    """The arrays a batch points at, made once."""

    def __init__(self, capacity: int, slots: int) -> None:
        self._capacity = capacity
        self._slot_ids = np.arange(slots, dtype=np.int32)
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._slot = np.zeros(capacity, np.uintp)  # addresses into _slot_ids
        self._wanted = np.zeros(capacity, np.int8)

    def fill(self, feeds: Sequence[Feed]) -> abi.Batch:
        n = len(feeds)
        if not 0 < n <= self._capacity:
            raise EngineFailed(f"model: batch of {n} tokens, expected 1 to {self._capacity}")
        base, width = self._slot_ids.ctypes.data, self._slot_ids.itemsize
        self._token[:n] = [feed.token for feed in feeds]
        self._pos[:n] = [feed.pos for feed in feeds]
        self._slot[:n] = [base + feed.slot * width for feed in feeds]
        self._wanted[:n] = [feed.wanted for feed in feeds]
        return abi.Batch(
            n, self._token.ctypes.data, None, self._pos.ctypes.data, self._count.ctypes.data, self._slot.ctypes.data,
            self._wanted.ctypes.data,
        )  # fmt: skip
