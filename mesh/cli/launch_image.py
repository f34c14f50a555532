"""`mesh launch image`: images built on a node from pins, copied from node to node, pushed under their content's tag."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED
from mesh.cli.launch_flags import add_common_flags, ledgers, loaded, login_of, recipe_at
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.commands import Step
    from mesh.launch.config import Loaded, Node
    from mesh.launch.images import Context
    from mesh.launch.imaging import Outcome
    from mesh.launch.recipe import RecipeFile
    from mesh.launch.ssh import Host


def add(actions: Any) -> None:
    parser = actions.add_parser("image", help="build, copy and push the images that recipes run")
    images = parser.add_subparsers(dest="image_action", metavar="ACTION", required=True)
    show = images.add_parser("show", help="the checksum and the pins of a recipe's image, and where each is from")
    build = images.add_parser("build", help="build it on a node, unless it has that content already")
    copy = images.add_parser("copy", help="send it from one node to others, unless they have it")
    push = images.add_parser("push", help="push it under the tag of its content, unless it was")
    for one, run in ((show, run_show), (build, run_build), (copy, run_copy), (push, run_push)):
        one.add_argument("recipe", metavar="RECIPE", help="a recipe's name or file")
        one.set_defaults(run=run)
        add_common_flags(one)
    for one in (build, copy, push):
        one.add_argument("--dry-run", action="store_true", help="print every command, and run none")
        one.add_argument("--node", metavar="NAME", help="where it is, or is built (the only node that there is)")
        one.add_argument("--within-min", type=int, default=90, metavar="MINUTES", help="how long it may take (90)")
    for one in (build, push):
        one.add_argument("--force", action="store_true", help="again, although it is there")
    copy.add_argument("--to", action="append", metavar="NAME", help="to this node (all others of its cluster)")


# What launchers do that make images while they launch. Here a launch makes none: each is a step of its own before it.
_STEPS = {
    "--build-node": ("NODE", "build {recipe} --node {given}"),
    "--force-build": (None, "build {recipe} --force"),
    "--sync-image": (None, "copy {recipe}"),
    "--sync-image-source": ("NODE", "copy {recipe} --node {given}"),
}


def add_step_flags(serve: argparse.ArgumentParser) -> None:
    """So that whoever knows them from elsewhere is told what to do."""
    for flag, (value, command) in _STEPS.items():
        how: dict[str, Any] = {"action": "store_true"} if value is None else {"metavar": value}
        serve.add_argument(flag, help=f"refused: image {command.split()[0]} does it, before", **how)
    serve.add_argument("--no-push", action="store_true", help="refused: a launch pushes nothing")


def check_step_flags(args: argparse.Namespace) -> None:
    """Raises UsageError with the command that does it."""
    for flag, (_, command) in _STEPS.items():
        given = getattr(args, flag[2:].replace("-", "_"))
        if given:
            words = command.format(recipe=args.recipe, given=given)
            raise UsageError(
                f"{flag}: a launch makes no image; first `mesh launch image {words}`, then serve without it"
            )
    if args.no_push:
        raise UsageError("--no-push: a launch pushes nothing, so leave it out; `mesh launch image push` does")


def run_show(args: argparse.Namespace) -> int:
    from mesh.launch.images import context_of

    context = context_of(recipe_at(args.recipe, loaded(args)))
    if args.json:
        emit({"image": context.ref, "checksum": context.checksum, "pins": context.pins, "origins": context.origins})
        return ACCEPTED
    say(f"image {context.ref}")
    say(f"checksum {context.checksum}")
    for key, value in context.pins.items():
        say(f"{key} = {value!r}  # {context.origins[key]}")
    return ACCEPTED


def run_build(args: argparse.Namespace) -> int:
    from mesh.launch.images import context_of
    from mesh.launch.imaging import build, build_steps

    config = loaded(args)
    context = context_of(recipe_at(args.recipe, config))
    node = _node(config, args.node)
    if args.dry_run:
        return _dry(args, build_steps(node.name, context), context)

    async def work() -> Outcome:
        async with _Nodes(config, [node]) as (host,):
            return await build(
                host, context, job=_job("build"), note=note, force=args.force, within_s=args.within_min * 60.0
            )

    outcome = asyncio.run(work())
    if args.json:
        emit({"image": context.ref, **outcome.to_map()})
    else:
        say(f"{outcome.node}: {outcome.why}: {outcome.image.id}")
    return ACCEPTED


def run_copy(args: argparse.Namespace) -> int:
    from mesh.launch.imaging import copy, copy_steps

    config = loaded(args)
    ref = _ref(recipe_at(args.recipe, config))
    node = _node(config, args.node)
    if args.to is None:
        cluster = next(one for one in config.config.clusters if node in one.nodes)
        peers = [one for one in cluster.by_rank if one.name != node.name]
    else:
        peers = [_node(config, name) for name in args.to]
    if not peers or node in peers:
        raise UsageError(f"image copy: from {node.name} to {', '.join(p.name for p in peers) or 'nobody'}")
    login = login_of(config)
    if args.dry_run:
        return _dry(args, [step for peer in peers for step in copy_steps(node.name, peer, ref, login)], None)

    async def work() -> list[Outcome]:
        async with _Nodes(config, [node, *peers]) as (source, *others):
            job = _job("copy")
            made = []
            for peer in others:  # one after the other: the sender's line is the narrow place
                made.append(await copy(source, peer, ref, login, job=job, note=note, within_s=args.within_min * 60.0))
            return made

    outcomes = asyncio.run(work())
    if args.json:
        emit({"image": ref, "nodes": [one.to_map() for one in outcomes]})
    else:
        for one in outcomes:
            say(f"{one.node}: {one.why}: {one.image.id}")
    return ACCEPTED


def run_push(args: argparse.Namespace) -> int:
    from mesh.launch.images import pushed_ref
    from mesh.launch.imaging import PUBLISHED_FILE, Published, push, push_steps

    config = loaded(args)
    file = recipe_at(args.recipe, config)
    if config.config.registry is None:
        raise UsageError("image push: no [registry] in the configuration, whose base says where to")
    base, ref, node = config.config.registry.base, _ref(file), _node(config, args.node)
    if args.dry_run:
        context = _context(file)
        target = pushed_ref(base, ref, "CHECKSUM" if context is None else context.version)
        return _dry(args, push_steps(node.name, ref, target), context)
    ledger = Published(ledgers(config) / PUBLISHED_FILE)

    async def work() -> tuple[Outcome, str, str | None]:
        async with _Nodes(config, [node]) as (host,):
            return await push(
                host, ref, base, ledger, job=_job("push"), note=note, now_ns=time.time_ns(), force=args.force,
                within_s=args.within_min * 60.0,
            )  # fmt: skip

    outcome, target, digest = asyncio.run(work())
    if args.json:
        emit({"image": ref, "published": target, "digest": digest, **outcome.to_map()})
    else:
        say(f"{outcome.node}: {outcome.why}: {target}" + ("" if digest is None else f"@{digest}"))
    return ACCEPTED


class _Nodes:
    """Connections to nodes, in their order. Raises what kept one from being made."""

    def __init__(self, config: Loaded, nodes: Sequence[Node]) -> None:
        from mesh.launch.ssh import Hosts

        self._nodes, self._hosts = nodes, Hosts(login_of(config), nodes)

    async def __aenter__(self) -> list[Host]:
        hosts = await self._hosts.__aenter__()
        for error in hosts.down.values():
            await hosts.__aexit__(None, None, None)
            raise error
        return [hosts.up[node.name] for node in self._nodes]

    async def __aexit__(self, *error: Any) -> None:
        await self._hosts.__aexit__(*error)


def _node(config: Loaded, name: str | None) -> Node:
    nodes = [node for cluster in config.config.clusters for node in cluster.nodes]
    known = ", ".join(dict.fromkeys(node.name for node in nodes)) or "none"
    if name is None and len({node.name for node in nodes}) == 1:
        return nodes[0]
    if name is None:
        raise UsageError(f"--node: say which of {known}")
    found = [node for node in nodes if node.name == name]
    if not found:
        raise UsageError(f"node {name[:80]!r}: unknown; there are {known}")
    return found[0]


def _context(file: RecipeFile) -> Context | None:
    from mesh.launch.images import context_of, is_built

    return context_of(file) if is_built(file) else None


def _ref(file: RecipeFile) -> str:
    """The image's name as a node's docker has it."""
    context = _context(file)
    if context is not None:
        return context.ref
    image = file.recipe.docker_image
    if image is None:
        raise UsageError(f"recipe {file.name}: docker_image: missing")
    name = image.partition("@")[0]
    if name.rpartition("/")[2].partition(":")[2] == "":
        raise UsageError(f"recipe {file.name}: {image}: named by its digest alone, by which each node pulls it itself")
    return name


def _job(what: str) -> str:
    return f"{what}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"


def _dry(args: argparse.Namespace, steps: Sequence[Step], context: Context | None) -> int:
    if args.json:
        told = {} if context is None else {"checksum": context.checksum, "image": context.ref}
        emit({**told, "steps": [step.to_map() for step in steps]})
        return ACCEPTED
    if context is not None:
        say(f"# {context.ref}, checksum {context.checksum}; nothing is run")
    for step in steps:
        say(f"# {step.node}: {step.what}")
        say(step.command)
    return ACCEPTED
