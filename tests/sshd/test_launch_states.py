"""RC-08: what ledger, lock, processes, port and models say apart, over real sshd. A look that could not be made is told
as one, and is neither death nor freedom."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.launch.process import Holder
from mesh.launch.run_ledger import LOCK_FILE, RunLedger
from tests.sshd.following import ended

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

NOBODY = 2**22 + 1  # above the largest id that the kernel gives out

ANOTHER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "another"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
"""


def own_tools(one: Site) -> Path:
    """A folder that is all of the node's PATH, with everything that this machine has: a test takes some of it away."""
    tools = one.folder / "tools"
    tools.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for path in Path(place).iterdir():
            if not (tools / path.name).is_symlink():
                (tools / path.name).symlink_to(path)
    sshd = one.sshds[0]
    config = sshd.folder / "sshd_config"
    config.write_text(config.read_text().replace(":/usr/local/bin:/usr/bin:/bin ", f":{tools} "))
    sshd.stop()
    sshd.start()
    return tools


@contextmanager
def without(tools: Path, name: str) -> Iterator[None]:
    (tools / name).rename(tools / f"{name}.away")
    try:
        yield
    finally:
        (tools / f"{name}.away").rename(tools / name)


@contextmanager
def another_model(port: int) -> Iterator[None]:
    """Somebody else's server on the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"data": [{"id": "another"}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def looks(one: Site) -> tuple[str, str, str, str | None]:
    """The state, and the three looks side by side."""
    status: dict[str, Any] = one.status("ref")
    (node,) = status["nodes"]
    return status["state"], node["process"], node["port"], node["model"]


def test_rc_08_server_that_lives_is_not_taken_for_dead_where_a_tool_is_missing(one: Site) -> None:
    tools = own_tools(one)
    one.reference()
    with without(tools, "awk"):
        refused = one.mesh("serve", "ref")
        assert f"node n0: could not check port {one.port}: awk: not there" in refused.stderr
        assert not (one.folder / "launches" / "ref" / "runs.jsonl").exists()
    assert one.mesh("serve", "ref").returncode == 0
    for tool in ("grep", "sed"):  # by which processes are found
        with without(tools, tool):
            assert looks(one) == ("inconclusive", "unknown", "alive", "reference")
    with without(tools, "awk"):  # by which the port is looked at
        status = one.status("ref")
        assert (status["state"], status["why"]) == ("inconclusive", "could not check: awk: not there")
        assert (status["nodes"][0]["process"], status["nodes"][0]["port"]) == ("alive", "unknown")
    with without(tools, "sed"):
        stopped = one.mesh("stop", "ref", "--drain-s", "1", "--verify-s", "1", "--json")
        assert stopped.returncode == 3
        assert "n0: could not check for processes: sed: not there" in json.loads(stopped.stdout)["error"]["message"]
        assert one.events("ref")[-1] == "stopping"
    smi = one.sshds[0].folder / "home" / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho driver and library differ\nexit 18\n")
    smi.chmod(0o755)
    unseen = one.mesh("stop", "ref", "--verify-s", "5")
    assert "n0: could not check who holds GPU memory: driver and library differ" in unseen.stderr
    smi.unlink()
    assert one.mesh("stop", "ref").returncode == 0
    assert one.closed("ref")["verified"] is True
    with without(tools, "awk"):
        status = one.status("ref")
        why = "stopped; could not be looked at now: could not check: awk: not there"
        assert (status["state"], status["why"]) == ("stopped", why)


def test_rc_08_port_of_another_model_is_told_beside_the_ledger_while_open_and_once_closed(one: Site) -> None:
    from tests.sshd.hosts import kill_run

    one.reference()
    run = json.loads(one.mesh("serve", "ref", "--json").stdout)["run"]
    kill_run(run)
    assert looks(one) == ("stale", "dead", "dead", None)
    with another_model(one.port):
        assert looks(one) == ("differs", "dead", "alive", "another")
        stopped = one.mesh("stop", "ref", "--drain-s", "1", "--verify-s", "5")
        assert f"port {one.port} is still taken" in stopped.stderr
        assert one.events("ref")[-1] == "stopping"
    assert one.mesh("stop", "ref").returncode == 0
    assert looks(one) == ("stopped", "dead", "dead", None)
    with another_model(one.port):
        assert looks(one) == ("differs", "dead", "alive", "another")
        again = one.mesh("serve", "ref")
        assert f"port {one.port} is taken already" in again.stderr
        assert len(one.events("ref")) == 5  # opened, ready, two stops, closed


def test_run_whose_launcher_is_at_work_is_starting_and_stale_without_it(one: Site) -> None:
    """As it is between its opening and its engine's start, which on a busy node takes its time."""
    ledger = RunLedger(one.folder / "launches" / "ref")
    ledger.append(
        {
            "event": "opened", "run": "20300101T000000-aaaaaa", "at_ns": 1, "cluster": "here", "recipe": "ref",
            "port": one.port, "deploy": "tmux", "engine": "mesh", "model": "reference",
            "nodes": [{"name": "n0", "ssh_ip": "127.0.0.1", "ssh_port": one.sshds[0].port, "rank": 0}],
        }
    )  # fmt: skip
    with ledger.locked(at_ns=2):
        status = one.status("ref")
        assert status["state"] == "starting"
        assert status["why"] == f"no process of it is there yet, and process {os.getpid()} is at work on it"
    assert one.status("ref")["state"] == "stale"
    ledger.append({"event": "ready", "run": "20300101T000000-aaaaaa", "at_ns": 3})
    with ledger.locked(at_ns=4):  # by a stop
        assert one.status("ref")["state"] == "stale"


def test_rc_04_engine_that_is_healthy_and_serves_another_model_is_not_ready(one: Site) -> None:
    one.script("other", ANOTHER)
    starter = one.begin("serve", "other")
    assert starter.stderr is not None
    with ended(starter):
        next(line for line in starter.stderr if line == "not ready yet: serves another, not reference\n")
        starter.send_signal(signal.SIGINT)
        said = starter.stderr.read()
        assert starter.wait() != 0, said
    assert one.closed("other")["how"] == "cancelled"


def test_rc_08_of_two_starters_that_find_a_stale_lock_one_launches_and_it_is_recorded_once(one: Site) -> None:
    one.reference()
    folder = one.folder / "launches" / "ref"
    folder.mkdir(parents=True)
    (folder / LOCK_FILE).write_text(json.dumps({**Holder.this().to_map(), "pid": NOBODY}))
    starters = [one.begin("serve", "ref") for _ in range(2)]
    ends = [(starter.communicate(timeout=600)[1], starter.returncode) for starter in starters]
    assert sorted(code for _, code in ends) == [0, 3], ends
    (lost,) = (said for said, code in ends if code)
    assert "another launcher is at work on it" in lost or "is open; stop it" in lost
    assert one.events("ref") == ["stale-lock", "opened", "ready"]
    assert one.mesh("stop", "ref").returncode == 0
