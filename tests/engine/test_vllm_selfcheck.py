"""What the measurement at load sees: a server whose numbers depend on its company, on its cache or on the hour."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mesh.engine.vllm_selfcheck import FIXED, LONGEST, SEEDED, TOKENS, Numbers, SelfCheck, measure

EVIDENCE = "somebody looked"
ALL = ["repeat", "together", "warm-together", "warm", "seeded"]


class Model:
    """Numbers that follow from a prompt, and what spoils them. A run that is asked for waits until all that were asked
    for at the same time have begun."""

    def __init__(self, **faults: bool) -> None:
        self.faults = faults
        self.running = 0
        self.most = 0
        self.runs: list[tuple[tuple[int, ...], str, Mapping[str, Any]]] = []
        self._salts: set[str] = set()

    async def run(self, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any]) -> Numbers:
        self.runs.append((tuple(prompt), salt, sampling))
        warm = salt in self._salts
        self._salts.add(salt)
        self.running += 1
        await asyncio.sleep(0)  # tasks of one gather begin before any of them goes on
        company = self.running
        self.most = max(self.most, company)
        await asyncio.sleep(0)
        self.running -= 1
        digest = hashlib.sha256(repr((list(prompt), sampling["seed"])).encode()).digest()
        ids, logprobs = list(digest[:TOKENS]), [-1 - byte / 7 for byte in digest[:TOKENS]]
        drawn = sampling["temperature"] > 0
        if self.faults.get("crowd") and company > 1 and not drawn:
            ids[-1] += 1
        if self.faults.get("warm") and warm:
            logprobs[3] = math.nextafter(logprobs[3], 0)  # the last bit
        if self.faults.get("hour"):
            logprobs[0] += len(self.runs)
        if self.faults.get("draw") and drawn:
            ids[5] += company
        return tuple(ids), tuple(logprobs)


def checked(model: Model, *, slots: int = 8, known: str | None = EVIDENCE, context: int = 2048) -> SelfCheck:
    counter = itertools.count()
    measuring = measure(
        model.run, slots=slots, vocabulary=259, context_tokens=context, salt=lambda: f"s{next(counter)}", known=known
    )
    return asyncio.run(measuring)


def test_a_server_that_always_gives_the_same_numbers_is_deterministic() -> None:
    check = checked(Model())
    assert check.deterministic
    assert list(check.results) == ALL
    assert check.reason == "self-check: bit-identical repeat, together, warm-together, warm, seeded"
    assert check.probe is not None
    assert len(check.probe) == 32


def test_agreement_alone_is_no_claim() -> None:
    check = checked(Model(), known=None)
    assert check.identical
    assert not check.deterministic
    assert "nobody has vouched" in check.reason


@pytest.mark.parametrize(
    ("fault", "differs"),
    [
        ("crowd", {"together": TOKENS - 1, "warm-together": TOKENS - 1}),
        ("warm", {"warm-together": 3, "warm": 3}),
        ("hour", {"repeat": 0, "together": 0, "warm-together": 0, "warm": 0, "seeded": 0}),
        ("draw", {"seeded": 5}),
    ],
)
def test_what_moves_the_numbers_is_named_with_its_place(fault: str, differs: dict[str, int]) -> None:
    check = checked(Model(**{fault: True}))
    assert {name: at for name, at in check.results.items() if at is not None} == differs
    assert not check.deterministic
    assert all(f"{name} (position {at})" in check.reason for name, at in differs.items())
    assert (check.probe is None) == ("repeat" in differs)


@pytest.mark.parametrize("slots", [1, 3, 8, 32])
def test_as_many_run_at_once_as_ever_will(slots: int) -> None:
    model = Model()
    assert checked(model, slots=slots).deterministic
    assert model.most == slots
    prompts = {prompt for prompt, _, _ in model.runs}
    assert len(prompts) == max(slots, FIXED)
    assert max(map(len, prompts)) == LONGEST


def test_a_salt_is_used_again_only_for_the_warm_runs() -> None:
    model = Model()
    checked(model, slots=4)
    used: dict[str, int] = {}
    for _, salt, _ in model.runs:
        used[salt] = used.get(salt, 0) + 1
    assert sorted(used.values(), reverse=True)[:4] == [3, 2, 2, 2]
    assert set(used.values()) == {1, 2, 3}
    assert any(sampling == SEEDED for _, _, sampling in model.runs)


def test_the_probe_is_the_same_however_many_slots_there_are() -> None:
    assert checked(Model(), slots=1).probe == checked(Model(), slots=32).probe


def test_a_small_context_is_not_exceeded() -> None:
    model = Model()
    assert checked(model, context=TOKENS + 10).deterministic
    assert max(len(prompt) for prompt, _, _ in model.runs) <= 10


def test_a_run_that_is_shorter_differs_where_it_ends() -> None:
    class Short(Model):
        async def run(self, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any]) -> Numbers:
            ids, logprobs = await super().run(prompt, salt, sampling)
            return (ids[:7], logprobs[:7]) if len(self.runs) > 40 else (ids, logprobs)

    assert 7 in checked(Short()).results.values()
