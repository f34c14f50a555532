"""Work on a node that outlives the connection: started apart, its log and its end in files, asked for until it ends.

An image is built or pushed for an hour; one cut line must not cost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mesh.errors import LaunchError
from mesh.launch.commands import Step, at_home
from mesh.launch.ssh import Host

JOB_S = 90 * 60.0
POLL_FIRST_S, POLL_MOST_S = 0.2, 30.0
_FOLDER = "~/.mesh/jobs"


def job_folder(name: str) -> str:
    return f"{_FOLDER}/{name}"


def start_step(node: str, what: str, name: str, command: str) -> Step:
    """Run the command in a session of its own: output in `log`, its status in `status` once it has ended."""
    folder = at_home(job_folder(name))
    return Step(
        node,
        what,
        f'd={folder}; mkdir -p "$d" && cd "$d" && rm -f pid status && command -v setsid >/dev/null || '
        "{ echo no folder for it, or no setsid >&2; exit 1; }; "
        f"cat >run <<'MESH-JOB' || exit 1\n{command}\nMESH-JOB\n"
        "setsid sh -c 'echo $$ >pid.part; mv pid.part pid; sh run >log 2>&1; echo $? >status.part; "
        "mv status.part status' </dev/null >/dev/null 2>&1 &",
    )


def poll_step(node: str, name: str) -> Step:
    """Prints its status, `running`, or `lost` where it is gone without one."""
    return Step(
        node,
        "job",
        f"cd {at_home(job_folder(name))} || exit; cat status 2>/dev/null && exit; "
        'p=$(cat pid 2>/dev/null); [ -n "$p" ] || { echo running; exit; }; '
        # one that has ended is gone, or a zombie where nobody waits for it
        """case $(sed 's/.*) //' "/proc/$p/stat" 2>/dev/null) in [!Z]*) echo running;; """
        "*) cat status 2>/dev/null || echo lost;; esac",
    )


def end_step(node: str, name: str) -> Step:
    folder = at_home(job_folder(name))
    return Step(node, "end of the job", f'cd {folder} && p=$(cat pid) && kill -TERM "-$p" 2>/dev/null; true')


def log_step(node: str, name: str, lines: int = 20) -> Step:
    return Step(node, "log of the job", f"tail -n {lines} {at_home(job_folder(name) + '/log')}")


def clean_step(node: str, name: str) -> Step:
    return Step(node, "job's folder", f"rm -rf {at_home(job_folder(name))}")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: `fault` in words, None where it went well; `log` are its last lines."""

    fault: str | None
    log: str


async def run_job(
    host: Host, what: str, name: str, command: str, *, note: Callable[[str], None], within_s: float = JOB_S
) -> Ended:
    """Run it to its end, or until the time is over. Raises LaunchError where it could not be started, NodeUnreachable
    where the connection went: the job then goes on by itself."""
    node = host.node.name
    started = await host.run(start_step(node, what, name, command).command)
    if started.status != 0:
        raise LaunchError(f"node {node}: {what}: could not be started: {started.last}")
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + within_s, POLL_FIRST_S
    while True:
        state = (await host.run(poll_step(node, name).command)).out.strip()
        if state != "running":
            break
        if loop.time() >= until:
            await host.run(end_step(node, name).command)
            return Ended(f"not done within {within_s:g} s, and ended", "")
        await asyncio.sleep(pause)
        if pause >= POLL_MOST_S:
            note(f"{node}: {what}: still at work")
        pause = min(pause * 1.5, POLL_MOST_S)
    log = (await host.run(log_step(node, name).command)).out
    if state == "0":
        await host.run(clean_step(node, name).command)
        return Ended(None, log)
    how = "lost, as when a node restarts" if state == "lost" else f"ended in status {state or 'unknown'}"
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "no word of it")
    return Ended(f"{how}: {last[:300]} (log: {job_folder(name)}/log)", log)
