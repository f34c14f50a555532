"""Prompts of a stated size, in code or prose: the same text for everybody, as long as whoever counts says it is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from mesh.errors import CandidateError

NAME: Final = "mesh-code-prose/1"  # of these texts, in records
Count = Callable[[str], Awaitable[int]]
"""How many tokens a chat of this one message is, rendered."""

# fmt: off
_ADJECTIVES: Final = ("old", "small", "quiet", "bright", "heavy", "narrow", "early", "plain", "steady", "distant")
_NOUNS: Final = ("river", "engine", "garden", "letter", "window", "bridge", "market", "harbour", "road", "clock")
_VERBS: Final = ("follows", "carries", "leaves", "keeps", "passes", "meets", "holds", "shows", "crosses", "reaches")
_NAMES: Final = ("total", "index", "offset", "weight", "limit", "count", "width", "depth", "ratio", "score")
# fmt: on
_FILLERS: Final = (" ok", " a", " yes", ".", "\n", "!", " x")
_TASKS: Final = {
    "code": "Continue this file. Stream {stream}.",
    "prose": "Continue this text. Stream {stream}.",
}


def lines(domain: str, seed: str) -> Iterator[str]:
    """Text without end, in pieces of about a dozen tokens: for one seed the same."""
    rng = random.Random(f"{NAME} {domain} {seed}")  # noqa: S311 - text, and no secret
    number = 0
    while True:
        number += 1
        if domain == "code":
            name, other = rng.sample(_NAMES, 2)
            yield f"def {name}_{number}({other}):\n    return {other} * {rng.randrange(2, 99)} + {number}\n\n"
        else:
            adjective, noun, verb = rng.choice(_ADJECTIVES), rng.choice(_NOUNS), rng.choice(_VERBS)
            yield f"The {adjective} {noun} {verb} the {rng.choice(_NOUNS)} on day {number}. "


async def prompt(domain: str, tokens: int, count: Count, *, seed: str, stream: int) -> str:
    """A message of exactly `tokens`. All of one seed begin with the same text and end in their own task. Raises
    CandidateError where no text of that size can be made, as where `tokens` is less than a chat needs."""
    task = _TASKS[domain].format(stream=stream)
    pieces: list[str] = []
    source = lines(domain, seed)

    def text(of: int, filler: str = "") -> str:
        return "".join(pieces[:of]) + filler + "\n\n" + task

    async def size(of: int) -> int:
        while len(pieces) < of:
            pieces.append(next(source))
        return await count(text(of))

    if await size(0) > tokens:
        raise CandidateError(f"a prompt of {tokens} tokens: less than the task alone, {await size(0)}")
    low, high = 0, 1
    while await size(high) <= tokens:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if await size(middle) <= tokens:
            low = middle
        else:
            high = middle
    # a piece less leaves room for words that count one each
    for of in range(low, max(low - 3, -1), -1):
        for filler in _FILLERS:
            times = tokens - await size(of)
            for _ in range(4):
                made = text(of, filler * times)
                found = await count(made)
                if found == tokens:
                    return made
                times += tokens - found
                if times < 0:
                    break
    raise CandidateError(f"a prompt of {tokens} tokens: none of {domain} has exactly so many")
