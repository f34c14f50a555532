"""The doctor: what stands in the way of a launch, found before one is tried. Nothing is changed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mesh.errors import HostKeyError, LaunchError, NodeUnreachable
from mesh.launch.config import Node
from mesh.launch.node_checks import Check, Line
from mesh.launch.ssh import Hosts, Login

HERE = "(here)"
_CHECK_S = 30.0


def local_lines(login: Login, known_hosts: Path, state: Path) -> list[Line]:
    """What this machine needs. Without a failure among them nodes can be asked."""
    found = [
        _here(
            "asyncssh", importlib.util.find_spec("asyncssh") is not None, "installed", "not installed",
            "pip install 'servemesh[launch]'",
        ),
        _here("ssh_user", bool(login.user), login.user, "empty", "say in launch.toml who logs in"),
        _key(login.key),
    ]  # fmt: skip
    pinned = sum(1 for line in login.known_hosts.splitlines() if line.strip() and not line.startswith("#"))
    found.append(
        _here("known_hosts", pinned > 0, f"{known_hosts}: {pinned} pinned", f"{known_hosts}: pins none",
              "`mesh launch keys --pin` collects them; compare them with what their owner says")
    )  # fmt: skip
    near = state
    while not near.is_dir() and near != near.parent:
        near = near.parent
    writable = os.access(near, os.W_OK)
    found.append(_here("state_dir", writable, str(state), f"{state}: not writable", "the run ledger is kept there"))
    return found


def _here(check: str, good: bool, found: str, fault: str, todo: str) -> Line:
    return Line(HERE, check, "ok", found) if good else Line(HERE, check, "fail", fault, todo)


def _key(path: Path) -> Line:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.open("rb").close()
    except OSError as e:
        return Line(HERE, "ssh_key_path", "fail", f"{path}: {(e.strerror or str(e)).lower()}", "name the private key")
    if mode & 0o077:
        return Line(HERE, "ssh_key_path", "warn", f"{path}: mode {mode:o}", f"chmod 600 {path}: others can read it")
    return Line(HERE, "ssh_key_path", "ok", str(path))


async def examine(
    login: Login, nodes: Sequence[Node], checks: Mapping[str, Sequence[Check]], now: Callable[[], float]
) -> list[Line]:
    """All checks of all nodes, in their order. A node that cannot be asked has one line, which says why."""

    async with Hosts(login, nodes) as hosts:

        async def one(name: str, check: Check) -> Line:
            sent = now()
            try:
                done = await hosts.up[name].run(check.step.command, timeout_s=_CHECK_S)
            except NodeUnreachable as e:
                return Line(name, check.step.what, "fail", str(e), "look at the node itself")
            return Line(name, check.step.what, *check.judge(done, sent, now()))

        async def on(node: Node) -> list[Line]:
            if node.name in hosts.down:
                return [_down(node.name, hosts.down[node.name])]
            key = Line(node.name, "host key", "ok", "the pinned one")
            lines = await asyncio.gather(*(one(node.name, check) for check in checks[node.name]))
            return [Line(node.name, "ssh", "ok", f"{login.user} is let in at {node.ssh_ip}"), key, *lines]

        return [line for lines in await asyncio.gather(*(on(node) for node in nodes)) for line in lines]


def _down(node: str, error: LaunchError) -> Line:
    match error:
        case HostKeyError():
            return Line(node, "host key", "fail", str(error), "compare the key with what the node's owner says of it")
        case NodeUnreachable():
            return Line(node, "ssh", "fail", str(error), "is it on, is its address right, does sshd listen there?")
        case _:
            return Line(node, "login", "fail", str(error), "put the public key into its authorized_keys")
