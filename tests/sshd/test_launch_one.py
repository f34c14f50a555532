"""One node: launched, seen to serve, stopped and seen to be gone, whatever its engine does and whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import asyncssh

from mesh.launch.record import load_record
from tests.sshd.engines import shut
from tests.sshd.following import ended, until
from tests.support.tiny_gguf import write_tiny_gguf

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

# Ignores TERM, and has a child in a session of its own that ignores it too.
STUBBORN = """
import os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True: time.sleep(60)
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "reference"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
"""
# Healthy, and never completes anything: what a server that still warms up looks like.
WARMING = STUBBORN.replace("self.send_response(200)", "self.send_response(200 if self.command == 'GET' else 503)")
DYING = "import sys; print('no such model file', file=sys.stderr); sys.exit(3)\n"


def gone(one: Site, run: str) -> bool:
    from tests.sshd.hosts import listening, marked

    env = {**os.environ, "TMUX_TMPDIR": str(one.sshds[0].sockets)}
    session = subprocess.run(["tmux", "-L", f"mesh-{run}", "has-session"], capture_output=True, check=False, env=env)
    return not marked(run) and not listening(one.port) and session.returncode != 0


def opened(one: Site, name: str) -> str:
    lines = (one.folder / "launches" / name / "runs.jsonl").read_text().splitlines()
    return str([json.loads(line)["run"] for line in lines if json.loads(line)["event"] == "opened"][-1])


def test_launch_is_ready_when_it_answers_and_stopped_when_nothing_is_left(one: Site) -> None:
    one.reference()
    done = one.mesh("serve", "ref", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["model"] == "reference"
    assert len(told["processes"]["n0"]) >= 1
    status = one.status("ref")
    assert (status["state"], status["nodes"][0]["model"]) == ("up", "reference")
    again = one.mesh("serve", "ref")
    assert "is open; stop it" in again.stderr
    stopped = one.mesh("stop", "ref")
    assert stopped.returncode == 0, stopped.stderr
    assert gone(one, told["run"])
    assert one.events("ref") == ["opened", "ready", "stopping", "closed"]
    assert one.closed("ref")["verified"] is True
    assert one.status("ref")["state"] == "stopped"


def test_receipts_lead_to_the_record_of_the_launch_and_drift_is_shown(one: Site) -> None:
    from mesh.ledger.reader import LedgerReader
    from mesh.schema.envelope import RECEIPT_TYPE, verify

    one.reference()
    told = json.loads(one.mesh("serve", "ref", "--json").stdout)
    recipe = one.folder / "recipes" / "ref" / "recipe.toml"
    recipe.write_text(recipe.read_text() + "# another word\n")
    (drift,) = one.status("ref")["drift"]
    assert drift.startswith("recipe.toml: changed since the launch, no key of it")
    assert one.mesh("stop", "ref").returncode == 0
    record = load_record(one.folder / told["record"])
    with LedgerReader.open(one.folder / "state-ref" / "ledger.sqlite") as reader:
        (entry,) = reader.receipts(limit=1)  # of the completion by which it was seen to be ready
        receipt = verify(entry.envelope, RECEIPT_TYPE, {reader.steward()}).value
    assert receipt.engine.launch_digest == record.digest
    assert record.digest.text == told["launch_digest"]
    assert "# another word" not in (one.folder / told["record"]).with_name("recipe.toml").read_text()
    assert record.fields["ranks"][0]["argv"][-2:] == ["--state", f"{one.folder}/state-ref"]


def test_changed_host_key_is_refused_and_so_is_an_unpinned_one(one: Site) -> None:
    one.reference()
    pinned = one.folder / "known_hosts"
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()
    pinned.write_text(f"[127.0.0.1]:{one.sshds[0].port} {other[0]} {other[1]}\n")
    done = one.mesh("serve", "ref", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "host-key"
    assert "shows another host key" in json.loads(done.stdout)["error"]["message"]
    pinned.write_text("")
    assert "no host key of [127.0.0.1]" in one.mesh("serve", "ref").stderr
    assert not (one.folder / "launches" / "ref" / "runs.jsonl").exists()


def test_keys_are_collected_pinned_and_seen_to_change(one: Site) -> None:
    (one.folder / "known_hosts").unlink()
    assert one.mesh("keys").returncode == 10
    assert one.mesh("keys", "--pin").returncode == 0
    assert (one.folder / "known_hosts").read_text() == one.sshds[0].known + "\n"
    other = one.sshds[0].known.rpartition(" ")[0] + " " + "A" * 68
    (one.folder / "known_hosts").write_text(other + "\n")
    assert ": changed: " in one.mesh("keys", "--pin").stdout
    assert (one.folder / "known_hosts").read_text() == other + "\n"


def test_engine_and_child_that_ignore_term_are_swept(one: Site) -> None:
    from tests.sshd.hosts import marked

    one.script("stubborn", STUBBORN)
    told = json.loads(one.mesh("serve", "stubborn", "--json").stdout)
    assert len(marked(told["run"])) == 2
    stopped = one.mesh("stop", "stubborn", "--drain-s", "1")
    assert stopped.returncode == 0, stopped.stderr
    assert "the rest of the run is swept" in stopped.stderr
    assert gone(one, told["run"])


def test_health_without_a_completion_is_not_ready_and_a_launch_that_is_given_up_is_stopped_again(one: Site) -> None:
    one.script("warming", WARMING)
    process = one.begin("serve", "warming")
    with ended(process):
        until(process, "not ready yet: a completion ends in status 503")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert gone(one, opened(one, "warming"))
    assert one.closed("warming")["how"] == "cancelled"
    done = one.mesh("serve", "warming", "--ready-s", "1")
    assert done.returncode == 3
    assert "not ready within 1 s: " in done.stderr
    assert gone(one, opened(one, "warming"))
    assert one.closed("warming")["how"] == "not-ready"


def test_engine_that_dies_is_told_with_its_last_words(one: Site) -> None:
    one.script("dying", DYING)
    done = one.mesh("serve", "dying", "--json")
    assert "the engine ended (status 3): no such model file" in json.loads(done.stdout)["error"]["message"]
    assert one.closed("dying")["how"] == "not-ready"


def test_llama_cpp_backend_is_launched_from_a_pinned_recipe(one: Site) -> None:
    """The gateway with a GGUF model in a llama.cpp child: its file is pinned, and every byte checked on the node."""
    model = write_tiny_gguf(one.folder / "tiny.gguf")
    one.reference("gguf")
    recipe = one.folder / "recipes" / "gguf" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"reference"', f'"{model}"'))
    assert one.mesh("pin", "gguf").returncode == 0
    done = one.mesh("serve", "gguf", "--stage", "force", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "tiny"
    assert one.status("gguf")["nodes"][0]["model"] == "tiny"
    assert one.mesh("stop", "gguf").returncode == 0
    assert gone(one, json.loads(done.stdout)["run"])
    pinned = re.search(r"sha256:([0-9a-f]{64})", recipe.read_text())
    assert pinned is not None
    recipe.write_text(recipe.read_text().replace(pinned[1], "0" * 64))
    refused = json.loads(one.mesh("serve", "gguf", "--stage", "force", "--json").stdout)["error"]
    assert refused["code"] == "ranks-differ"
    assert "weights: tiny.gguf on n0 is" in refused["message"]


def test_engine_that_dies_while_it_is_followed_closes_its_run(one: Site) -> None:
    from tests.sshd.hosts import kill_run

    one.reference()
    process = one.begin("serve", "ref", "--follow", "--probe-s", "1")
    assert process.stderr is not None
    with ended(process):
        until(process, "ready: ")
        run = opened(one, "ref")
        kill_run(run)
        rest = process.stderr.read()
        assert process.wait() == 3, rest
    assert "the engine died on n0" in rest
    assert one.closed("ref")["how"] == "died"
    assert gone(one, run)


def test_rc_01_engine_that_runs_otherwise_than_asked_is_stopped_again_unless_allowed(one: Site) -> None:
    said = (
        "print(\"INFO non-default args: {'max_model_len': 2048}\", flush=True)\n"
        'print("WARNING Unknown vLLM environment variable detected: VLLM_NOPE", flush=True)\n'
    )
    (one.folder / "engine.py").write_text(said + STUBBORN.replace("if os.fork() == 0:", "if False:"))
    (one.folder / "model").mkdir()
    (one.folder / "model" / "config.json").write_bytes(b"{}")
    text = (
        f'engine = "vllm"\ndeploy = "tmux"\nmodel = "{one.folder}/model"\nserved_model_name = "reference"\n'
        f"entrypoint = {json.dumps([sys.executable, str(one.folder / 'engine.py')])}\n"
        'host = "127.0.0.1"\nargs = ["--max-model-len", "4096"]\n'
    )
    one.recipe("other", text)
    message = json.loads(one.mesh("serve", "other", "--json").stdout)["error"]["message"]
    assert "--max-model-len: asked for '4096', the engine runs with '2048'" in message
    assert "env.VLLM_NOPE: the engine says that it does not know it" in message
    assert one.closed("other")["verified"] is True
    one.recipe("other", text + 'allowed_levers = ["--max-model-len", "VLLM_NOPE"]\n')
    told = json.loads(one.mesh("serve", "other", "--json").stdout)
    record = load_record(one.folder / told["record"])
    assert record.fields["allowed_levers"] == ["--max-model-len", "VLLM_NOPE"]
    assert one.mesh("stop", "other", "--drain-s", "1").returncode == 0


def test_words_of_the_login_shell_are_nobody_elses_and_one_that_ends_is_told(one: Site) -> None:
    """Root's own shell may be another than bash, and then says nothing; the node's server says it for it."""
    home = one.sshds[0].folder / "home"
    greeting = home / "greeting"
    config = one.sshds[0].folder / "sshd_config"
    config.write_text(config.read_text() + f'ForceCommand . {greeting}; eval "$SSH_ORIGINAL_COMMAND"\n')
    one.sshds[0].stop()
    one.sshds[0].start()
    greeting.write_text("echo hello; echo 7 warnings >&2; printf 'no end'; printf 'of it' >&2; cd /\n")
    one.reference()
    told = json.loads(one.mesh("serve", "ref", "--json").stdout)
    assert len(told["processes"]["n0"]) == 1
    assert one.status("ref")["state"] == "up"
    (node,) = json.loads(one.mesh("exec", "--json", "--", "echo one; echo two >&2; exit 4").stdout)["nodes"]
    assert (node["status"], node["out"], node["err"]) == (4, "one\n", "two\n")
    logs = one.mesh("logs", "ref", "--tail", "1")
    assert "hello" not in logs.stdout
    assert logs.stdout.startswith("n0: ")
    greeting.write_text("echo no such group; exit 0\n")
    status = one.status("ref")
    assert status["state"] == "inconclusive"
    assert status["why"] == "node n0: the login shell there ended before it ran anything: no such group"
    greeting.write_text("")
    assert one.mesh("stop", "ref").returncode == 0
    assert gone(one, told["run"])


def test_port_that_is_taken_is_no_place_for_an_engine(one: Site) -> None:
    import socket

    one.reference()
    with socket.create_server(("127.0.0.1", one.port)):
        done = one.mesh("serve", "ref")
    assert f"port {one.port} is taken already" in done.stderr
    assert not (one.folder / "launches" / "ref" / "runs.jsonl").exists()


def test_stop_that_is_killed_leaves_the_run_open_and_can_be_run_again(one: Site) -> None:
    one.script("stubborn", STUBBORN)
    told = json.loads(one.mesh("serve", "stubborn", "--json").stdout)
    home = one.sshds[0].folder / "home"
    gate = shut(home)
    process = one.begin("stop", "stubborn", "--drain-s", "1")
    with ended(process):
        assert (home / "reached").read_text() == "reached\n"
        process.send_signal(signal.SIGKILL)
    gate.unlink()
    (home / "gate").write_text("")
    assert one.events("stubborn")[-1] == "stopping"
    assert one.mesh("stop", "stubborn", "--drain-s", "1").returncode == 0
    assert gone(one, told["run"])


def test_node_that_is_gone_leaves_the_run_open_and_inconclusive(one: Site) -> None:
    one.reference()
    told = json.loads(one.mesh("serve", "ref", "--json").stdout)
    one.sshds[0].stop()
    assert one.status("ref")["state"] == "inconclusive"
    stopped = one.mesh("stop", "ref", "--json")
    assert stopped.returncode == 3
    assert json.loads(stopped.stdout)["error"]["code"] == "node-failed"
    assert one.events("ref")[-1] == "stopping"
    one.sshds[0].start()
    assert one.mesh("stop", "ref").returncode == 0
    assert gone(one, told["run"])


def test_engine_that_was_killed_is_stale_and_its_port_with_another_model_differs(one: Site) -> None:
    from tests.sshd.hosts import kill_run

    one.reference()
    told = json.loads(one.mesh("serve", "ref", "--json").stdout)
    kill_run(told["run"])
    assert one.status("ref")["state"] == "stale"
    assert one.mesh("stop", "ref").returncode == 0
    assert one.closed("ref")["verified"] is True
