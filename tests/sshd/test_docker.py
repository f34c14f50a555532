"""Docker over real SSH: an engine in a container that ends, one that serves, images that nodes do not have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.sshd.docker_shim import calls, install

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd.hosts import Site

COMMIT = "1" * 40
DIGEST = "sha256:" + "a" * 64
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "org/model"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *a): pass
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), H)
print("up", flush=True)
server.serve_forever()
"""


def home(site: Site, node: int = 0) -> Path:
    return site.folder / f"node{node}" / "home"


@pytest.fixture
def docked(two: Site) -> Iterator[Site]:
    """Docker, the image and the model on both nodes."""
    for node, sshd in enumerate(two.sshds):
        install(sshd.folder / "home")
        (home(two, node) / "image").write_text("sha256:1 []\n")
        snapshot = home(two, node) / ".cache/huggingface/hub/models--org--model/snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_bytes(b"{}")
    two.recipe("r", recipe(2))
    yield two
    if (home(two) / "server").exists():
        subprocess.run(
            ["kill", "-9", (home(two) / "server").read_text().strip()], stderr=subprocess.DEVNULL, check=False
        )


def recipe(nodes: int, engine: str = "vllm") -> str:
    return (
        f'engine = "{engine}"\nmodel = "org/model"\nmodel_revision = "{COMMIT}"\n'
        f'docker_image = "registry.example/img@{DIGEST}"\nrequired_nodes = {nodes}\ntensor_parallel_size = {nodes}\n'
    )


def of(site: Site, node: int, kind: str) -> list[list[str]]:
    return [call for call in calls(home(site, node)) if call[0] == kind]


@pytest.mark.parametrize(("node", "rank"), [(0, 0), (1, 1)])
def test_container_that_ended_is_noticed_while_the_port_is_merely_silent(docked: Site, node: int, rank: int) -> None:
    """Half an hour is allowed for a start; a container that is dead is no start, on whichever node it is."""
    (home(docked, node) / "exits").write_text("137")
    (home(docked, node) / "log").write_text("loading\nRuntimeError: no such model\n")
    error = json.loads(docked.mesh("serve", "r", "--json").stdout)["error"]
    assert error["code"] == "node-failed"
    assert error["message"] == (
        f"start: n{node}: its container ended (status 137): RuntimeError: no such model"
    )  # fmt: skip
    assert ["logs", "--tail", "20", f"mesh-r-{rank}"] in calls(home(docked, node))
    assert docked.closed("r")["how"] == "not-ready"
    assert docked.closed("r")["verified"] is True
    for one in (0, 1):
        assert of(docked, one, "rm") == [["rm", "-f", f"mesh-r-{one}"]]
        assert list((home(docked, one) / "containers").iterdir()) == []


def test_container_that_is_taken_away_is_noticed(docked: Site) -> None:
    (home(docked, 1) / "bin" / "docker").write_text(
        (home(docked, 1) / "bin" / "docker").read_text().replace('echo "$id" ;;', 'echo "$id"; rm "containers/$id" ;;')
        .replace('<"containers/$last" || exit 1', '<"containers/$last" || { echo "No such object" >&2; exit 1; }')
    )  # fmt: skip
    error = json.loads(docked.mesh("serve", "r", "--json").stdout)["error"]
    assert error["message"].startswith("start: n1: its container is gone")


def test_run_in_containers_is_up_then_stale_then_stopped_and_swept(docked: Site) -> None:
    """What answers stands for the engine; that its container runs is docker's word, which nobody else could give."""
    docked.recipe("r", recipe(1, "sglang"))
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(docked.port)], stdout=subprocess.PIPE, text=True)
    run_before_up = home(docked) / "bin" / "docker"
    try:
        assert server.stdout is not None
        server.stdout.readline()
        done = docked.mesh("serve", "r", "--json")
        # the port is somebody else's before the launch: refused, and nothing is started
        assert f"port {docked.port} is taken already" in json.loads(done.stdout)["error"]["message"]
        assert of(docked, 0, "run") == []
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    # a container that starts the server as a program of its own, outside the run's environment
    (docked.folder / "server.py").write_text(SERVER)
    start = (
        f"env -u MESH_RUN setsid {sys.executable} {docked.folder}/server.py {docked.port} >up 2>&1 & echo $! >server"
    )
    text = run_before_up.read_text().replace('    echo "$id" ;;', f'    {start}\n    echo "$id" ;;')
    text = text.replace('"rm -f")', '"rm -f") kill -9 "$(cat server)";')
    run_before_up.write_text(text)
    told: dict[str, Any] = json.loads(docked.mesh("serve", "r", "--json").stdout)
    assert told["model"] == "org/model"
    status = docked.status("r")
    assert (status["state"], status["nodes"][0]["process"]) == ("up", "alive")
    assert status["nodes"][0]["detail"].startswith("1 containers of the run")
    stopped = docked.mesh("stop", "r")
    assert stopped.returncode == 0, stopped.stderr
    assert of(docked, 0, "stop") == [["stop", "-t", "20", "mesh-r-0"]]
    assert docked.status("r")["state"] == "stopped"


def test_stop_says_which_node_docker_cannot_be_asked_on(docked: Site) -> None:
    assert docked.mesh("serve", "r", "--no-wait").returncode == 0
    (home(docked, 1) / "fail-ps").write_text("Cannot connect to the Docker daemon\n")
    error = json.loads(docked.mesh("stop", "r", "--drain-s", "1", "--verify-s", "1", "--json").stdout)["error"]
    assert "stays open: n1: could not check for a container: Cannot connect to the Docker daemon" in error["message"]
    assert "n0: " not in error["message"]
    assert docked.status("r")["state"] == "inconclusive"
    (home(docked, 1) / "fail-ps").unlink()
    assert docked.mesh("stop", "r").returncode == 0


def test_image_of_ours_that_a_node_lacks_or_has_otherwise_is_refused_before_any_starts(docked: Site) -> None:
    docked.recipe("r", recipe(2).replace(f'"registry.example/img@{DIGEST}"', '"eng"'))
    folder = docked.folder / "docker-images" / "r"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM base\n")
    for node in (0, 1):
        (home(docked, node) / "image").unlink()
    done = docked.mesh("serve", "r")
    assert "n0: image content: ended in status 1: eng:" in done.stderr
    assert "not on this node: mesh launch image build, or copy" in done.stderr
    for node in ("n0", "n1"):
        assert docked.mesh("image", "build", "r", "--node", node).returncode == 0
    done = docked.mesh("serve", "r", "--json")  # two builds of one folder are two images
    assert json.loads(done.stdout)["error"]["code"] == "ranks-differ"
    assert [of(docked, node, "run") for node in (0, 1)] == [[], []]


def test_rc_02_image_that_vanished_is_named_with_when_it_was_last_seen(docked: Site) -> None:
    docked.recipe("r", recipe(1))
    (home(docked) / "exits").write_text("1")
    docked.mesh("serve", "r")  # the image was there, whatever became of its engine
    (home(docked) / "image").unlink()
    shim = home(docked) / "bin" / "docker"
    words = "Error response from daemon: manifest for registry.example/img not found: manifest unknown"
    shim.write_text(shim.read_text().replace('"pull -q")', f'"pull -q") echo "{words}" >&2; exit 1;'))
    done = docked.mesh("serve", "r")
    assert f"prepare: n0: image gone: registry.example/img@{DIGEST}, last seen 20" in done.stderr
    assert "on n0 as sha256:1 []" in done.stderr
    assert "Traceback" not in done.stderr
