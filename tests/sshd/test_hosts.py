"""Two and three hosts on a network: what is left on each, and what the ledger says, whatever goes in the middle."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mesh.launch.record import load_record
from tests.sshd.engines import MEETING, shut
from tests.sshd.following import ended, until
from tests.support.tiny_gguf import write_tiny_gguf

if TYPE_CHECKING:
    from tests.sshd.network import Network

COMMIT = "1" * 40
PLAIN = """
import os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
MEETING
while "--headless" in sys.argv: time.sleep(60)
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "served"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
HTTPServer(("0.0.0.0", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
""".replace("MEETING", MEETING)
# Healthy, and never completes anything.
WARMING = PLAIN.replace("self.send_response(200)", "self.send_response(200 if self.command == 'GET' else 503)")
# Ignores TERM, and has a child in a session of its own that ignores it too.
STUBBORN = PLAIN.replace(
    MEETING,
    f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True: time.sleep(60)
{MEETING}""",
)


def ranks(hosts: Network, name: str, program: str, more: str = "") -> None:
    """A recipe for two hosts, whose engine is a program of ours in the place of vLLM."""
    from tests.sshd.network import PYTHON

    (hosts.folder / f"{name}.py").write_text(program)
    for server in hosts.sshds:
        snapshot = server.folder / "home/.cache/huggingface/hub/models--org--model/snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_bytes(b"{}")
    hosts.recipe(
        name,
        f'engine = "vllm"\ndeploy = "tmux"\nmodel = "org/model"\nmodel_revision = "{COMMIT}"\n'
        f'served_model_name = "served"\nrequired_nodes = 2\ntensor_parallel_size = 2\n'
        f"entrypoint = {json.dumps([PYTHON, str(hosts.folder / f'{name}.py')])}\n{more}\n",
    )


def closed_and_gone(hosts: Network, name: str) -> None:
    stopped = hosts.mesh("stop", name, "--drain-s", "1")
    assert stopped.returncode == 0, stopped.stderr
    assert hosts.left() == []
    assert hosts.closed(name)["verified"] is True
    assert hosts.status(name)["state"] == "stopped"


def test_llama_cpp_on_one_of_three_hosts_serves_and_its_receipts_lead_to_the_record(three: Network) -> None:
    from mesh.ledger.reader import LedgerReader
    from mesh.schema.envelope import RECEIPT_TYPE, verify

    model = write_tiny_gguf(three.folder / "tiny.gguf")
    three.reference("gguf")
    recipe = three.folder / "recipes" / "gguf" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"reference"', f'"{model}"'))
    done = three.mesh("serve", "gguf", "--stage", "force", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert three.processes(0)
    assert three.listening(0) == {three.port}
    assert three.status("gguf")["state"] == "up"
    closed_and_gone(three, "gguf")
    record = load_record(three.folder / told["record"])
    with LedgerReader.open(three.folder / "state-gguf" / "ledger.sqlite") as reader:
        (entry,) = reader.receipts(limit=1)  # of the completion by which it was seen to be ready
        receipt = verify(entry.envelope, RECEIPT_TYPE, {reader.steward()}).value
    assert receipt.engine.backend_id.startswith("gguf/")
    assert receipt.engine.launch_digest == record.digest
    assert [rank["node"] for rank in record.fields["ranks"]] == ["n0"]


def test_children_that_ignore_term_are_swept_on_every_host(two_hosts: Network) -> None:
    ranks(two_hosts, "stubborn", STUBBORN)
    done = two_hosts.mesh("serve", "stubborn", "--json")
    assert done.returncode == 0, done.stderr
    each = 2 if two_hosts.isolated else 4  # without namespaces those of the other are seen too
    assert [len(pids) for pids in json.loads(done.stdout)["processes"].values()] == [each, each]
    stopped = two_hosts.mesh("stop", "stubborn", "--drain-s", "1")
    assert stopped.returncode == 0, stopped.stderr
    for node in ("n0", "n1"):
        assert f"{node}: not gone 1 s after TERM: the rest of the run is swept" in stopped.stderr
    assert two_hosts.left() == []
    assert two_hosts.events("stubborn") == ["opened", "ready", "stopping", "closed"]


@pytest.mark.parametrize("host", [0, 1], ids=["of-the-head", "of-a-worker"])
def test_line_cut_in_the_middle_of_a_launch_leaves_the_run_open(two_hosts: Network, host: int) -> None:
    two_hosts.soon_silent()
    ranks(two_hosts, "warming", WARMING)
    process = two_hosts.begin("serve", "warming", "--json")
    with ended(process):
        until(process, "not ready yet: a completion")
        two_hosts.cut(host)
        out, rest = process.communicate()
    assert process.returncode == 3, rest
    assert json.loads(out)["error"]["code"] in ("node-unreachable", "node-failed"), out
    assert f"so the run stays open: n{host}: " in rest
    assert two_hosts.events("warming") == ["opened"]
    assert two_hosts.left(1 - host) == []
    assert not two_hosts.isolated or two_hosts.processes(host)
    assert two_hosts.status("warming")["state"] == "inconclusive"
    two_hosts.mend(host)
    # without namespaces what was swept on one host was swept on both
    assert two_hosts.status("warming")["state"] == ("differs" if two_hosts.isolated else "stale")
    closed_and_gone(two_hosts, "warming")


def test_line_cut_in_the_middle_of_a_stop_leaves_the_run_open_and_names_the_node(two_hosts: Network) -> None:
    ranks(two_hosts, "plain", PLAIN)
    assert two_hosts.mesh("serve", "plain").returncode == 0
    home = two_hosts.sshds[1].folder / "home"
    gate = shut(home)
    two_hosts.soon_silent()
    process = two_hosts.begin("stop", "plain", "--drain-s", "1", "--json")
    with ended(process):
        assert (home / "reached").read_text() == "reached\n"
        two_hosts.cut(1)
        out, rest = process.communicate()
    assert process.returncode == 3, rest
    error = json.loads(out)["error"]
    assert error["code"] == "node-failed"
    assert "n1: node n1: " in error["message"]
    assert "n0: " not in error["message"]
    assert two_hosts.left(0) == []
    assert two_hosts.events("plain")[-1] == "stopping"
    assert two_hosts.status("plain")["state"] == "inconclusive"
    two_hosts.mend(1)
    gate.unlink()
    (home / "gate").write_text("")  # what was in the middle goes on
    closed_and_gone(two_hosts, "plain")


def test_host_that_lost_its_power_keeps_the_run_open_until_it_is_back(two_hosts: Network) -> None:
    ranks(two_hosts, "plain", PLAIN)
    assert two_hosts.mesh("serve", "plain").returncode == 0
    two_hosts.crash(1)
    assert two_hosts.status("plain")["state"] == "inconclusive"
    stopped = two_hosts.mesh("stop", "plain", "--drain-s", "1", "--json")
    assert stopped.returncode == 3
    message = json.loads(stopped.stdout)["error"]["message"]
    assert "stays open: n1: " in message
    assert two_hosts.left(0) == []
    assert two_hosts.events("plain")[-1] == "stopping"
    two_hosts.revive(1)
    assert two_hosts.status("plain")["state"] == "stale"
    closed_and_gone(two_hosts, "plain")


def test_host_that_is_down_is_named_and_nothing_starts_on_the_other(two_hosts: Network) -> None:
    ranks(two_hosts, "plain", PLAIN)
    two_hosts.crash(1)
    error = json.loads(two_hosts.mesh("serve", "plain", "--json").stdout)["error"]
    assert error["code"] == "node-unreachable"
    assert "node n1: " in error["message"]
    assert two_hosts.left() == []
    assert not (two_hosts.folder / "launches" / "plain" / "runs.jsonl").exists()
    two_hosts.revive(1)


# Killed as soon as it says so. Whether it came further by then or not: what the ledger has open is what can be found
# and stopped, and what it has not is not there.
@pytest.mark.parametrize("after", ["look", "hooks", "is open", "waiting for", "not ready yet: a completion"])
def test_launcher_killed_in_the_middle_leaves_a_ledger_that_is_right(two_hosts: Network, after: str) -> None:
    ranks(two_hosts, "slow", WARMING, 'before_serve = ["true"]')
    process = two_hosts.begin("serve", "slow")
    with ended(process):
        until(process, after)
        process.send_signal(signal.SIGKILL)
    if not (two_hosts.folder / "launches" / "slow" / "runs.jsonl").exists():
        assert after in ("look", "hooks")
        assert two_hosts.left() == []
        return
    status = two_hosts.status("slow")
    assert status["open"] is True
    alive = [bool(two_hosts.processes(host)) for host in (0, 1)]
    expected = {(False, False): "stale", (True, True): "starting"}.get((alive[0], alive[1]), "differs")
    # a command that was under way when the launcher was killed may have started its engine since the look
    assert status["state"] in (expected, "stale", "differs"), status
    stopped = two_hosts.mesh("stop", "slow", "--drain-s", "1")
    assert stopped.returncode == 0, stopped.stderr
    assert "took over a lock that was left by process" in stopped.stderr
    assert two_hosts.left() == []
    assert two_hosts.closed("slow")["verified"] is True
    assert two_hosts.events("slow").count("stale-lock") == 1


def test_rank_of_another_kind_and_host_of_another_key_are_refused_before_any_starts(two_hosts: Network) -> None:
    from tests.sshd.network import new_host_key

    ranks(two_hosts, "r", PLAIN)

    def refused(code: str) -> str:
        error = json.loads(two_hosts.mesh("serve", "r", "--json").stdout)["error"]
        assert error["code"] == code, error
        assert two_hosts.left() == []
        assert not (two_hosts.folder / "launches" / "r" / "runs.jsonl").exists()
        return str(error["message"])

    second = two_hosts.sshds[1].folder
    snapshot = Path(second, "home/.cache/huggingface/hub/models--org--model/snapshots", COMMIT)
    (snapshot / "config.json").write_bytes(b"[]")
    assert refused("ranks-differ").startswith("weights: rank 1 on n1")
    (snapshot / "config.json").write_bytes(b"{}")
    config = second / "sshd_config"
    config.write_text(config.read_text().replace(":/usr/bin:/bin", ":/usr/bin:/bin:/opt/other"))
    two_hosts.restart_sshd(1)
    assert refused("ranks-differ").startswith("inherited environment: rank 1 on n1")
    new_host_key(two_hosts.sshds[1])
    two_hosts.restart_sshd(1)
    assert re.match(r"node n1: shows another host key than the pinned one", refused("host-key"))
