"""Nodes and runs looked at: `runs`, `health`, `doctor`, `exec`, `logs` and `tmux` over real sshd."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import psutil

from tests.sshd.engines import MEETING
from tests.sshd.following import ended

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

# Serves `reference` on the head and nothing elsewhere, and says who it is: what several ranks of an engine are like.
RANKED = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
rank = sys.argv[sys.argv.index("--node-rank") + 1]
print(f"rank {rank} is up", flush=True)
MEETING
if rank != "0":
    while True: time.sleep(60)
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "reference"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
    do_GET = do_POST = answer
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
""".replace("MEETING", MEETING)


def ranked(site: Site, name: str = "both") -> dict[str, Any]:
    """A run over both nodes."""
    (site.folder / "engine.py").write_text(RANKED)
    (site.folder / "model").mkdir(exist_ok=True)
    (site.folder / "model" / "config.json").write_bytes(b"{}")
    site.recipe(
        name,
        f'engine = "vllm"\ndeploy = "tmux"\nmodel = "{site.folder}/model"\nserved_model_name = "reference"\n'
        f"entrypoint = {json.dumps([sys.executable, str(site.folder / 'engine.py')])}\n"
        'host = "127.0.0.1"\nrequired_nodes = 2\n',
    )
    done = site.mesh("serve", name, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def told(site: Site, *argv: str, code: int = 0) -> Any:
    done = site.mesh(argv[0], "--json", *argv[1:])
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


@contextmanager
def unwaited(run: str) -> Iterator[None]:
    """The run's engines are killed, and stay zombies meanwhile: nobody waits for them, as at times happens."""
    from tests.sshd.hosts import marked

    engines = [psutil.Process(pid) for pid in marked(run)]
    servers = [parent for engine in engines if (parent := engine.parent()) is not None]
    assert [server.name() for server in servers] == ["tmux: server"] * 2
    for server in servers:
        server.suspend()
    try:
        for engine in engines:
            engine.kill()
        yield
    finally:
        for server in servers:
            server.resume()


def levels(lines: list[dict[str, str]], node: str) -> dict[str, str]:
    return {line["check"]: line["level"] for line in lines if line["node"] == node}


def of(lines: list[dict[str, str]], check: str) -> list[dict[str, str]]:
    return [line for line in lines if line["check"] == check]


def test_run_of_two_nodes_is_listed_looked_at_read_and_told_from_a_dead_one(two: Site) -> None:
    run = ranked(two)["run"]
    (listed,) = told(two, "runs")["recipes"][0]["runs"]
    assert (listed["state"], listed["nodes"], listed["cluster"]) == ("up", ["n0", "n1"], "here")
    assert told(two, "runs", "--offline")["recipes"][0]["runs"][0]["state"] == "open"
    (cluster,) = told(two, "health", "--complete")["clusters"]
    assert cluster["up"] is True
    (seen,) = cluster["runs"]
    assert (seen["state"], seen["readiness"]) == ("up", "ready")
    assert [(node["node"], node["rank"], node["liveness"]) for node in seen["nodes"]] == [
        ("n0", 0, "alive"), ("n1", 1, "alive")
    ]  # fmt: skip
    logs = told(two, "logs", "both")
    assert [(one["node"], one["out"], one["status"]) for one in logs["nodes"]] == [
        ("n0", "rank 0 is up\n", 0), ("n1", "rank 1 is up\n", 0)
    ]  # fmt: skip
    assert two.mesh("logs", "both", "--node", "n1", "--tail", "1").stdout == "n1: rank 1 is up\n"
    assert "no rank of run" in two.mesh("logs", "both", "--node", "n9").stderr
    screens = told(two, "tmux", "both")
    assert all("dead 0" in one["out"] for one in screens["nodes"])
    assert f"tmux -L mesh-{run} attach -r" in screens["attach"]["n1"]
    following = two.begin("logs", "both", "--follow")
    assert following.stdout is not None
    assert following.stderr is not None
    with ended(following):
        assert {following.stdout.readline() for _ in range(2)} == {"n0: rank 0 is up\n", "n1: rank 1 is up\n"}
        with unwaited(run):
            ends = {following.stderr.readline() for _ in range(2)}
        assert ends == {"n0: the log has ended\n", "n1: the log has ended\n"}
        assert following.wait() == 3
    (dead,) = told(two, "runs", code=10)["recipes"][0]["runs"]
    assert dead["state"] == "stale"
    (cluster,) = told(two, "health", code=10)["clusters"]
    assert (cluster["up"], cluster["runs"][0]["readiness"]) == (True, "not-ready")
    assert two.mesh("stop", "both", "--drain-s", "1").returncode == 0
    (closed,) = told(two, "runs")["recipes"][0]["runs"]
    assert (closed["state"], closed["how"], closed["verified"]) == ("closed", "stopped", True)


def test_logs_that_are_followed_end_well_where_the_run_is_stopped(one: Site) -> None:
    one.reference()
    assert one.mesh("serve", "ref").returncode == 0
    following = one.begin("logs", "ref", "--follow", "--tail", "1000")
    assert following.stdout is not None
    with ended(following):
        next(line for line in following.stdout if line.startswith("n0: ") and "serving reference" in line)
        assert one.mesh("stop", "ref").returncode == 0
        rest = following.stdout.read()
        assert following.wait() == 0, rest
    assert "n0: stopping: no new serves" in rest


def test_node_that_is_down_takes_its_cluster_down_and_its_run_is_inconclusive(two: Site) -> None:
    ranked(two)
    two.sshds[1].stop()
    fleet = told(two, "health", code=10)
    (cluster,) = fleet["clusters"]
    assert cluster["up"] is False
    assert [node["state"] for node in cluster["nodes"]] == ["reachable", "unreachable"]
    (run,) = cluster["runs"]
    assert (run["state"], run["readiness"]) == ("inconclusive", "unknown")
    assert run["why"] == "not looked at: the cluster is down without n1"
    assert told(two, "runs", code=10)["recipes"][0]["runs"][0]["state"] == "inconclusive"
    ends = told(two, "exec", "--", "echo here", code=3)["nodes"]
    assert ends[0]["out"] == "here\n"
    assert "n1" in ends[1]["lost"]
    assert "n1" in two.mesh("logs", "both").stderr
    lines = told(two, "doctor", code=10)["lines"]
    assert levels(lines, "n1") == {"ssh": "fail"}
    assert levels(lines, "n0")["clock"] == "ok"
    two.sshds[1].start()
    assert told(two, "health")["ok"] is True
    assert two.mesh("stop", "both", "--drain-s", "1").returncode == 0


def test_looks_go_on_and_are_kept_for_pages_to_show(one: Site) -> None:
    from mesh.launch.live import read_live

    watching = one.begin("health", "--watch", "--every", "1")
    assert watching.stdout is not None
    with ended(watching):
        lines = {watching.stdout.readline() for _ in range(2)}
        watching.send_signal(signal.SIGTERM)
        watching.stdout.read()
    assert lines == {"1 cluster, 1 up; 0 open runs, 0 ready\n"}
    live = read_live(one.folder / "launches")
    assert live is not None
    assert (live["every_s"], live["clusters"][0]["up"]) == (1, True)


def test_exec_runs_aliases_lines_and_programs_and_sums_up_their_ends(two: Site) -> None:
    config = two.folder / "launch.toml"
    config.write_text(config.read_text() + "[exec_aliases]\nwhere = 'echo $HOME'\n")
    homes = [one["out"].strip() for one in told(two, "exec", "where")["nodes"]]
    assert homes == [str(sshd.folder / "home") for sshd in two.sshds]
    assert [one["out"] for one in told(two, "exec", "--", "echo", "$HOME", "a  b")["nodes"]] == ["$HOME a  b\n"] * 2
    (Path(homes[1]) / "flag").write_text("")
    failed = told(two, "exec", "--", 'test ! -e "$HOME/flag" || exit 7', code=10)["nodes"]
    assert [one["status"] for one in failed] == [0, 7]
    assert "n1: status 7" in two.mesh("exec", "--", 'test ! -e "$HOME/flag" || exit 7').stderr
    plan = told(two, "exec", "--dry-run", "--node", "n1", "--", "touch", f"{two.folder}/a b")["steps"]
    assert plan == [{"node": "n1", "what": "exec", "command": f"touch '{two.folder}/a b'"}]
    assert not (two.folder / "a b").exists()
    assert two.mesh("exec", "--node", "n7", "true").returncode == 2
    late = told(two, "exec", "--node", "n0", "--timeout-s", "1", "--", "sleep 60", code=3)["nodes"]
    assert "no end of a command within 1 s" in late[0]["lost"]


def test_doctor_says_what_is_missing_changed_or_in_the_way_and_what_helps(one: Site) -> None:
    import socket

    shim = one.sshds[0].folder / "home" / "bin" / "docker"  # whatever this machine has
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    lines = told(one, "doctor")["lines"]
    assert levels(lines, "(here)") == dict.fromkeys(
        ("asyncssh", "ssh_user", "ssh_key_path", "known_hosts", "state_dir"), "ok"
    )
    there = levels(lines, "n0")
    assert {there[name] for name in ("ssh", "host key", "tools", "tmux", "clock")} == {"ok"}
    assert there["port"] == "ok"
    one.recipe("boxed", f'engine = "vllm"\nmodel = "a/b"\ndocker_image = "x@sha256:{"a" * 64}"\n')
    (docker,) = of(told(one, "doctor", "--recipe", "boxed", code=10)["lines"], "docker")
    assert (docker["level"], docker["found"]) == ("fail", "not there")
    assert "install docker" in docker["todo"]
    shim.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    (docker,) = of(told(one, "doctor")["lines"], "docker")
    assert (docker["level"], docker["found"]) == ("warn", "docker fails: Cannot connect to the Docker daemon")
    clock = one.sshds[0].folder / "home" / "bin" / "date"
    clock.write_text("#!/bin/sh\necho 1000000000.0\n")
    clock.chmod(0o755)
    with socket.create_server(("127.0.0.1", one.port)):
        lines = told(one, "doctor", code=10)["lines"]
    there = levels(lines, "n0")
    assert (there["clock"], there["port"]) == ("fail", "warn")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()
    pinned = one.folder / "known_hosts"
    pinned.write_text(f"[127.0.0.1]:{one.sshds[0].port} {other[0]} {other[1]}\n")
    assert levels(told(one, "doctor", code=10)["lines"], "n0") == {"host key": "fail"}
    pinned.write_text("")
    assert levels(told(one, "doctor", code=10)["lines"], "(here)")["known_hosts"] == "fail"
    (one.folder / "user").unlink()
    lines = told(one, "doctor", code=10)["lines"]
    assert {line["node"] for line in lines} == {"(here)"}
    shown = told(one, "doctor", "--dry-run")["steps"]
    assert {"node": "n0", "what": "clock", "command": "date +%s.%N"} in shown
