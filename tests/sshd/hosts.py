"""Nodes for tests: real openssh servers on loopback, each with its own key, and recipes that are launched on them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

ROOT = Path(__file__).parent.parent.parent
MESH = (sys.executable, "-m", "mesh.cli.main")


# Below those that the kernel gives to whoever connects: nobody gets one by accident.
_PORTS = range(20_000, 32_000)
_taken: list[socket.socket] = []


def free_port() -> int:
    """A port that stays this process's until it ends, listened on or not: among tests by a name that the kernel keeps,
    and none that anything listens on now."""
    for port in random.sample(_PORTS, len(_PORTS)):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0mesh-tests-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError:
            name.close()
            continue
        _taken.append(name)
        return port
    raise AssertionError("no port is free")


@dataclass
class Sshd:
    """One server. What is started again has the same port and key."""

    folder: Path
    port: int
    address: str = "127.0.0.1"
    # A socket's path has 107 characters at most, which folders of tests use up.
    sockets: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="mesh-")))
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It logs into a file: a pipe that nobody reads is full after some hundreds of sessions, and stops it."""
        before = self._listened()
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [os.environ["MESH_SSHD"], "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log
            )
        while self._listened() == before:
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.01)

    def _listened(self) -> int:
        log = self.folder / "sshd.log"
        return log.read_text(errors="replace").count("Server listening") if log.exists() else 0

    def stop(self) -> None:
        """The listener, which makes no more of them, and every session of it."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGSTOP)
        while state_of(Path(f"/proc/{self.process.pid}"))[1] not in "TZ":
            time.sleep(0.01)
        for pid in descendants(self.process.pid):
            _kill(pid)
        self.process.kill()
        self.process.wait()
        self.process = None

    def clear(self) -> None:
        """The servers of tmux that are left, with what runs in them."""
        for path in self.sockets.glob("tmux-*/*"):
            subprocess.run(["tmux", "-S", str(path), "kill-server"], capture_output=True, check=False)
        shutil.rmtree(self.sockets, ignore_errors=True)  # a server that ends takes its own away

    @property
    def known(self) -> str:
        key = (self.folder / "host.pub").read_text().split()
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{name} {key[0]} {key[1]}"


def state_of(process: Path) -> tuple[str, str]:
    """Of a process's folder in /proc: its name, and the letter of its state. Raises OSError where it is gone."""
    name, _, rest = (process / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
    return name, rest.split()[0]


def _kill(pid: int) -> None:
    try:
        if b"sshd" in Path(f"/proc/{pid}/cmdline").read_bytes():  # what it launched lives on, as after a cut line
            os.kill(pid, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        pass


def descendants(pid: int) -> list[int]:
    found = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended since its parent named it
        return []
    for child in children:
        found += [int(child), *descendants(int(child))]
    return found


def make_user_key(folder: Path) -> Path:
    key = folder / "user"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(key))
    os.chmod(key, 0o600)
    asyncssh.read_private_key(str(key)).write_public_key(f"{key}.pub")
    return key


def write_sshd(folder: Path, user_key: Path, address: str, port: int) -> Sshd:
    """Its sessions have a home folder and programs of their own, in which a test may put some."""
    (folder / "home" / "bin").mkdir(parents=True)
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(folder / "host"))
    os.chmod(folder / "host", 0o600)
    asyncssh.read_private_key(str(folder / "host")).write_public_key(str(folder / "host.pub"))
    (folder / "authorized").write_text(Path(f"{user_key}.pub").read_text())
    sshd = Sshd(folder, port, address)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"SetEnv HOME={folder}/home PATH={folder}/home/bin:/usr/local/bin:/usr/bin:/bin TMUX_TMPDIR={sshd.sockets}\n"
        "UsePAM no\nStrictModes no\nMaxSessions 50\nMaxStartups 100\nLogLevel VERBOSE\n"
    )
    return sshd


@dataclass
class Site:
    """A working directory with a configuration, recipes and servers; commands run in it."""

    folder: Path
    sshds: list[Sshd] = field(default_factory=list)
    port: int = 0

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before each command that a test runs."""
        return ()

    def recipe(self, name: str, text: str) -> None:
        (self.folder / "recipes" / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "recipes" / name / "recipe.toml").write_text(text)

    def reference(self, name: str = "ref", more: str = "") -> None:
        """The reference engine behind the gateway, a real server that starts in a second."""
        self.recipe(
            name,
            f'engine = "mesh"\ndeploy = "tmux"\nmodel = "reference"\nhost = "127.0.0.1"\n'
            f"entrypoint = {json.dumps([*MESH, 'serve'])}\n"
            f'args = ["--state", "{self.folder}/state-{name}"]\n{more}\n[env]\nPYTHONPATH = "{ROOT}"\n',
        )

    def script(self, name: str, program: str, more: str = "") -> None:
        """An engine that is a program of a test's own."""
        path = self.folder / f"{name}.py"
        path.write_text(program)
        self.recipe(
            name,
            f'engine = "mesh"\ndeploy = "tmux"\nmodel = "reference"\nhost = "127.0.0.1"\n'
            f"entrypoint = {json.dumps([sys.executable, str(path)])}\n{more}\n",
        )

    def begin(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, *MESH, "launch", *argv],
            cwd=self.folder, env=self._env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def mesh(self, *argv: str, limit_s: int = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *MESH, "launch", *argv],
            cwd=self.folder, env=self._env(), capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip

    def status(self, name: str) -> dict[str, Any]:
        done = self.mesh("status", name, "--json")
        (told,) = json.loads(done.stdout)["recipes"]
        return dict(told)

    def events(self, name: str) -> list[str]:
        lines = (self.folder / "launches" / name / "runs.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def closed(self, name: str) -> dict[str, Any]:
        lines = (self.folder / "launches" / name / "runs.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        assert last["event"] == "closed", lines
        return dict(last)

    def run_id(self, name: str) -> str:
        return str(self.status(name)["run"])

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(self.folder / "none")}


def marked(run: str) -> list[int]:
    """Processes of this machine with the run's marker, zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
            state = state_of(path)[1]
        except OSError:
            continue
        if f"MESH_RUN={run}".encode() in environment.split(b"\0") and state != "Z":
            found.append(int(path.name))
    return found


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill_run(run: str) -> None:
    """Every process of the run, as by the machine itself; returns when each has ended and holds no port any more."""
    killed = set()
    while left := marked(run):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= set(left)
    while any(_ends(Path(f"/proc/{pid}")) for pid in killed):  # the environment is the first thing that goes
        time.sleep(0.01)


def _ends(process: Path) -> bool:
    try:
        return state_of(process)[1] != "Z" or len(list((process / "task").iterdir())) > 1
    except OSError:
        return False


def kill_marked(folder: Path) -> None:
    """What a test that failed has left."""
    for ledger in folder.glob("launches/*/runs.jsonl"):
        for run in set(re.findall(r'"run":"([0-9A-Za-z-]+)"', ledger.read_text(errors="replace"))):
            kill_run(run)


def write_site(made: Site, key: Path) -> None:
    """The configuration and the pinned keys."""
    listed = ",\n".join(
        f'{{ name = "n{number}", ssh_ip = "{sshd.address}", ssh_port = {sshd.port}, rank = {number} }}'
        for number, sshd in enumerate(made.sshds)
    )
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (made.folder / "launch.toml").write_text(
        f'ssh_user = "{user}"\nssh_key_path = "{key}"\ndefault_port = {made.port}\n'
        f'[[clusters]]\nname = "here"\nnodes = [{listed}]\n'
    )
    (made.folder / "known_hosts").write_text("".join(f"{sshd.known}\n" for sshd in made.sshds))


@contextmanager
def site(folder: Path, nodes: int = 1) -> Iterator[Site]:
    key = make_user_key(folder)
    made = Site(folder, port=free_port())
    try:
        for number in range(nodes):
            made.sshds.append(write_sshd(folder / f"node{number}", key, "127.0.0.1", free_port()))
            made.sshds[-1].start()
        write_site(made, key)
        yield made
    finally:
        for sshd in made.sshds:
            sshd.stop()
        kill_marked(folder)
        for sshd in made.sshds:
            sshd.clear()
