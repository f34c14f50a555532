"""Prompts have the size that was asked for, whoever counts."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import CandidateError
from mesh.runtime.prompts import NAME, Count, lines, prompt
from tests.support.examples import examples


def counting(overhead: int, *, most: int) -> Count:
    """A tokenizer: words in parts of at most `most` letters, digits and signs by themselves, and a chat around it."""

    async def count(text: str) -> int:
        words = re.findall(r" ?[A-Za-z]+|\d|\n+|\S", text)
        return overhead + sum(-(-len(word) // most) for word in words)

    return count


@settings(max_examples=examples(60))
@given(
    domain=st.sampled_from(("code", "prose")), tokens=st.integers(60, 3000), overhead=st.integers(0, 30),
    most=st.integers(3, 8), stream=st.integers(0, 127),
)  # fmt: skip
def test_a_prompt_has_exactly_its_size(domain: str, tokens: int, overhead: int, most: int, stream: int) -> None:
    count = counting(overhead, most=most)

    async def made() -> tuple[str, int]:
        text = await prompt(domain, tokens, count, seed="8k", stream=stream)
        return text, await count(text)

    text, counted = asyncio.run(made())
    assert counted == tokens
    assert text.endswith(f"Stream {stream}.")


def test_streams_share_their_body_and_seeds_do_not() -> None:
    count = counting(10, most=6)

    async def made() -> list[str]:
        return [await prompt("code", 800, count, seed=seed, stream=stream) for seed, stream in
                (("a", 0), ("a", 1), ("a", 0), ("b", 0))]  # fmt: skip

    first, second, again, other = asyncio.run(made())
    assert first == again
    body, end = first.rsplit("\n\n", 1)
    assert second.startswith(body[: len(body) - 40])
    assert not second.endswith(end)
    assert other[:100] != first[:100]


def test_the_text_is_the_same_for_everybody() -> None:
    code, prose = lines("code", "8k"), lines("prose", "8k")
    assert next(code) == "def offset_1(ratio):\n    return ratio * 50 + 1\n\n"
    assert next(prose) == "The old clock holds the market on day 1. "


def test_a_size_that_nothing_has_is_refused() -> None:
    async def even(text: str) -> int:
        return 2 * len(text)

    with pytest.raises(CandidateError, match="none of code has exactly so many"):
        asyncio.run(prompt("code", 501, even, seed="x", stream=0))
    with pytest.raises(CandidateError, match="less than the task alone"):
        asyncio.run(prompt("code", 3, even, seed="x", stream=0))


@pytest.mark.parametrize(
    ("domain", "digest"),
    [
        ("code", "3e794ac1f78241f355fa1f883a439686d77cf15aa67d80201adea064c166a8b8"),
        ("prose", "6c0626859326f71c2bedd9065f76c8004cceb4bed79f5f5b8ede35f3fb222f11"),
    ],
)
def test_texts_are_those_that_records_name_by_their_version(domain: str, digest: str) -> None:
    """Other texts are another version: figures of records are compared by it."""
    assert NAME == "mesh-code-prose/1"
    made = "".join(itertools.islice(lines(domain, "seed"), 500))
    assert hashlib.sha256(made.encode()).hexdigest() == digest
