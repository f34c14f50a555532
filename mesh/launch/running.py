"""What runs, held to what was launched: files that changed since, and processes or containers that are others.

What could not be looked at is told apart from what differs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mesh.errors import EnvelopeError, NodeUnreachable, UntrustedSteward, UsageError
from mesh.launch.commands import LABEL, SESSION, Step, program_step, socket_name
from mesh.launch.config import Loaded, Node
from mesh.launch.recipe import RUN_MARKER, RecipeFile
from mesh.launch.record import HIDDEN, RECORD_FILE, LaunchRecord, load_record
from mesh.launch.run_ledger import Run
from mesh.launch.runs import nodes_of
from mesh.launch.ssh import Done, Hosts
from mesh.launch.toml_file import read_bounded

KEPT_RECIPE = "recipe.toml"
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """What a launch left in its run's folder. `record` is None, and `faults` says why, where it cannot be used."""

    record: LaunchRecord | None
    recipe: RecipeFile | None
    configs: tuple[str, ...]  # SHA-256 of each configuration file, in hex
    faults: tuple[str, ...]


@dataclass(slots=True)
class Running:
    """Of one rank: what it was seen to be. `drift` are differences from the record, `unknown` what nobody could see."""

    node: str
    rank: int
    image: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    program: str | None = None
    machine: Mapping[str, str] = field(default_factory=dict)
    drift: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def kept_of(folder: Path, recipe: str, run: Run) -> Kept:
    """`folder` is the run's own. Raises nothing: what is not as it should be is a fault to be told."""
    faults: list[str] = []
    record = file = None
    wanted = run.opened.get("record")
    try:
        record = load_record(folder / RECORD_FILE)
    except OSError as e:
        faults.append(f"launch record: {(e.strerror or str(e)).lower()}")
    except (EnvelopeError, UntrustedSteward) as e:
        faults.append(f"launch record: {e}")
    if record is not None and record.digest.text != wanted:
        faults.append(f"launch record: is {record.digest.text[:19]}, the ledger names {str(wanted)[:19]}")
        record = None
    try:
        # under its own name, which the folder of the run does not have
        file = RecipeFile.of(read_bounded(folder / KEPT_RECIPE), Path(recipe) / KEPT_RECIPE)
    except OSError as e:
        faults.append(f"recipe as launched: {(e.strerror or str(e)).lower()}")
    except UsageError as e:
        faults.append(f"recipe as launched: {e}")
    if file is not None and file.digest != run.opened.get("recipe_sha256"):
        faults.append("recipe as launched: its bytes are not those that the ledger names")
        file = None
    configs = []
    for path in _configs(folder):
        try:
            configs.append(sha256(read_bounded(path)).hexdigest())
        except (OSError, UsageError) as e:
            faults.append(f"{path.name} as launched: {(getattr(e, 'strerror', None) or str(e)).lower()}")
    return Kept(record, file, tuple(configs), tuple(faults))


def _configs(folder: Path) -> list[Path]:
    """In the order in which they were read."""
    found = [path for path in folder.glob("config-*.toml") if path.stem.removeprefix("config-").isdigit()]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("config-")))


def file_drift(kept: Kept, now: RecipeFile | str, config: Loaded) -> list[str]:
    """What of recipe and configuration is no longer as it was launched. `now` is the recipe's file, or why it cannot be
    read."""
    found = list(kept.faults)
    if isinstance(now, str):
        found.append(f"the recipe cannot be read: {now}")
    elif kept.recipe is not None and now.digest != kept.recipe.digest:
        changed = _changed(kept.recipe.data, now.data)
        what = (
            f"changed since the launch: {', '.join(changed)}" if changed else "changed since the launch, no key of it"
        )
        found.append(f"recipe.toml: {what} ({kept.recipe.digest[:12]} was launched, it is {now.digest[:12]})")
    digests = list(config.digests.values())
    if kept.configs and list(kept.configs) != digests:
        found.append("launch.toml: changed since the launch, or another one is read now")
    return found


def _changed(before: bytes, after: bytes) -> list[str]:
    try:
        old, new = (tomllib.loads(data.decode()) for data in (before, after))
    except (ValueError, UnicodeDecodeError):
        return ["it cannot be read"]
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))[:_MAX_NAMED]


def machine_step(node: str) -> Step:
    """Prints what the node is: its kernel, processor, memory and GPUs, a line each."""
    return Step(
        node,
        "machine",
        'echo "system $(uname -s) $(uname -r)"; echo "architecture $(uname -m)"; '
        "echo \"processor $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)\"; "
        'echo "cores $(nproc)"; '
        "awk '/^MemTotal/ {print \"memory_kib\", $2}' /proc/meminfo; "
        "command -v nvidia-smi >/dev/null && "
        "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | sed 's/^/gpu /'; true",
    )


def process_step(node: str, run: str) -> Step:
    """Prints the engine's command line and environment, each as base64 of its parts with zeros between."""
    panes = f"tmux -L {shlex.quote(socket_name(run))} list-panes -t {SESSION} -F '#{{pane_pid}}'"
    return Step(
        node,
        "engine's process",
        f"p=$({panes} 2>/dev/null | head -n 1); "
        '[ -n "$p" ] && [ -r "/proc/$p/cmdline" ] || { echo no process of its session >&2; exit 1; }; '
        'base64 <"/proc/$p/cmdline" | tr -d "\\n"; echo; base64 <"/proc/$p/environ" | tr -d "\\n"; echo',
    )


def container_step(node: str, run: str, rank: int) -> Step:
    """Prints the rank's image, labels, command line and environment, a line of JSON each."""
    ids = f"docker ps -q --filter label={LABEL}={shlex.quote(run)} --filter label=mesh.rank={rank}"
    form = "{{json .Image}}\n{{json .Config.Labels}}\n{{json .Path}}\n{{json .Args}}\n{{json .Config.Env}}"
    return Step(
        node,
        "engine's container",
        f'c=$({ids} | head -n 1); [ -n "$c" ] || {{ echo no container of it runs >&2; exit 1; }}; '
        f'docker inspect --format {shlex.quote(form)} "$c"',
    )


def observe_steps(run: Run, kept: Kept) -> list[Step]:
    steps = []
    for rank, node in enumerate(nodes_of(run)):
        steps += [machine_step(node.name), *_rank_steps(node, rank, run, kept)]
    return steps


def _rank_steps(node: Node, rank: int, run: Run, kept: Kept) -> list[Step]:
    if run.opened["deploy"] == "docker":
        return [container_step(node.name, run.id, rank)]
    argv = _argv(kept.record, rank)
    recipe = None if kept.recipe is None else kept.recipe.recipe
    program = [program_step(node, recipe, argv)] if recipe is not None and argv else []
    return [process_step(node.name, run.id), *program]


async def observe(hosts: Hosts, run: Run, kept: Kept) -> list[Running]:
    """Look at every rank. A node that cannot be asked has that as its one unknown."""

    async def one(rank: int, node: Node) -> Running:
        seen = Running(node.name, rank)
        if node.name in hosts.down:
            seen.unknown.append(str(hosts.down[node.name]))
            return seen
        for step in (machine_step(node.name), *_rank_steps(node, rank, run, kept)):
            try:
                done = await hosts.up[node.name].run(step.command)
            except NodeUnreachable as e:
                seen.unknown.append(str(e))
                return seen
            if done.status != 0:
                seen.unknown.append(f"{step.what}: {done.last}")
            else:
                _take(seen, step.what, done, kept)
        return seen

    return list(await asyncio.gather(*(one(rank, node) for rank, node in enumerate(nodes_of(run)))))


def _take(seen: Running, what: str, done: Done, kept: Kept) -> None:
    lines = done.out.splitlines()
    if what == "machine":
        seen.machine = _machine(lines)
    elif what == "program":
        seen.program = lines[0] if lines else None
        found = _rank(kept.record, seen.rank).get("found", {}).get("program")
        if found is not None and done.out.strip() != found:
            seen.drift.append("program: the executable, or what is installed beside it, is another than was launched")
    elif what == "engine's process":
        words, environment = (_parts(line) for line in lines[:2]) if len(lines) >= 2 else ([], [])
        _compare(seen, kept.record, words, environment)
    else:
        try:
            image, labels, path, args, environment = (json.loads(line) for line in lines[:5])
        except ValueError:
            seen.unknown.append("engine's container: docker's answer is not understood")
            return
        seen.image, seen.labels = str(image), labels if isinstance(labels, dict) else {}
        found = _rank(kept.record, seen.rank).get("found", {}).get("image", "")
        if found and str(image) not in found:
            seen.drift.append(f"image: {str(image)[:19]} runs, what was launched is {found[:19]}")
        if _rank(kept.record, seen.rank).get("argv") and path != "sh":  # a shell runs what [mods] adds first
            _compare(seen, kept.record, [path, *(args or [])], environment or [])


def _machine(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        if value.strip():
            found[key] = f"{found[key]}; {value.strip()}" if key in found else value.strip()
    return found


def _parts(line: str) -> list[str]:
    try:
        return [part.decode(errors="replace") for part in base64.b64decode(line).rstrip(b"\0").split(b"\0")]
    except ValueError:
        return []


def _rank(record: LaunchRecord | None, rank: int) -> Mapping[str, Any]:
    ranks = () if record is None else record.fields["ranks"]
    return next((one for one in ranks if isinstance(one, Mapping) and one.get("rank") == rank), {})


def _argv(record: LaunchRecord | None, rank: int) -> list[str]:
    return list(_rank(record, rank).get("argv", ()))


def _compare(seen: Running, record: LaunchRecord | None, words: Sequence[str], environment: Sequence[str]) -> None:
    recorded = _rank(record, seen.rank)
    if not recorded:
        seen.unknown.append("nothing is recorded of this rank")
        return
    argv = list(recorded.get("argv", ()))
    # a script runs under its interpreter, whose words come first; a program that renames itself has one word
    tail = list(words)[-len(argv) :]
    if len(words) < len(argv) and len([word for word in words if word]) == 1:
        seen.unknown.append(f"command line: the engine calls itself {words[0][:80]!r}")
    elif len(tail) != len(argv) or not all(_same(asked, got) for asked, got in zip(argv[1:], tail[1:], strict=True)):
        differ = next((f"{got[:80]!r}, not {asked[:80]!r}" for asked, got in zip(argv[1:], tail[1:], strict=False)
                       if not _same(asked, got)), f"{len(words)} words, {len(argv)} were launched")  # fmt: skip
        seen.drift.append(f"command line: {differ}")
    now = dict(part.partition("=")[::2] for part in environment)
    if seen.image is None and RUN_MARKER not in now:
        seen.unknown.append("environment: the engine has written over it")
        return
    seen.drift += _environment_drift(recorded.get("environment", {}), now)


def _environment_drift(recorded: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name, value in recorded.items():
        if value == HIDDEN:
            continue  # nobody wrote down what it was
        if name not in now:
            yield f"environment: {name} is not set, {value[:80]!r} was launched"
        elif now[name] != value:
            yield f"environment: {name} is {now[name][:80]!r}, {value[:80]!r} was launched"


def _same(asked: str, got: str) -> bool:
    return got == asked or (asked.startswith("~/") and got.endswith(asked[1:]))


def all_drift(ranks: Sequence[Running]) -> list[str]:
    return [f"rank {one.rank} on {one.node}: {line}" for one in ranks for line in one.drift]


def all_unknown(ranks: Sequence[Running]) -> list[str]:
    return [f"rank {one.rank} on {one.node}: {line}" for one in ranks for line in one.unknown]
