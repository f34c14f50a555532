"""Hosts on a network of their own: each has its addresses, processes, shared memory and a real openssh server.

Where the machine allows no namespaces they are addresses of the loopback. Then a cut line is a server that is killed
with its sessions, and what runs on a host is told by the home folder in its environment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from tests.sshd.hosts import Site, Sshd, free_port, make_user_key, state_of, write_site, write_sshd

UNSHARED = ("unshare", "-nm", "--pid", "--fork", "--kill-child", "--mount-proc")
PORT = 30_000
START_S = 300
SILENCE_S = 12  # short enough to wait for; a server that is merely busy may be silent for longer
_DONE = "done-by-the-network"
_OWN = ("bash", "sshd", "sshd-session", "sshd-auth", "unshare", "ip", "tail")  # what keeps a host, and lets in


@functools.cache
def namespaces() -> bool:
    """Whether this machine lets us make network hosts: each step of it is tried. MESH_LOOPBACK says no anyway."""
    if "MESH_LOOPBACK" in os.environ or not all(map(shutil.which, ("unshare", "ip", "nsenter", "setsid"))):
        return False
    steps = (
        "set -e; mount -t tmpfs t /run; ip link add br0 type bridge; ip netns add h0; "
        "ip link add v0 type veth peer name eth0 netns h0; "
        "ip netns exec h0 unshare --uts --ipc --mount --pid --fork --mount-proc bash -c 'mount -t tmpfs t /dev/shm'"
    )
    return subprocess.run([*UNSHARED, "bash", "-c", steps], capture_output=True, check=False).returncode == 0


@dataclass
class Network(Site):
    """`isolated` says of which kind the hosts are. `cut` and `mend` are of the line to a host, `crash` and `revive` of
    the host: everything that runs on it ends as when its power does."""

    isolated: bool = False
    addresses: list[str] = field(default_factory=list)
    _shell: subprocess.Popen[str] | None = None
    _inside: list[str] = field(default_factory=list)  # by host, its namespace of processes

    # what every kind can

    def cut(self, host: int) -> None:
        if self.isolated:
            self.sh(f"ip link set v{host} down && ip neigh flush dev br0")
        else:
            self.sshds[host].stop()

    def mend(self, host: int) -> None:
        if self.isolated:
            self.sh(f"ip link set v{host} up")
        else:
            self.sshds[host].start()

    def soon_silent(self) -> None:
        """Launchers from here on take a line for cut after less than they else would."""
        config = self.folder / "launch.toml"
        config.write_text(f"ssh_silence_s = {SILENCE_S}\n{config.read_text()}")

    def crash(self, host: int) -> None:
        self.cut(host)
        for pid in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.isolated:
            os.kill(self._init(host), signal.SIGKILL)
            self.sh(f"wait $(cat {self._file(host, 'pid')}) || true")
            self._inside[host] = ""

    def revive(self, host: int) -> None:
        if self.isolated:
            self._boot(host)
        self.mend(host)

    def restart_sshd(self, host: int) -> None:
        """With what its files say now."""
        if not self.isolated:
            self.sshds[host].stop()
            self.sshds[host].start()
            return
        count = self._listened(host)
        init = self._init(host)
        servers = []
        for child in Path(f"/proc/{init}/task/{init}/children").read_text().split():
            with contextlib.suppress(OSError):  # sessions of an earlier server may have come to it, and end
                if b"sshd_config" in Path(f"/proc/{child}/cmdline").read_bytes():
                    servers.append(int(child))
        (server,) = servers
        os.kill(server, signal.SIGKILL)
        self._until_listening(host, count + 1)

    def processes(self, host: int) -> dict[int, str]:
        """What runs on a host and is not of the host itself: names by process id, zombies left out."""
        if self.isolated and not self._inside[host]:
            return {}
        home = f"HOME={self.sshds[host].folder}/home".encode()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.isolated:
                    there = os.readlink(path / "ns" / "pid") == self._inside[host]
                else:
                    there = home in (path / "environ").read_bytes().split(b"\0")
                name, state = state_of(path)
                if there and state != "Z" and name not in _OWN:
                    found[int(path.name)] = name
        return found

    def listening(self, host: int) -> set[int]:
        """Ports on which anything listens, but for the host's sshd."""
        if self.isolated and not self._inside[host]:
            return set()
        table = "".join(
            Path(f"/proc/{self._init(host) if self.isolated else 'self'}/net/{kind}").read_text()
            for kind in ("tcp", "tcp6")
        )
        rows = [line.split() for line in table.splitlines() if " 0A " in line]
        ports = {int(row[1].rpartition(":")[2], 16) for row in rows}
        if not self.isolated:
            return ports & {self.port}
        return ports - {self.sshds[host].port}

    def left(self, *hosts: int) -> list[str]:
        """What is left on these hosts, or on any, in words. What is just ending, as the server of a session that was
        closed, is waited for."""
        deadline = time.monotonic() + START_S
        while True:
            found = []
            for n in hosts or range(len(self.sshds)):
                processes, ports = self.processes(n), self.listening(n)
                found += [f"h{n}: {processes}"] * bool(processes) + [f"h{n}: ports {ports}"] * bool(ports)
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    # namespaces

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command, so that it runs between the hosts."""
        if not self.isolated:
            return ()
        return ("nsenter", f"--net=/proc/{self._shell_pid()}/ns/net", "--")

    def sh(self, command: str) -> str:
        """Run it in the shell between the hosts, which holds them all: where that ends, so do they."""
        assert self._shell is not None
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{{ {command}\n}} </dev/null 2>&1; echo "{_DONE} $?"\n')
        self._shell.stdin.flush()
        lines = []
        for line in self._shell.stdout:
            if line.startswith(_DONE):
                assert line.split()[1] == "0", f"{command}: {''.join(lines)}"
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the network is gone: {''.join(lines)}")

    def open(self, hosts: int, key: Path) -> None:
        self.isolated = namespaces()
        self.addresses = [f"10.211.1.{n + 1}" if self.isolated else f"127.0.0.{n + 2}" for n in range(hosts)]
        self.port = PORT if self.isolated else free_port()
        if self.isolated:
            self._shell = subprocess.Popen(
                [*UNSHARED, "bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            self.sh("mount -t tmpfs t /run && mkdir /run/sshd && ip link set lo up && ip link add br0 type bridge")
            self.sh("ip addr add 10.211.1.254/24 dev br0 && ip link set br0 up")
        for number in range(hosts):
            folder = self.folder / f"node{number}"
            server = write_sshd(folder, key, self.addresses[number], 22 if self.isolated else free_port())
            self.sshds.append(server)
            self._inside.append("")
            if self.isolated:
                self._wire(number)
                self._boot(number)
            else:
                server.start()

    def _wire(self, n: int) -> None:
        self.sh(
            f"ip netns add h{n} && ip link add v{n} type veth peer name eth0 netns h{n} && "
            f"ip link set v{n} master br0 up && ip -n h{n} addr add {self.addresses[n]}/24 dev eth0 && "
            f"ip -n h{n} link set eth0 up && ip -n h{n} link set lo up"
        )

    def _boot(self, n: int) -> None:
        """The host's first process starts its sshd whenever there is none, and reaps."""
        server, log = self.sshds[n], self._file(n, "log")
        body = (
            f"echo h{n} >/proc/sys/kernel/hostname; mount -t tmpfs t /dev/shm; readlink /proc/self/ns/pid "
            f">{self._file(n, 'ns')}; "
            f"while :; do {shlex.quote(os.environ['MESH_SSHD'])} -D -e -f {server.folder}/sshd_config; done"
        )
        unshared = "unshare --uts --ipc --mount --pid --fork --kill-child --mount-proc"
        count = self._listened(n)
        self.sh(
            f"rm -f {self._file(n, 'ns')}; setsid ip netns exec h{n} {unshared} bash -c {shlex.quote(body)} "
            f"</dev/null >>{log} 2>&1 & echo $! >{self._file(n, 'pid')}"
        )
        self._until_listening(n, count + 1)
        self._inside[n] = self._file(n, "ns").read_text().strip()

    def _until_listening(self, n: int, times: int) -> None:
        deadline = time.monotonic() + START_S
        while self._listened(n) < times:
            assert time.monotonic() < deadline, self._file(n, "log").read_text()
            time.sleep(0.02)

    def _listened(self, n: int) -> int:
        log = self._file(n, "log")
        return log.read_text().count("Server listening") if log.exists() else 0

    def _file(self, n: int, kind: str) -> Path:
        return self.sshds[n].folder / f"host.{kind}"

    def _init(self, n: int) -> int:
        """The host's first process, by its number out here."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "ns" / "pid") != self._inside[n]:
                    continue
                lines = (path / "status").read_text().splitlines()
                if next(line for line in lines if line.startswith("NSpid:")).split()[-1] == "1":
                    return int(path.name)
        raise AssertionError(f"h{n} does not run")

    def _shell_pid(self) -> int:
        assert self._shell is not None
        (child,) = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().split()
        return int(child)

    def close(self) -> None:
        if self._shell is not None:
            assert self._shell.stdin is not None
            assert self._shell.stdout is not None
            self._shell.stdin.close()  # the first process of all of them ends, and with it every other
            self._shell.wait()
            self._shell.stdout.close()
        else:
            for host, server in enumerate(self.sshds):
                server.stop()
                for pid in self.processes(host):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for server in self.sshds:
            server.clear()


@contextmanager
def network(folder: Path, hosts: int) -> Iterator[Network]:
    """Hosts n0, n1, ... of the cluster `here`."""
    made = Network(folder)
    try:
        key = make_user_key(folder)
        made.open(hosts, key)
        write_site(made, key)
        yield made
    finally:
        made.close()


def new_host_key(server: Sshd) -> None:
    (server.folder / "host").unlink()
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(server.folder / "host"))
    os.chmod(server.folder / "host", 0o600)


PYTHON = sys.executable
