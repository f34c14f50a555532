"""One model over two network hosts of this machine, by vLLM's own pipeline parallelism."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from mesh.engine import vllm_keeper
from mesh.engine.server_port import KeptPort
from mesh.engine.vllm_rank import EXTENSION
from tests.vllm.servers import ENVIRONMENT, START_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT_S = 20  # after which a host that does not answer is given up; a busy machine takes seconds for a step
CONTEXT = 32_768  # so that a stream goes on for long
# The extension comes from here. With a compiler, or without its caches, a pipeline dies at the first request.
RANKED = {
    **{name: value for name, value in ENVIRONMENT.items() if name != "VLLM_CPU_KVCACHE_SPACE"},
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_S),
}
RANK_FLAGS = (
    "--max-model-len", str(CONTEXT), "--kv-cache-memory-bytes", str(128 << 20), "--worker-extension-cls", EXTENSION,
)  # fmt: skip
UNSHARED = ("unshare", "-Urnm", "--pid", "--fork", "--kill-child", "--mount-proc")
LOOPBACK = ("127.0.0.1", "127.0.0.2")
_GRACE_S = 8


@functools.cache
def namespaces() -> bool:
    """Whether this machine lets anybody make network hosts: each step of it is tried."""
    if not all(map(shutil.which, ("unshare", "ip", "setsid"))):
        return False
    with tempfile.TemporaryDirectory(prefix="mesh2h") as folder:
        nothing = Path(folder) / "nothing.sh"
        nothing.write_text("#!/bin/bash\n")
        nothing.chmod(0o700)
        command = ["bash", str(HERE / "two_hosts.sh"), folder, str(nothing), str(nothing)]
        tried = subprocess.run([*UNSHARED, *command, "true"], capture_output=True, check=False)
    return tried.returncode == 0


class TwoHosts:
    """A test says what they have to be (`be`), and leaves them as whatever they are then. In namespaces where there are
    some, else on two addresses of the loopback: then it is one host's shared memory, and what is left there is
    removed."""

    def __init__(self, executable: Path) -> None:
        self.executable = executable
        self.isolated = False
        self.addresses = ("", "")
        self.url = ""
        self._is: Any = None
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._roots: list[psutil.Process] = []
        self._shared: set[str] = set()
        self._folder: Path | None = None
        self._port = 0
        self._ports = contextlib.ExitStack()

    def be(
        self,
        parts: Sequence[Path],
        *,
        partitions: Sequence[str | None] = (None, None),
        addresses: tuple[str, str] | None = None,
    ) -> None:
        """`parts` are the model folders of the two, `partitions` how many layers each says that every one computes,
        `addresses` those that they are to have, all of them of the loopback. Returns when the server answers."""
        wanted = (tuple(parts), tuple(partitions), addresses)
        if self._is == wanted and self._answers():
            return
        self.stop()
        self.isolated = addresses is None and namespaces()
        self.addresses = addresses or (("10.211.0.1", "10.211.0.2") if self.isolated else LOOPBACK)
        self._write(parts, partitions)
        self._start()
        self._wait()
        self._is = wanted

    def begin(self, parts: Sequence[Path], *, patience_s: int = START_S) -> None:
        """Start the first of two hosts on the loopback, which waits so long for the other, and return."""
        self.stop()
        self.isolated, self.addresses = False, LOOPBACK
        self._write(parts, (None, None), patience_s)
        self._run(1)

    def join(self) -> None:
        """Start the second, and return."""
        self._run(2)

    def ended(self) -> None:
        """Wait for the end of what `begin` started, by itself, and see that nothing of it is left."""
        (keeper,) = self._keepers
        assert keeper.stdout is not None
        said = keeper.stdout.read().decode().splitlines()
        assert said[0].startswith("ended "), said
        assert said[1:] == ["gone"], said

    def _write(self, parts: Sequence[Path], partitions: Sequence[str | None], patience_s: int = START_S) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mesh2h"))  # short: sockets have their paths in it
        self._port, master = (8820, 29511) if self.isolated else (self._kept(), self._kept())
        for i, part in enumerate(parts):
            self._write_host(i, part, partitions[i], self._port, master, patience_s)
        if not self.isolated:
            self.url = f"http://{self.addresses[0]}:{self._port}"

    def _kept(self) -> int:
        """A port of the loopback that is theirs until `stop`."""
        return self._ports.enter_context(KeptPort(LOOPBACK[0])).number

    def _run(self, number: int) -> None:
        assert self._folder is not None
        script = str(self._folder / f"{number}.sh")
        self._keep(["bash", "-c", f"exec {script} >{script.removesuffix('.sh')}.log 2>&1"])

    def _start(self) -> None:
        folder = self._folder
        assert folder is not None
        if self.isolated:
            scripts = [str(folder / f"{number}.sh") for number in (1, 2)]
            path, outside = folder / "relay", f"127.0.0.1:{self._kept()}"
            relay = [sys.executable, str(HERE / "relay.py")]
            hosts = ["bash", str(HERE / "two_hosts.sh"), str(folder), *scripts]
            self._keep([*UNSHARED, *hosts, *relay, str(path), f"{self.addresses[0]}:{self._port}"])
            self._keep([*relay, outside, str(path)])
            self.url = f"http://{outside}"
        else:
            for number in (1, 2):
                self._run(number)

    def _wait(self) -> None:
        folder = self._folder
        assert folder is not None
        deadline = time.monotonic() + START_S
        while not self._answers():
            ended = [keeper for keeper in self._keepers if keeper.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = [path.read_text(errors="replace")[-4000:] for path in sorted(folder.glob("*.log"))]
                self.stop()
                raise AssertionError("two hosts did not start:\n" + "\n---\n".join(logs))
            time.sleep(0.25)
        self._see_shared()

    def host(self, number: int) -> list[psutil.Process]:
        """Every process of the second host (1) or the first (0), the root first."""
        if self.isolated:
            assert self._folder is not None
            inside = int((self._folder / f"{number + 1}.pid").read_text())
            (root,) = [one for one in self._processes() if _pid_inside(one.pid) == inside]
        else:
            root = self._roots[number]
        return [root, *root.children(recursive=True)]

    def stop(self) -> None:
        """Nothing of them is left when this returns."""
        self._is = None
        self._see_shared()
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            assert keeper.stdin is not None
            keeper.stdin.close()
        for keeper in keepers:
            try:
                keeper.wait(_GRACE_S + 60)
            finally:
                keeper.kill()
                keeper.wait()
                assert keeper.stdout is not None
                keeper.stdout.close()
        self._roots = []
        self._ports.close()
        if not self.isolated:
            for name in self._shared:  # nobody is left who would
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        self._shared = set()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _write_host(self, i: int, part: Path, partition: str | None, port: int, master: int, patience_s: int) -> None:
        assert self._folder is not None
        home = self._folder / f"home{i + 1}"
        home.mkdir()
        environment = {
            **RANKED, "HOME": str(home), "TMPDIR": str(home), "VLLM_HOST_IP": self.addresses[i],
            "GLOO_SOCKET_IFNAME": "eth0" if self.isolated else "lo",
            **({} if partition is None else {"VLLM_PP_LAYER_PARTITION": partition}),
        }  # fmt: skip
        address = ["--host", self.addresses[0], "--port", str(port)] if i == 0 else ["--headless"]
        command = [
            str(self.executable), "serve", str(part), "--served-model-name", "tiny", "--dtype", "float32", *RANK_FLAGS,
            "--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank", str(i), "--master-addr", self.addresses[0],
            "--master-port", str(master), "--distributed-timeout-seconds", str(patience_s), *address,
        ]  # fmt: skip
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        script = self._folder / f"{i + 1}.sh"
        script.write_text(f"#!/bin/bash\nunset VLLM_CPU_KVCACHE_SPACE\n{exports}exec {shlex.join(command)}\n")
        script.chmod(0o700)

    def _keep(self, command: Sequence[str]) -> None:
        """Behind the keeper that the mesh puts before its own servers: whatever becomes of the tests, nothing stays."""
        assert self._folder is not None
        grace_s = 0.1 if self.isolated else _GRACE_S  # a namespace of processes ends at once, and takes no orders
        with (self._folder / "0.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", vllm_keeper.__file__, str(grace_s), "-", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._keepers.append(keeper)
        assert keeper.stdout is not None
        what, _, pid = keeper.stdout.readline().decode().partition(" ")
        assert what == "started", (what, pid)
        self._roots.append(psutil.Process(int(pid)))

    def _see_shared(self) -> None:
        self._shared.update(name for process in self._processes() for name in _shared_memory(process.pid))

    def _processes(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for root in self._roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [root, *root.children(recursive=True)]
        return found

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/v1/models", timeout=10) as answer:
                return bool(json.load(answer)["data"])
        except (OSError, urllib.error.URLError, ValueError):
            return False


def _pid_inside(pid: int) -> int | None:
    """Its number in the innermost namespace of processes."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def _shared_memory(pid: int) -> set[str]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line and "(deleted)" not in line}
    return set()
