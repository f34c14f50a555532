"""What a replay costs beside the serve that it replays, and beside what the engine needs to read the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.audited import Audited, Took, audited
from bench.measure import Comparison, Goal, PeerMissing, Plan, Round, Sides
from bench.models import larger, requantized
from bench.scratch import scratch
from bench.venvs import ROOT
from mesh.cli.engines import packaged_model
from mesh.errors import UsageError
from mesh.replay.replayer import By

_PREFILL = Path(__file__).parent.parent / "peers" / "llama_prefill.py"
_QUICK_TOKENS = 16
_FULL_SERVES = 10  # a plan with fewer is a quick one
_WIDTH = 64  # of the engine's batches
HALF, NEAR = Goal("<=", 0.5), Goal("<=", 1.15)


def _of(took: Took, threads: int) -> float:
    """More threads take more processor time and less of the auditor's."""
    return took.cpu_ms if threads == 1 else took.wall_ms


def _tokens(plan: Plan, tokens: int) -> int:
    return tokens if plan.serves >= _FULL_SERVES else _QUICK_TOKENS


Make = Callable[[Path], Path]  # writes a model file


@contextmanager
def _against_serve(
    plan: Plan, *, tokens: int, threads: int, by: By, seeded: bool = False, make: Make | None = None
) -> Iterator[Sides]:
    with ExitStack() as stack:
        path = None if make is None else make(stack.enter_context(scratch("model")) / "model.gguf")
        one = stack.enter_context(audited(threads=threads, path=path))
        made = _tokens(plan, tokens)
        one.serve(made, seeded=seeded)
        yield Sides(lambda: _of(one.replay(by=by), threads), lambda: _of(one.serve(made, seeded=seeded), threads))


@contextmanager
def _against_prefill(plan: Plan, *, tokens: int, threads: int) -> Iterator[Sides]:
    with audited(threads=threads) as one:
        one.serve(_tokens(plan, tokens))
        with _prefill(one, threads) as (version, pass_):
            yield Sides(lambda: _of(one.replay(), threads), pass_, f"xllamacpp {version}")


@contextmanager
def _prefill(one: Audited, threads: int) -> Iterator[tuple[str, Round]]:
    ids = [*one.ids, *one.last.tokens[:-1]]
    work = {"path": str(packaged_model()), "ids": ids, "wanted": len(one.ids) - 1, "width": _WIDTH, "threads": threads}
    command = [sys.executable, str(_PREFILL)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    ) as peer:  # fmt: skip

        def ask(line: str) -> str:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write(line + "\n")
            peer.stdin.flush()
            answer = peer.stdout.readline().strip()
            if not answer:
                raise PeerMissing(f"the bare pass ended with exit {peer.wait()}")
            return answer

        def pass_() -> float:
            cpu, wall = ask("again").split()
            return _of(Took(int(cpu) / 1e6, int(wall) / 1e6), threads)

        yield ask(json.dumps(work)), pass_


def _row(
    tokens: int, threads: int, by: By, *, goal: Goal | None = None, seeded: bool = False, make: Make | None = None,
    model: str = "SmolLM2 Q4_1",
) -> Comparison:  # fmt: skip
    how = "prefill" if by == "auto" else "decoding"
    kind = (", seeded" if seeded else "") + ("" if make is None else f", {model}")
    return Comparison(
        name=f"replay by {how} vs serve, {tokens} tokens{kind}, {_threads(threads)}",
        unit="ms CPU" if threads == 1 else "ms wall",
        ours=f"replay of a sealed serve of {model}: {how}, {_threads(threads)}",
        peer="that serve, decoded with one thread and sealed",
        goal=goal,
        sides=partial(_against_serve, tokens=tokens, threads=threads, by=by, seeded=seeded, make=make),
        rounds=3,
    )


def _smaller(path: Path) -> Path:
    try:
        return requantized(packaged_model(), path)
    except UsageError as e:
        raise PeerMissing("the packaged model is not installed") from e


def _threads(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"


SERVES: tuple[Comparison, ...] = (
    *(_row(tokens, 1, "auto", goal=HALF if tokens == 256 else None) for tokens in (64, 256, 512)),
    *(_row(tokens, 2, "auto", goal=HALF if tokens == 256 else None) for tokens in (64, 256, 512)),
    _row(256, 1, "auto", seeded=True),
    _row(256, 1, "auto", goal=HALF, make=_smaller, model="SmolLM2 Q4_0"),
    _row(64, 1, "auto", goal=HALF, make=larger, model="1 billion weights, Q4_0"),
    *(_row(tokens, 1, "decode") for tokens in (64, 256, 512)),
)
PREFILL: tuple[Comparison, ...] = tuple(
    Comparison(
        name=f"replay vs the engine's own prefill, 256 tokens, {_threads(threads)}",
        unit="ms CPU" if threads == 1 else "ms wall",
        ours="replay of a sealed serve of SmolLM2 Q4_1 by prefill, to the verdict",
        peer="llama.cpp taking in the same tokens under the same settings, logits of the output's places",
        goal=NEAR,
        sides=partial(_against_prefill, tokens=256, threads=threads),
        rounds=3,
    )
    for threads in (1, 2)
)
