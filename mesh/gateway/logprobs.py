"""Log-probabilities as OpenAI's two routes show them, each with the text that it belongs to.

They are the engine's raw scores, from before biases, penalties, temperature and cuts, so they do not depend on how the
answer was sampled. An id without text, the one that ends an answer for instance, has no entry, as it has no text.
"""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.engine.protocol import Scores
from mesh.errors import MeshError

_LEAST = -9999.0  # what the API says for "never": JSON has no infinity

Piece = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """One id of the output. `start` and `end` are where its bytes lie in those of the output, `offset` how many
    characters were complete before it."""

    token: int
    scores: Scores
    start: int
    end: int
    offset: int


class ScoreLine:
    """Entries in the order of the ids, held until their text is out."""

    def __init__(self) -> None:
        self._held: deque[Entry] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes = 0
        self._chars = 0

    def push(self, token: int, piece: bytes, scores: Scores | None) -> None:
        if not piece:
            return
        end = self._bytes + len(piece)
        if scores is not None:
            self._held.append(Entry(token, scores, self._bytes, end, self._chars))
        self._bytes = end
        self._chars += len(self._decoder.decode(piece))

    def release(self, released: int, *, ended: bool) -> list[Entry]:
        """The entries whose text lies in the first `released` bytes; once it has `ended`, also that of the id whose
        text was cut."""
        out = []
        while self._held and (self._held[0].start < released if ended else self._held[0].end <= released):
            out.append(self._held.popleft())
        return out


def chat_logprobs(entries: Sequence[Entry], piece: Piece) -> dict[str, Any]:
    """The `logprobs` of a chat choice, whole or for one chunk."""
    content = []
    for entry in entries:
        best = [_told(token, logprob, piece) for token, logprob in entry.scores.best]
        content.append({**_told(entry.token, entry.scores.chosen, piece), "top_logprobs": best})
    return {"content": content, "refusal": None}


def text_logprobs(entries: Sequence[Entry], piece: Piece) -> dict[str, Any]:
    """The `logprobs` of a text choice, whole or for one chunk."""
    return {
        "tokens": [_spelled(entry.token, piece) for entry in entries],
        "token_logprobs": [_finite(entry.scores.chosen) for entry in entries],
        "top_logprobs": [
            {_spelled(token, piece): _finite(logprob) for token, logprob in entry.scores.best} for entry in entries
        ],
        "text_offset": [entry.offset for entry in entries],
    }


def _told(token: int, logprob: float, piece: Piece) -> dict[str, Any]:
    return {"token": _spelled(token, piece), "logprob": _finite(logprob), "bytes": list(_bytes(token, piece))}


def _spelled(token: int, piece: Piece) -> str:
    """Text where the bytes are some; otherwise the bytes, as OpenAI spells them, or the id where there are none."""
    data = _bytes(token, piece)
    try:
        return data.decode() or f"token_id:{token}"
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _bytes(token: int, piece: Piece) -> bytes:
    try:
        return piece(token)
    except MeshError:  # an id that pads the vocabulary may be likely and still be nothing
        return b""


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) and logprob > _LEAST else _LEAST
