"""The replays of an audit: each model is loaded once, its receipts go through it, and several run side by side where
engines of their own can be had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from mesh.cli.audit_sources import AuditSource, Disclosed, Disclosures, receipt_id_of
from mesh.cli.console import counted
from mesh.cli.specs import EngineSpec, VllmSpec
from mesh.cli.starting import start_engine
from mesh.engine.grammars import GrammarEngine
from mesh.engine.protocol import ServingEngine, blueprint_of, identity_of
from mesh.errors import Invalid, Undecidable, UsageError
from mesh.identity.shard import ShardIdentity
from mesh.replay.facts import EngineFacts, first_other
from mesh.replay.judged import Judged
from mesh.replay.replayer import replay
from mesh.replay.score import score
from mesh.schema.envelope import RECEIPT_TYPE, Sealed, verify
from mesh.schema.ids import ContentId

_CLOSENESS = ("other-backend", "other-recipe", "other-weights", "other-blueprint", "other-settings")


@dataclass(frozen=True, slots=True)
class Task:
    sealed: Sealed
    receipt_id: ContentId
    disclosed: Disclosed


@dataclass(frozen=True, slots=True)
class _Described:
    """An engine that is closed, as far as a comparison needs it: no receipt that it is asked about can match it."""

    backend_id: str
    recipe_id: str
    settings: Mapping[str, Any]
    weights_digest: ContentId | None
    blueprint_id: bytes | None
    identity: ShardIdentity | None


@dataclass(slots=True)
class Replays:
    """`chosen` are the ids of the receipts to replay, by the number of their group in `groups`; they are taken away as
    they are judged. `judged` is told each verdict."""

    sources: Sequence[AuditSource]
    disclosures: Disclosures
    trust: Collection[bytes]
    groups: Sequence[EngineFacts]
    chosen: dict[int, set[bytes]]
    judged: Callable[[Judged], None]
    grammars: Sequence[str] = ()
    scoring: bool = False
    _closest: dict[int, tuple[int, _Described]] = field(default_factory=dict)

    async def run(self, specs: Sequence[EngineSpec], jobs: int) -> None:
        """Replay everything that was chosen, on at most `jobs` engines at once. Raises what starting one raises."""
        lanes = max(1, jobs // len(specs))
        free = asyncio.Semaphore(max(1, jobs // lanes))
        alone = len(specs) == 1
        await _together(self._backend(spec, free, lanes, alone=alone) for spec in specs)
        for group in sorted(self._left()):
            _, described = self._closest[group]
            for task in self._tasks({group}):
                await self._judge(task, cast("ServingEngine", described))

    def _left(self) -> set[int]:
        return {group for group, ids in self.chosen.items() if ids}

    async def _backend(self, spec: EngineSpec, free: asyncio.Semaphore, lanes: int, *, alone: bool) -> None:
        async with free:
            if not self._left():
                return
            async with AsyncExitStack() as running:
                engine = await self._start(spec, running)
                mine = self._left() if alone else self._matching(engine)
                if not mine:
                    return
                taken = {group: self.chosen.pop(group) for group in mine}
                engines = [engine]
                # a server of somebody else's is one engine, and a replay wants it for itself
                shared = isinstance(spec, VllmSpec) and spec.url is not None
                wanted = 1 if shared else min(lanes, sum(map(len, taken.values())))
                while len(engines) < wanted:
                    engines.append(await self._start(spec, running))
                tasks, reading = self._tasks_of(set().union(*taken.values())), asyncio.Lock()
                await _together(self._lane(each, tasks, reading) for each in engines)

    async def _start(self, spec: EngineSpec, running: AsyncExitStack) -> ServingEngine:
        engine = await start_engine(spec)
        running.push_async_callback(engine.close)
        for grammar in self.grammars:
            if not isinstance(engine, GrammarEngine):
                raise UsageError("--grammar: this engine follows none")
            engine.learn(grammar)
        return engine

    def _matching(self, engine: ServingEngine) -> set[int]:
        """The groups that this engine can replay. Of the others it is remembered how near it comes."""
        facts, mine = EngineFacts.of_engine(engine), set()
        for group in self._left():
            other = first_other(self.groups[group], facts)
            if other is None:
                mine.add(group)
                continue
            closeness = _CLOSENESS.index(other.reason) + len(_CLOSENESS) * (
                self.groups[group].recipe_id == engine.recipe_id
            )
            if closeness > self._closest.get(group, (-1, None))[0]:
                described = _Described(
                    engine.backend_id, engine.recipe_id, dict(engine.settings), engine.weights_digest,
                    blueprint_of(engine), identity_of(engine),
                )  # fmt: skip
                self._closest[group] = closeness, described
        return mine

    async def _lane(self, engine: ServingEngine, tasks: Iterator[Task], reading: asyncio.Lock) -> None:
        while True:
            async with reading:  # of one source at a time, and off the loop: it may be a slow disk, or a gateway
                task = await asyncio.to_thread(next, tasks, None)
            if task is None:
                return
            await self._judge(task, engine)

    async def _judge(self, task: Task, engine: ServingEngine) -> None:
        receipt, envelope, disclosure = task.sealed.value, task.sealed.envelope, task.disclosed.disclosure
        began = time.perf_counter_ns()
        verdict = await replay(envelope, disclosure, engine, self.trust)
        took = time.perf_counter_ns() - began
        scored = None
        if self.scoring and verdict.kind == "not-replayable" and not isinstance(engine, _Described):
            scored = await score(task.sealed, disclosure, engine, verdict)
        span = receipt.energy.span_ns
        self.judged(
            Judged(
                receipt.steward, receipt.seq, task.receipt_id, receipt.engine.recipe_id, verdict,
                tokens=receipt.outcome.tokens_out, serve_ns=span or max(0, receipt.ended_ns - receipt.started_ns),
                replay_ns=took, score=scored, disclosure=task.disclosed.source, disclosure_fault=task.disclosed.fault,
            )
        )  # fmt: skip

    def _tasks(self, groups: set[int]) -> Iterator[Task]:
        return self._tasks_of(set().union(*(self.chosen.pop(group) for group in groups)))

    def _tasks_of(self, wanted: set[bytes]) -> Iterator[Task]:
        for source in self.sources:
            if not wanted:
                break
            for envelope in source.again(wanted):
                receipt_id = receipt_id_of(envelope)
                if receipt_id not in wanted:
                    continue
                try:
                    sealed = verify(envelope, RECEIPT_TYPE, self.trust)
                except (Invalid, Undecidable):  # the same receipt under a broken signature; another source has it whole
                    continue
                wanted.discard(receipt_id)
                yield Task(sealed, receipt_id, self.disclosures.of(sealed.value, receipt_id))
        if wanted:
            raise OSError(f"{counted(len(wanted), 'receipt')} that the sources had before are not there any more")


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them at once; the first that fails stops the others, and its error is the one that is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as e:
        error: BaseException = e
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
