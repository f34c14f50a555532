"""One launch: every node made ready, ranks compared, the run opened in the ledger, engines started, waited for.

Nothing starts before all nodes are staged and of one kind. What started and did not become ready is stopped again, and
the run is closed only where every node was seen to be free of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mesh.errors import LaunchError, NodeFailed, NodeUnreachable, RanksDiffer
from mesh.launch.commands import (
    Step,
    at_home,
    composed_folder,
    container_name,
    log_path,
    record_step,
)
from mesh.launch.comparing import check_ranks
from mesh.launch.config import LaunchConfig
from mesh.launch.effective import effective_findings
from mesh.launch.facts import fact_steps, said_step
from mesh.launch.looking import (
    container_end,
    container_state_step,
    could_look,
    marked_step,
    pane_end,
    port_step,
    ready,
    session_step,
    tail_step,
)
from mesh.launch.plan import Options, Plan, make_plan
from mesh.launch.plugins import NONE, Plugins
from mesh.launch.recipe import RecipeFile
from mesh.launch.record import LaunchRecord
from mesh.launch.run_ledger import RunLedger
from mesh.launch.seen_images import SeenImages, is_gone
from mesh.launch.selection import Chosen
from mesh.launch.ssh import Done, Host, Hosts
from mesh.launch.stopping import POLL_S, Deadlines, Target, stop_everywhere

STEP_S = 4 * 3600.0  # a first copy of a large model takes hours
READY_S = 1800.0
_FACTS = ("image", "inherited environment", "program", "weights")

Note = Callable[[str], None]


@dataclass(slots=True)
class Launch:
    """`facts` are what was found on each node and written down: image, program, weights, inherited environment."""

    config: LaunchConfig
    file: RecipeFile
    chosen: Chosen
    run: str
    ledger: RunLedger
    hosts: Hosts
    now_ns: Callable[[], int]
    note: Note
    options: Options = field(default_factory=Options)
    deadlines: Deadlines = field(default_factory=Deadlines)
    ready_s: float = READY_S
    plugins: Plugins = NONE
    seen: SeenImages | None = None
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return self.file.recipe.port or self.config.default_port

    @property
    def target(self) -> Target:
        return Target(self.run, self.chosen.nodes, self.port, self.file.recipe.deploy)

    @property
    def expected_model(self) -> str:
        """The name under which the engine serves."""
        recipe = self.file.recipe
        if recipe.served_model_name is not None:
            return recipe.served_model_name
        if recipe.composed_model is not None:
            return recipe.composed_model.mount
        if recipe.engine == "mesh" and recipe.local_model:
            return recipe.model.rpartition("/")[2].removesuffix(".gguf")
        return recipe.repo

    async def prepare(self) -> Plan:
        """Everything before a start, on all nodes. Raises NodeFailed, RanksDiffer, HostKeyError, LaunchError."""
        self._all_there()
        try:
            return await self._prepare()
        except (LaunchError, asyncio.CancelledError):
            if self.file.recipe.composed_model is not None:
                await asyncio.shield(self._uncompose())
            raise

    async def _uncompose(self) -> None:
        """What was composed for a run that is not opened: no stop would come by it."""
        for host in self.hosts.up.values():
            with contextlib.suppress(NodeUnreachable):
                await host.run(f"rm -rf {shlex.quote(composed_folder(self.run))}")

    async def _prepare(self) -> Plan:
        plan = self._plan(None, None)
        await self._steps(plan.phases["prepare"], "prepare")
        gid = {name: facts["find the GID index"] for name, facts in self.facts.items() if "find the GID index" in facts}
        await self._steps(plan.phases["stage"], "stage")
        await self._steps(fact_steps(self.config, plan, self.options), "look")
        plan = self._plan(gid, self._placeholders() or None)
        compared = {name: {what: facts[what] for what in _FACTS if what in facts} for name, facts in self.facts.items()}
        check_ranks(plan.ranks, compared)
        self._check_pins()
        self._note_image(plan)
        await self._free()
        await self._steps(plan.phases["hooks"], "hooks")
        return plan

    def _plan(self, gid: Mapping[str, str] | None, placeholders: Mapping[str, Mapping[str, str]] | None) -> Plan:
        return make_plan(
            self.config,
            self.file,
            self.chosen,
            run=self.run,
            options=self.options,
            gid=gid,
            placeholders=placeholders,
            plugins=self.plugins,
        )

    def _all_there(self) -> None:
        if len(self.hosts.down) == 1:
            raise next(iter(self.hosts.down.values()))
        if self.hosts.down:
            raise _failed("reached", {name: str(error) for name, error in self.hosts.down.items()})

    def _placeholders(self) -> dict[str, dict[str, str]]:
        prefix = "placeholder "
        return {
            name: {what.removeprefix(prefix): value for what, value in facts.items() if what.startswith(prefix)}
            for name, facts in self.facts.items()
        }

    def _check_pins(self) -> None:
        """Files of the model whose SHA-256 is pinned, where the look took it over all bytes."""
        pinned = self.file.recipe.pins.model_files
        if self.options.stage != "force" or not pinned:
            return
        for name, facts in self.facts.items():
            lines = [line.partition(" ") for line in facts.get("weights", "").splitlines()]
            marks = {name_of: mark for mark, _, name_of in lines}
            for file, digest in pinned.items():
                if digest.startswith("sha256:") and marks.get(file) != digest.removeprefix("sha256:"):
                    raise RanksDiffer(
                        f"weights: {file} on {name} is {marks.get(file, 'not there')}, pinned is {digest}"
                    )

    def _note_image(self, plan: Plan) -> None:
        head = self.chosen.nodes[0].name
        found = self.facts.get(head, {}).get("image")
        if self.seen is not None and plan.image is not None and found:
            try:
                self.seen.add(plan.image, what=found, where=head, at_ns=self.now_ns())
            except OSError as e:  # it would only have told of an image that vanishes
                self.note(f"{self.seen.path}: {plan.image} is not noted: {(e.strerror or str(e)).lower()}")

    async def _free(self) -> None:
        head = self.hosts.up[self.chosen.nodes[0].name]
        done = await head.run(port_step(head.node.name, self.port).command)
        if not could_look(done):
            raise LaunchError(f"node {head.node.name}: could not check port {self.port}: {done.last}")
        if done.out.strip() == "taken":
            raise LaunchError(f"node {head.node.name}: port {self.port} is taken already")

    async def _steps(self, steps: Sequence[Step], phase: str) -> None:
        """Each node's own in order, nodes in parallel. Raises NodeFailed naming every node that failed."""

        async def on(name: str) -> tuple[str, str | None]:
            for step in steps:
                if step.node != name:
                    continue
                try:
                    done = await self.hosts.up[name].run(step.command, timeout_s=STEP_S)
                except NodeUnreachable as e:
                    return name, f"{step.what}: {e}"
                self.facts.setdefault(name, {})[step.what] = done.out.strip()
                if done.status != 0:
                    told = f"{step.what}: ended in {_status(done)}: {done.last}"
                    if step.what == "pull" and is_gone(done.err) and self.file.recipe.image is not None:
                        image = self.file.recipe.image
                        told = f"image gone: {image}, {self.seen.words(image) if self.seen else 'not at its registry'}"
                    if step.on_failure == "abort":
                        return name, told
                    self.note(f"{name}: {told}; the recipe says to go on")
            return name, None

        if steps:
            self.note(f"{phase}: {len(steps)} commands on {', '.join(node.name for node in self.chosen.nodes)}")
        ends = await asyncio.gather(*(on(node.name) for node in self.chosen.nodes))
        failed = {name: problem for name, problem in ends if problem is not None}
        if failed:
            raise _failed(phase, failed)

    async def start(self, plan: Plan, record: LaunchRecord | None = None, *, wait: bool = True) -> None:
        """Open the run, start every rank, wait until it serves. `record` is first put beside each rank's log, where an
        engine finds it that names it in its receipts. Raises NodeFailed, LaunchError; the run is then stopped again,
        and closed where that was verified. Without `wait` nobody has seen it serve: it is open, and not ready."""
        self.ledger.append(
            {
                "event": "opened", "run": self.run, "at_ns": self.now_ns(), "cluster": self.chosen.cluster.name,
                "recipe": self.file.name, "recipe_sha256": self.file.digest, "port": self.port,
                "record": None if record is None else record.digest.text,
                "deploy": self.file.recipe.deploy, "engine": self.file.recipe.engine, "model": self.expected_model,
                "nodes": [node.model_dump(mode="json", exclude_none=True) for node in self.chosen.nodes],
            }
        )  # fmt: skip
        self.note(f"run {self.run} is open")
        try:
            if record is not None:
                await self._steps([record_step(node, self.run, record.data) for node in self.chosen.nodes], "record")
            await self._steps(plan.phases["start"], "start")
            if not wait:
                self.note("started; nobody waits for it")
                return
            self.note(f"started; waiting for {self.expected_model} on port {self.port}")
            await self._until_ready()
            await self._as_asked()
        except (LaunchError, asyncio.CancelledError) as e:
            how = "cancelled" if isinstance(e, asyncio.CancelledError) else "not-ready"
            await asyncio.shield(self._give_up(how, str(e)))
            raise
        self.ledger.append({"event": "ready", "run": self.run, "at_ns": self.now_ns()})
        self.note(f"ready: {self.expected_model} answers on {self.chosen.nodes[0].name}:{self.port}")

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        until, said = loop.time() + self.ready_s, ""
        head = self.hosts.up[self.chosen.nodes[0].name]
        while True:
            now, why = await ready(head, self.port, self.file.recipe.engine, self.expected_model)
            if now:
                return
            if why != said:
                self.note(f"not ready yet: {why}")
                said = why
            dead = {name: told for name in self.hosts.up if (told := await self._died(name)) is not None}
            if dead:
                raise _failed("start", dead)
            if loop.time() >= until:
                raise LaunchError(f"not ready within {self.ready_s:g} s: {why}")
            await asyncio.sleep(POLL_S)

    async def _as_asked(self) -> None:
        """Hold what the engine says it runs with against the recipe. Raises LaunchError for a lever that it did not
        read, or set otherwise, unless the recipe allows it."""
        recipe, head = self.file.recipe, self.chosen.nodes[0].name
        said = await self.hosts.up[head].run(said_step(head, self.file, self.run).command)
        findings = effective_findings(recipe.engine, recipe.args, said.out, recipe.allowed_levers)
        for one in findings:
            self.note(one.words())
        wrong = [one.words() for one in findings if one.level == "error"]
        if wrong:
            raise LaunchError("the engine does not run as asked: " + "; ".join(wrong))

    async def _died(self, name: str) -> str | None:
        """That the engine of this node ended, with its last words; None where it lives or nobody can say."""
        host = self.hosts.up[name]
        if self.file.recipe.deploy == "docker":
            return await self._container_died(host)
        how = pane_end(await host.run(session_step(name, self.run).command))
        if how is None:
            return None
        rank = next(n for n, node in enumerate(self.chosen.nodes) if node.name == name)
        log = await host.run(tail_step(name, at_home(log_path(self.run, rank))).command)
        return f"the engine ended ({how}): {log.last}"

    async def _container_died(self, host: Host) -> str | None:
        rank = next(n for n, node in enumerate(self.chosen.nodes) if node.name == host.node.name)
        name = container_name(self.file.name, rank)
        how = container_end(await host.run(container_state_step(host.node.name, name).command))
        if how is None:
            return None
        log = await host.run(f"docker logs --tail 20 {shlex.quote(name)} 2>&1")
        return f"{how}: {log.last}"

    async def _give_up(self, how: str, why: str) -> None:
        self.note(f"stopping again: {why}")
        problems = await stop_everywhere(self.hosts, self.target, replace(self.deadlines, drain_s=5.0), self.note)
        if problems:
            self.note("not seen to be stopped, so the run stays open: " + _listed(problems))
            return
        self.ledger.append({"event": "closed", "run": self.run, "at_ns": self.now_ns(), "how": how, "why": why[:500],
                            "verified": True})  # fmt: skip

    async def processes(self) -> dict[str, Any]:
        """By node, the ids of the run's processes."""
        found = {}
        for name, host in self.hosts.up.items():
            done = await host.run(marked_step(name, self.run).command)
            found[name] = [int(line.split()[0]) for line in done.out.splitlines() if line.strip()]
        return found


def _failed(phase: str, nodes: Mapping[str, str]) -> NodeFailed:
    return NodeFailed(f"{phase}: {_listed(nodes)}", nodes=nodes)


def _listed(nodes: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {problem}" for name, problem in sorted(nodes.items()))


def _status(done: Done) -> str:
    return "a signal" if done.status is None else f"status {done.status}"
