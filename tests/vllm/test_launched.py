"""Real vLLM servers that the launcher starts from recipes on hosts of their own, behind the gateway: the receipts lead
to the record of the launch, and a stop leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm_rank import EXTENSION
from mesh.launch.bench_package import Package, load_package
from mesh.launch.record import load_record
from mesh.ledger.reader import LedgerReader
from mesh.schema.canonical import decode_map
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_SETTINGS_BYTES
from tests.sshd.hosts import MESH, ROOT
from tests.sshd.network import Network, network
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import ENVIRONMENT, START_S

pytestmark = pytest.mark.skipif("MESH_SSHD" not in os.environ, reason="MESH_SSHD names no sshd: make test-vllm")

# Without a compiler and its caches; the launcher itself says whose address is whose.
SETTINGS = {
    **{name: value for name, value in ENVIRONMENT.items() if name != "VLLM_CPU_KVCACHE_SPACE"},
    "VLLM_USE_AOT_COMPILE": "0",
}
# What each rank of a route reports by, from here.
REPORTING = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "VLLM_SERVER_DEV_MODE": "1"}
ARGS = ["--dtype", "float32", "--max-model-len", "2048", "--kv-cache-memory-bytes", str(128 << 20)]
ASK = """
import json, sys, urllib.request
messages = [{"role": "user", "content": "the end"}]
body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0}).encode()
url, kind = sys.argv[1] + "/v1/chat/completions", {"Content-Type": "application/json"}
asked = urllib.request.Request(url, body, kind)
print(urllib.request.urlopen(asked, timeout=300).read().decode())
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("launched"), 2) as made:
        config = made.folder / "launch.toml"
        wire = "eth0" if made.isolated else "lo"
        config.write_text(f'{config.read_text()}[nccl.here]\nib_disable = 1\nsocket_ifname = "{wire}"\n')
        yield made


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("weights") / "tiny", layers=4)


def recipe(
    hosts: Network, name: str, executable: Path, weights: Path, more: str, args: list[str], reporting: dict[str, str]
) -> None:
    env = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**SETTINGS, **reporting}.items())
    hosts.recipe(
        name,
        f'engine = "vllm"\nengine_version = "0.32.0"\ndeploy = "tmux"\nmodel = "{weights}"\n'
        f'served_model_name = "tiny"\nentrypoint = {json.dumps([str(executable), "serve"])}\n'
        f"args = {json.dumps([*ARGS, *args])}\n{more}\n[env]\n{env}",
    )


def launched(hosts: Network, name: str, *words: str) -> dict[str, Any]:
    """What a launch tells, which says these words meanwhile."""
    done = hosts.mesh("serve", name, "--ready-s", str(START_S), "--json", limit_s=START_S + 60)
    assert done.returncode == 0, done.stderr
    assert "the engine did not say what it runs with" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert hosts.status(name)["state"] == "up"
    return dict(json.loads(done.stdout))


def benched(hosts: Network, name: str) -> Package:
    """What the terminal shows and what is landed of four cells."""
    shape = ("--depths", "64,256", "--concurrency", "1,2", "--output-tokens", "16", "--seed", "one")
    done = hosts.mesh("bench", name, *shape)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    assert "drift: none" in done.stderr
    return load_package(hosts.folder / done.stderr.splitlines()[-1])


def backend(hosts: Network, weights: Path) -> list[str]:
    return ["--vllm", f"http://{hosts.addresses[0]}:{hosts.port}", "--weights", str(weights), "--device", "cpu"]


def certified(hosts: Network, state: Path, weights: Path) -> tuple[dict[str, Any], str]:
    """The status of the route over the hosts, certified by its own forward, and its digest."""
    flags = [*backend(hosts, weights), "--dtype", "float32", "--state", str(state), "--json"]
    done = subprocess.run(
        [*hosts.prefix, *MESH, "route", "certify", *flags], capture_output=True, text=True, check=False, timeout=360
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^route (b3:[0-9a-f]{64})", done.stderr, re.M)
    assert found is not None, done.stderr
    return dict(json.loads(done.stdout)), found[1]


@contextmanager
def gateway(hosts: Network, state: Path, record: Path, weights: Path, *route: str) -> Iterator[str]:
    """One in front of the head, between the hosts; its URL there."""
    flags = [*backend(hosts, weights), "--launch-record", str(record), "--state", str(state), "--port", "0", "--json"]
    flags += route
    with subprocess.Popen([*hosts.prefix, *MESH, "serve", *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] not in ("}\n", ""):
                lines.append(process.stdout.readline())
            yield str(json.loads("".join(lines))["url"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def ask(hosts: Network, url: str) -> dict[str, Any]:
    done = subprocess.run(
        [*hosts.prefix, sys.executable, "-c", ASK, url], capture_output=True, text=True, check=False, timeout=360
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def sealed(state: Path) -> tuple[Any, dict[str, Any]]:
    """The only receipt, and the settings that it names."""
    with LedgerReader.open(state / "ledger.sqlite") as reader:
        (entry,) = reader.receipts()
        receipt = verify(entry.envelope, RECEIPT_TYPE, {reader.steward()}).value
        document = reader.settings(receipt.engine.settings_digest)
        assert document is not None
    return receipt, decode_map(document, max_bytes=MAX_SETTINGS_BYTES)


def test_vllm_is_launched_served_and_gone_and_its_receipts_lead_to_the_record(
    hosts: Network, executable: Path, weights: Path, tmp_path: Path
) -> None:
    """It is set by a variable that it does not read, which the recipe allows."""
    more = 'solo = true\nallowed_levers = ["VLLM_NOT_A_REAL_VAR"]'
    recipe(hosts, "one", executable, weights, more, ["--enforce-eager"], {"VLLM_NOT_A_REAL_VAR": "1"})
    told = launched(hosts, "one", "note: env.VLLM_NOT_A_REAL_VAR: the engine says that it does not know it")
    record_path = hosts.folder / told["record"]
    with gateway(hosts, tmp_path / "state", record_path, weights) as url:
        assert ask(hosts, url)["choices"]
    bench = benched(hosts, "one")
    assert bench.manifest.launch_digest == told["launch_digest"]
    assert (bench.data.engine_version, bench.data.warm_up_tokens) == ("0.32.0", 64)
    for cell in bench.data.cells:
        assert [request.prompt_tokens for request in cell.requests] == [cell.depth] * cell.concurrency
        assert {(request.output_tokens, request.finish) for request in cell.requests} == {(16, "length")}
    stopped = hosts.mesh("stop", "one")
    assert stopped.returncode == 0, stopped.stderr
    assert hosts.left() == []
    assert hosts.events("one") == ["opened", "ready", "stopping", "closed"]
    receipt, settings = sealed(tmp_path / "state")
    record = load_record(record_path)
    assert receipt.engine.launch_digest == record.digest
    assert record.fields["allowed_levers"] == ["VLLM_NOT_A_REAL_VAR"]
    assert settings["dtype"] == "told:float32"


def test_pipeline_over_two_hosts_is_launched_certified_as_a_route_and_a_rank_that_hangs_is_swept(
    hosts: Network, executable: Path, weights: Path, tmp_path: Path
) -> None:
    more = "required_nodes = 2\npipeline_parallel_size = 2"
    args = ["--distributed-timeout-seconds", str(START_S), "--worker-extension-cls", EXTENSION]
    recipe(hosts, "two", executable, weights, more, args, REPORTING)
    told = launched(hosts, "two")
    record_path = hosts.folder / told["record"]
    status, route = certified(hosts, tmp_path / "state", weights)
    assert (status["status"], status["evidence"]["node_ids"]) == ("certified", hosts.addresses)
    with gateway(hosts, tmp_path / "state", record_path, weights, "--route") as url:
        assert ask(hosts, url)["choices"]
    assert hosts.processes(0)
    hung = hosts.processes(1)
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)  # takes no TERM any more
    os.kill(next(pid for pid, name in hung.items() if name.startswith("tmux")), signal.SIGCONT)
    stopped = hosts.mesh("stop", "two", "--drain-s", "2")
    assert stopped.returncode == 0, stopped.stderr
    assert "n1: not gone 2 s after TERM: the rest of the run is swept" in stopped.stderr
    assert hosts.left() == []
    assert hosts.closed("two")["verified"] is True
    receipt, settings = sealed(tmp_path / "state")
    record = load_record(record_path)
    assert receipt.engine.launch_digest == record.digest
    assert ContentId(receipt.engine.route_digest).text == route
    assert settings["pipeline_parallel"] == 2
    assert [rank["node"] for rank in record.fields["ranks"]] == ["n0", "n1"]
