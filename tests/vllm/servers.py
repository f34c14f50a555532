"""Real vLLM servers on this machine's CPU, and what is asked of them past the mesh."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from mesh.engine.server_port import KeptPort

# One thread, little memory, and no compiler: what a small machine can start in half a minute.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
FLAGS = ("--max-model-len", "2048", "--enforce-eager")
START_S = 600  # a busy machine takes minutes


class RealServer:
    """A server that an operator runs by himself, on one port over all its starts. A start takes a small machine most of
    a minute, so a test says what it has to be (`be`), and it is started again only where it is something else."""

    def __init__(self, executable: Path, name: str = "tiny") -> None:
        self.executable, self.name = executable, name
        self._port = KeptPort("127.0.0.1")
        self.url = f"http://127.0.0.1:{self._port.number}"
        self._process: subprocess.Popen[bytes] | None = None
        self._is: tuple[Path, tuple[str, ...], str, dict[str, str]] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  as long as the server object

    def be(
        self, model: Path, *flags: str, dtype: str = "float32", environment: Mapping[str, str] = ENVIRONMENT
    ) -> None:
        """Serve this, as it may do already."""
        if self._process is None or self._is != (model, flags, dtype, dict(environment)):
            self.stop()
            self.start(model, *flags, dtype=dtype, environment=environment)

    def restart(self) -> None:
        """As it is."""
        assert self._is is not None
        model, flags, dtype, environment = self._is
        self.stop()
        self.start(model, *flags, dtype=dtype, environment=environment)

    def start(
        self, model: Path, *flags: str, dtype: str = "float32", environment: Mapping[str, str] = ENVIRONMENT
    ) -> None:
        """Returns when it answers."""
        self._is = (model, flags, dtype, dict(environment))
        command = [
            self.executable, "serve", model, "--host", "127.0.0.1", "--port", str(self._port.number),
            "--served-model-name", self.name, "--dtype", dtype, "--enable-prompt-tokens-details", *FLAGS, *flags,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            start_new_session=True,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                self._log.seek(0)
                raise AssertionError(f"vllm did not start:\n{self._log.read()[-4000:].decode(errors='replace')}")
            time.sleep(0.25)

    def stop(self) -> None:
        """With everything that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        self.stop()
        self._port.close()
        self._log.close()

    def metric(self, name: str, **labels: str) -> float:
        """The sum over its engines of one of the server's own counters."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^vllm:{name}(?:\{{(.*)\}})? (\S+)$", text, re.M)
        assert found, f"no metric {name}"
        return sum(float(value) for given, value in found if all(f'{k}="{v}"' in given for k, v in labels.items()))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/v1/models", timeout=10) as answer:
                return bool(json.load(answer)["data"])
        except (OSError, urllib.error.URLError, ValueError):
            return False
