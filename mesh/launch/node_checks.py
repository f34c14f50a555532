"""What a node needs before anything is launched on it: each check a command, and what its answer means."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mesh.launch.commands import Step, at_home, gid_step, image_step
from mesh.launch.config import LaunchConfig, Nccl, Node
from mesh.launch.looking import port_step
from mesh.launch.recipe import Recipe
from mesh.launch.ssh import Done

Level = Literal["ok", "warn", "fail"]
LOW_DISK_GIB, NO_DISK_GIB = 20, 1
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 60.0
# what the launcher's own commands are made of
_LOOKS = ("grep", "awk", "sed", "cat", "sha256sum", "base64", "df", "tail")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the doctor's. `todo` says what helps, where the level is not ok."""

    node: str
    check: str
    level: Level
    found: str
    todo: str | None = None

    def to_map(self) -> dict[str, Any]:
        told = {"node": self.node, "check": self.check, "level": self.level, "found": self.found}
        return told if self.todo is None else {**told, "todo": self.todo}


Judged = tuple[Level, str, str | None]


@dataclass(frozen=True, slots=True)
class Check:
    """`judge` gets the command's end, and when it was sent and had ended, Unix seconds of this machine."""

    step: Step
    judge: Callable[[Done, float, float], Judged]


def checks_of(
    config: LaunchConfig, node: Node, nccl: Nccl | None, recipe: Recipe | None = None, *, head: bool
) -> list[Check]:
    """Of one node; with a recipe, what that needs is held to be needed. `head` is where clients' port is."""
    deploy = None if recipe is None else recipe.deploy
    name = node.name
    found = [
        _tools(name),
        _tool(name, "tmux", "tmux -V", needed=deploy == "tmux", todo="apt-get install tmux"),
        _tool(
            name, "docker", "docker version --format '{{.Server.Version}}'", needed=deploy == "docker",
            todo="install docker, start it, and put the user in its group",
        ),
        _tool(
            name, "nvidia-smi", "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader",
            needed=False, todo="without it nobody sees who holds a GPU's memory; a node without one needs none",
        ),
        _tool(
            name, "python", "python3 --version",
            needed=deploy == "tmux" and recipe is not None and bool(recipe.venv_setup or recipe.venv_setup_script),
            todo="apt-get install python3 python3-venv",
        ),
        _disk(name, "home", "~/.mesh"),
        _disk(name, "model cache", config.hf_cache_dir),
        _clock(name),
    ]  # fmt: skip
    if head:
        port = (recipe.port if recipe is not None else None) or config.default_port
        found.append(_port(name, port, taken="warn" if recipe is None else "fail"))
    if node.ib_ip is not None:
        found.append(_address(name, node.ib_ip))
    if nccl is not None:
        found += _fabric(node, nccl)
    if recipe is not None and recipe.deploy == "docker" and recipe.image is not None:
        found.append(_image(node, recipe.image))
    if recipe is not None and recipe.venv is not None:
        found.append(_venv(name, recipe))
    return found


def _said(done: Done) -> str:
    return " ".join((done.out.strip().splitlines() or [""])[0].split())[:200]


def _tools(node: str) -> Check:
    tools = f"for t in {' '.join(_LOOKS)}; do command -v $t >/dev/null || echo $t; done"
    command = f"{tools}; [ -r /proc/self/environ ] || echo /proc"

    def judge(done: Done, sent: float, ended: float) -> Judged:
        missing = ", ".join(done.out.split())
        if done.status == 0 and not missing:
            return "ok", "all that looks at a run are made of", None
        return "fail", f"missing: {missing or done.last}", "without them a run cannot be looked at or seen to be gone"

    return Check(Step(node, "tools", command), judge)


def _tool(node: str, name: str, command: str, *, needed: bool, todo: str) -> Check:
    def judge(done: Done, sent: float, ended: float) -> Judged:
        if done.status == 0:
            lines = len(done.out.strip().splitlines())
            return "ok", _said(done) + (f", and {lines - 1} more" if lines > 1 else ""), None
        found = "not there" if done.status == 127 else f"{name} fails: {done.last}"
        return "fail" if needed else "warn", found, todo

    return Check(Step(node, name, command), judge)


def _disk(node: str, what: str, folder: str) -> Check:
    command = (
        f'd={at_home(folder)}; while [ ! -d "$d" ]; do d=$(dirname "$d"); done; '
        'df -Pk "$d" | awk \'NR==2 {print $4, $5}\'; [ -w "$d" ] || echo no-write'
    )

    def judge(done: Done, sent: float, ended: float) -> Judged:
        words = done.out.split()
        if done.status != 0 or not words or not words[0].isdigit():
            return "warn", f"could not be measured: {done.last}", f"look at `df {folder}` there"
        gib = int(words[0]) / 1024**2
        found = f"{folder}: {gib:.1f} GiB free" + (f", {words[1]} used" if len(words) > 1 else "")
        if "no-write" in words:
            return "fail", f"{found}, and not writable", f"make {folder} writable to the SSH user"
        if gib < NO_DISK_GIB:
            return "fail", found, "make room: logs and models go there"
        return ("warn", found, "a model may need more than that") if gib < LOW_DISK_GIB else ("ok", found, None)

    return Check(Step(node, f"disk: {what}", command), judge)


def _clock(node: str) -> Check:
    def judge(done: Done, sent: float, ended: float) -> Judged:
        try:
            there = float(done.out.strip())
        except ValueError:
            return "warn", f"could not be read: {done.last}", None
        off = max(abs(there - (sent + ended) / 2) - (ended - sent) / 2, 0.0)  # less what the way itself may explain
        found = f"{off:.3f} s off" if off else "as here, as far as the way shows"
        if off > SKEW_WARN_S:
            level: Level = "fail" if off > SKEW_FAIL_S else "warn"
            return level, found, "let NTP keep it: grants, receipts and logs are compared by time"
        return "ok", found, None

    return Check(Step(node, "clock", "date +%s.%N"), judge)


def _port(node: str, port: int, *, taken: Level) -> Check:
    def judge(done: Done, sent: float, ended: float) -> Judged:
        word = done.out.strip()
        if done.status != 0 or word not in ("taken", "free"):
            return "warn", f"port {port} could not be looked at: {done.last}", None
        if word == "taken":
            return taken, f"port {port} is taken", "`mesh launch health` says whether a run of ours has it"
        return "ok", f"port {port} is free", None

    return Check(port_step(node, port), judge)


def _address(node: str, address: str) -> Check:
    command = f"grep -qF {shlex.quote(f'|-- {address}')} /proc/net/fib_trie && echo {shlex.quote(address)}"

    def judge(done: Done, sent: float, ended: float) -> Judged:
        if done.status == 0:
            return "ok", f"{address} is the node's", None
        return "fail", f"{address} is no address of the node", "correct ib_ip, or bring its network up"

    return Check(Step(node, "fabric address", command), judge)


def _fabric(node: Node, nccl: Nccl) -> list[Check]:
    found = []
    if nccl.socket_ifname is not None:
        names = [name.lstrip("^=") for name in nccl.socket_ifname.split(",")]
        looks = "; ".join(f"[ -e /sys/class/net/{shlex.quote(name)} ] || echo {shlex.quote(name)}" for name in names)
        found.append(Check(Step(node.name, "socket_ifname", looks), _none_missing("network interface")))
    if not nccl.ib_disable:
        if nccl.ib_hca is not None:
            names = [name.partition(":")[0].lstrip("^=") for name in nccl.ib_hca.split(",")]
            looks = "; ".join(
                f"[ -e /sys/class/infiniband/{shlex.quote(name)} ] || echo {shlex.quote(name)}" for name in names
            )
            found.append(Check(Step(node.name, "ib_hca", looks), _none_missing("RDMA device")))
        if nccl.ib_gid_index is None:
            found.append(Check(gid_step(node, nccl.ib_hca), _gid))
    return found


def _none_missing(what: str) -> Callable[[Done, float, float], Judged]:
    def judge(done: Done, sent: float, ended: float) -> Judged:
        missing = ", ".join(done.out.split())
        if not missing:
            return "ok", f"each {what} is there", None
        return "fail", f"no {what} {missing}", "correct the [nccl] table, or bring it up"

    return judge


def _gid(done: Done, sent: float, ended: float) -> Judged:
    if done.status == 0:
        return "ok", f"GID index {_said(done)}", None
    return "fail", done.last, "the fabric has no IPv4 address yet; or pin ib_gid_index"


def _image(node: Node, image: str) -> Check:
    def judge(done: Done, sent: float, ended: float) -> Judged:
        if done.status == 0:
            return "ok", _said(done), None
        return "warn", f"{image} is not there", "a launch pulls it first, which takes its time"

    return Check(image_step(node, image), judge)


def _venv(node: str, recipe: Recipe) -> Check:
    activate = (recipe.venv or "").rstrip("/") + "/bin/activate"
    made: Sequence[str] = [recipe.venv_setup_script] if recipe.venv_setup_script else recipe.venv_setup

    def judge(done: Done, sent: float, ended: float) -> Judged:
        if done.status == 0:
            return "ok", f"{recipe.venv} is there", None
        if made:
            return "warn", f"{recipe.venv} is not there", "a launch makes it first, which takes its time"
        return "fail", f"{recipe.venv} is not there", "make it, or say in venv_setup how"

    return Check(Step(node, "virtual environment", f"test -f {at_home(activate)}"), judge)
