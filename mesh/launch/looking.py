"""What is there on a node, of a run: processes by their marker, the session, the port, the model that answers.

Each look ends in alive, dead or unknown. A missing tool, or a node that cannot be asked, is unknown: never dead.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import dataclass
from typing import Any

from mesh.errors import NodeUnreachable
from mesh.launch.commands import LABEL, SESSION, Step, socket_name
from mesh.launch.process import Life
from mesh.launch.recipe import RUN_MARKER
from mesh.launch.ssh import Done, Host

HTTP_S = 30.0
MAX_ANSWER_BYTES = 1 << 20
_MISSING = (126, 127)

GPU_UNSEEN = "[ -e /proc/driver/nvidia/version ]"  # a driver, whose tool somebody left out

HEALTH_PATHS = {"vllm": "/health", "sglang": "/health", "llama.cpp": "/health", "mesh": "/readyz"}


def needing(*tools: str) -> str:
    """The head of a look that is made of these: without one of them nobody can say, which is status 127."""
    return f"for t in {' '.join(tools)}; do command -v $t >/dev/null || {{ echo $t: not there >&2; exit 127; }}; done; "


def with_marker(run: str, *tools: str) -> str:
    """The head of a loop over the `/proc` folders of the run's processes, one grep for all, in which `tools` are used
    too."""
    return (
        f"{needing('grep', *tools)}[ -r /proc/self/environ ] || {{ echo /proc: not to be read >&2; exit 127; }}; "
        f"for p in $(grep -lzxF {shlex.quote(f'{RUN_MARKER}={run}')} /proc/[0-9]*/environ 2>/dev/null); "
        "do p=${p%/environ};"
    )


def marked_step(node: str, run: str) -> Step:
    """Prints `pid start-time` of every process that has the run's marker in its environment, zombies left out."""
    command = (
        f"{with_marker(run, 'sed')} "
        's=$(sed "s/.*) //" "$p/stat" 2>/dev/null) || continue; set -- $s; [ "$1" = Z ] && continue; '
        'echo "${p#/proc/} ${20}"; done'
    )
    return Step(node, "processes of the run", command)


def port_step(node: str, port: int) -> Step:
    """Prints `taken` or `free`: whether anything listens on the port, by the kernel's own tables."""
    command = (
        f"{needing('cat', 'awk')}[ -r /proc/net/tcp ] || {{ echo /proc: not to be read >&2; exit 127; }}; "
        f'if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk \'$4 == "0A" && $2 ~ /:{port:04X}$/ {{f = 1}} '
        "END {exit !f}'; then echo taken; else echo free; fi"
    )
    return Step(node, "port", command)


def session_step(node: str, run: str) -> Step:
    """Prints pid, whether it is dead, its status and signal, of the engine's pane, then the kernel's state and wait
    status of a process that is still there; `none` where there is no session."""
    sock = shlex.quote(socket_name(run))
    form = "'#{pane_pid} #{pane_dead} #{pane_dead_status},#{pane_dead_signal}'"
    # tmux calls a pane dead when its terminal closes, which comes before the status, and does not wait for every
    # process: of a zombie the kernel knows how it ended, and of one that is gone tmux knows by now.
    panes = f"tmux -L {sock} list-panes -t {SESSION} -F {form} 2>/dev/null"
    kernel = "sed 's/.*) //' \"/proc/${o%% *}/stat\" 2>/dev/null | awk '{print $1, $50}'"
    command = (
        f"{needing('tmux')}o=$({panes}) || {{ echo none; exit; }}; "
        f'k=$({kernel}); [ -n "$k" ] || o=$({panes}) || {{ echo none; exit; }}; echo "$o $k"'
    )
    return Step(node, "session", command)


def pane_end(done: Done) -> str | None:
    """How the engine of a pane ended, of what `session_step` printed; None where it lives, or nobody can say."""
    words = done.out.split()
    if done.status != 0 or len(words) < 3 or words[1] != "1":
        return None
    status, _, signal = words[2].partition(",")
    if not status and not signal and len(words) == 5 and words[4].isdigit():
        if words[3] not in ("Z", "X"):
            return None
        code = int(words[4])
        status, signal = str(code >> 8), str(code & 127 or "")
    return f"signal {signal}" if signal else f"status {status or 'unknown'}"


def containers_step(node: str, run: str) -> Step:
    """Prints the id and state of each container of the run, running or not."""
    return Step(
        node,
        "containers",
        f"docker ps -a --filter label={LABEL}={shlex.quote(run)} --format '{{{{.ID}}}} {{{{.State}}}}'",
    )


def container_pids_step(node: str, run: str) -> Step:
    """Prints the process ids in the run's containers, which root's environment hides from whoever is not root."""
    ids = f"docker ps -q --filter label={LABEL}={shlex.quote(run)}"
    return Step(
        node,
        "processes in containers",
        f'{needing("docker", "grep")}for c in $({ids}); do docker top "$c" -eo pid 2>/dev/null | '
        "grep -E '^ *[0-9]+ *$'; done; true",
    )


def container_state_step(node: str, name: str) -> Step:
    """Prints a container's state, exit status and whether it was ended for memory."""
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
    return Step(node, "container", f"docker inspect --format {shlex.quote(form)} {shlex.quote(name)}")


def container_end(done: Done) -> str | None:
    """How a container ended, of what `container_state_step` printed; None where it lives, or nobody can say."""
    words = done.out.split()
    if done.status not in (0, None) and "no such" in done.err.lower():
        return "its container is gone"
    if done.status != 0 or len(words) < 2 or words[0] not in ("exited", "dead"):
        return None
    memory = ", for want of memory" if words[2:] == ["true"] else ""
    return f"its container ended (status {words[1]}{memory})"


def gpu_step(node: str) -> Step:
    """Prints the ids of processes that hold memory of a GPU; `none` where the node has neither tool nor driver."""
    return Step(
        node, "GPU processes",
        f"command -v nvidia-smi >/dev/null || {{ {GPU_UNSEEN} || {{ echo none; exit 0; }}; "
        "echo nvidia-smi: not there >&2; exit 127; }; nvidia-smi --query-compute-apps=pid --format=csv,noheader",
    )  # fmt: skip


def tail_step(node: str, log: str, lines: int = 20) -> Step:
    return Step(node, "log", f"tail -n {lines} {log}")


def could_look(done: Done) -> bool:
    """Whether a look's command ran at all: a shell says 126 or 127 of a tool that is not there."""
    return done.status is not None and done.status not in _MISSING


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


async def ask(host: Host, port: int, method: str, path: str, body: Any = None, *, timeout_s: float = HTTP_S) -> Answer:
    """One request to a port of the node, through the SSH connection: the answer is that node's, whoever else has its
    address. Raises ConnectionRefusedError, TimeoutError, NodeUnreachable, OSError for an answer that is no HTTP."""
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(timeout_s):
        reader, writer = await host.open(port)
        try:
            writer.write(head.encode() + payload)
            data = bytearray()
            while chunk := await reader.read(65_536):
                data += chunk
                if len(data) > MAX_ANSWER_BYTES:
                    raise OSError(f"port {port}: an answer over {MAX_ANSWER_BYTES} bytes")
        finally:
            writer.close()
    first, _, rest = bytes(data).partition(b"\r\n\r\n")
    words = first.split(b" ", 2)
    if not first.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise OSError(f"port {port}: what answers is no HTTP server")
    return Answer(int(words[1]), rest)


async def models_at(host: Host, port: int) -> list[str] | None:
    """The names of the models that answer there; None where nothing usable does."""
    try:
        answer = await ask(host, port, "GET", "/v1/models")
    except (OSError, TimeoutError):
        return None
    listed = answer.json()
    if answer.status != 200 or not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
        return None
    return [str(one["id"]) for one in listed["data"] if isinstance(one, dict) and "id" in one]


async def ready(host: Host, port: int, engine: str, expected: str) -> tuple[bool, str]:
    """Healthy, serving the expected model, and one real completion done; else what is not so yet."""
    try:
        health = await ask(host, port, "GET", HEALTH_PATHS[engine])
        if health.status != 200:
            return False, f"{HEALTH_PATHS[engine]} answers {health.status}"
        models = await models_at(host, port)
        if models is None:
            return False, "/v1/models does not answer"
        if expected not in models:
            return False, f"serves {', '.join(models) or 'nothing'}, not {expected}"
        done = await ask(host, port, "POST", "/v1/completions", _probe(expected, prompt="1"), timeout_s=600)
        if done.status in (400, 404, 405):
            messages = [{"role": "user", "content": "1"}]
            done = await ask(
                host, port, "POST", "/v1/chat/completions", _probe(expected, messages=messages), timeout_s=600
            )
    except ConnectionRefusedError:
        return False, "nobody listens"
    except TimeoutError:
        return False, "listens, and does not answer"
    except NodeUnreachable:
        raise
    except OSError as e:
        return False, str(e)
    answer = done.json()
    if done.status != 200 or not isinstance(answer, dict) or not answer.get("choices"):
        return False, f"a completion ends in status {done.status}"
    return True, "a completion was answered"


def _probe(model: str, **what: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 1, "temperature": 0, **what}


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found of a run on one node. `process`, `port` and `model` are three looks, told side by side."""

    node: str
    process: Life
    port: Life
    model: str | None
    detail: str

    def to_map(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "process": self.process,
            "port": self.port,
            "model": self.model,
            "detail": self.detail,
        }


async def look(host: Host, run: str, port: int, *, head: bool, deploy: str = "tmux") -> Seen:
    """All looks at one node. In docker, containers that run are its processes: their environment may not be readable
    from outside. Raises NodeUnreachable."""
    marked = await host.run(marked_step(host.node.name, run).command)
    taken = await host.run(port_step(host.node.name, port).command)
    process: Life = "unknown" if not could_look(marked) else "alive" if marked.out.strip() else "dead"
    if deploy == "docker":
        there = await host.run(containers_step(host.node.name, run).command)
        running = [line for line in there.out.splitlines() if line.split()[1:] in (["running"], ["paused"])]
        process = "unknown" if there.status != 0 else "alive" if running else "dead"
        marked = there if process == "unknown" else Done(0, "".join(f"{line}\n" for line in running), "")
    listens: Life = "unknown" if not could_look(taken) else "alive" if taken.out.strip() == "taken" else "dead"
    models = await models_at(host, port) if head and listens == "alive" else None
    count = len(marked.out.split("\n")) - 1
    what = "containers" if deploy == "docker" else "processes"
    detail = f"{count} {what} of the run, port {port} {'taken' if listens == 'alive' else 'free'}"
    if process == "unknown" or listens == "unknown":
        detail = f"could not check: {marked.last if process == 'unknown' else taken.last}"
    return Seen(host.node.name, process, listens, None if models is None else ", ".join(models), detail)
