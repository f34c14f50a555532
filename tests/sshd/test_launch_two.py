"""Two nodes at once: docker's exact command lines, seen by a program of its name, and ranks that differ, refused."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mesh.launch.record import load_record
from tests.sshd.engines import MEETING

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

COMMIT = "1" * 40
DIGEST = "sha256:" + "a" * 64
# Writes its arguments down, and answers as docker does to what is asked of it; `ps` lists a container once one ran.
DOCKER = r"""#!/bin/sh
us=$(printf '\037'); line=; for a in "$@"; do line=$line$a$us; done; printf '%s\n' "$line" >>"$HOME/docker.log"
case "$1 $2" in
  "image inspect") cat "$HOME/image" ;;
  "run -d") touch "$HOME/running"; echo c0ffee ;;
  "rm -f") rm -f "$HOME/running" ;;
  "ps -q"|"ps -aq") [ -e "$HOME/running" ] && echo c0ffee ;;
  "ps -a") [ -e "$HOME/running" ] && echo "c0ffee running" ;;
esac
exit 0
"""


def equip(two: Site, image: str = DIGEST) -> None:
    """Docker, an image and a model on each node."""
    for sshd in two.sshds:
        shim = sshd.folder / "home" / "bin" / "docker"
        shim.write_text(DOCKER)
        shim.chmod(0o755)
        (sshd.folder / "home" / "image").write_text(f"{image} []\n")
        snapshot = cache(sshd.folder) / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_bytes(b"{}")


def cache(folder: Path) -> Path:
    return folder / "home" / ".cache" / "huggingface" / "hub" / "models--org--model"


def recipe(engine: str, nodes: int) -> str:
    return (
        f'engine = "{engine}"\nmodel = "org/model"\nmodel_revision = "{COMMIT}"\n'
        f'docker_image = "registry.example/img@{DIGEST}"\nrequired_nodes = {nodes}\ntensor_parallel_size = {nodes}\n'
        'shm_size = "1g"\n[env]\nWORDS = "a b"\n'
    )


def docker(two: Site, node: int) -> list[list[str]]:
    path = two.sshds[node].folder / "home" / "docker.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split("\037")[:-1] for line in lines]


def planned(two: Site, name: str) -> list[dict[str, Any]]:
    done = two.mesh("plan", name, "--json")
    return [step for step in json.loads(done.stdout)["steps"] if step["what"] == "start"]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_docker_is_given_what_the_plan_prints_and_every_container_is_removed(
    two: Site, engine: str, nodes: int
) -> None:
    """No engine is in the container, so it never answers: started on every node, it is stopped on every node."""
    equip(two)
    two.recipe("r", recipe(engine, nodes))
    done = two.mesh("serve", "r", "--ready-s", "1")
    assert "not ready within 1 s: nobody listens" in done.stderr, done.stderr
    assert two.closed("r")["verified"] is True
    run = json.loads((two.folder / "launches" / "r" / "runs.jsonl").read_text().splitlines()[0])["run"]
    for node, step in enumerate(planned(two, "r")):
        home = str(two.sshds[node].folder / "home")
        expected = shlex.split(step["command"].replace("DRY-RUN", run).replace('"$HOME"', home))[1:]
        calls = docker(two, node)
        assert [call for call in calls if call[0] == "run"] == [expected]
        assert next(call for call in calls if call[0] != "ps")[:2] == ["image", "inspect"]  # after who is there
        assert ["stop", "-t", "5", "c0ffee"] in calls
        assert ["rm", "-f", "c0ffee"] in calls
    assert any(call[0] == "run" for call in docker(two, 1)) == (nodes == 2)


def refused(two: Site) -> str:
    two.recipe("r", recipe("vllm", 2))
    done = two.mesh("serve", "r", "--json")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "ranks-differ", error
    assert not any(call[0] == "run" for node in (0, 1) for call in docker(two, node))
    assert not (two.folder / "launches" / "r" / "runs.jsonl").exists()
    return str(error["message"])


def test_rank_with_another_image_is_refused_before_any_starts(two: Site) -> None:
    equip(two)
    (two.sshds[1].folder / "home" / "image").write_text("sha256:other []\n")
    assert refused(two).startswith("image: rank 1 on n1 and rank 0 on n0: 'sha256:other []'")


def test_rank_with_another_model_file_is_refused_before_any_starts(two: Site) -> None:
    equip(two)
    (cache(two.sshds[1].folder) / "snapshots" / COMMIT / "config.json").write_bytes(b"[]")
    assert refused(two).startswith("weights: rank 1 on n1")


def test_rank_without_the_model_names_its_node_and_how_to_get_it(two: Site) -> None:
    equip(two)
    os.rename(cache(two.sshds[1].folder), cache(two.sshds[1].folder).with_name("gone"))
    two.recipe("r", recipe("vllm", 2))
    done = two.mesh("serve", "r")
    assert "look: n1: weights: ended in status 1: org/model: not in the model cache" in done.stderr


ENGINE = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
MEETING
if "--headless" in sys.argv:
    while True: time.sleep(60)
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "served"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
""".replace("MEETING", MEETING)


def test_ranks_start_together_and_a_stop_names_the_node_that_it_could_not_see(two: Site) -> None:
    from tests.sshd.hosts import listening, marked

    (two.folder / "engine.py").write_text(ENGINE)
    (two.folder / "model").mkdir()
    (two.folder / "model" / "config.json").write_bytes(b"{}")
    two.recipe(
        "r",
        f'engine = "vllm"\ndeploy = "tmux"\nmodel = "{two.folder}/model"\nserved_model_name = "served"\n'
        f"entrypoint = {json.dumps([sys.executable, str(two.folder / 'engine.py')])}\n"
        'host = "127.0.0.1"\nrequired_nodes = 2\ntensor_parallel_size = 2\n',
    )
    done = two.mesh("serve", "r", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(marked(told["run"])) == 2
    record = load_record(two.folder / told["record"])
    assert ["--headless" in rank["argv"] for rank in record.fields["ranks"]] == [False, True]
    assert two.status("r")["state"] == "up"
    two.sshds[1].stop()
    assert two.status("r")["state"] == "inconclusive"
    error = json.loads(two.mesh("stop", "r", "--json").stdout)["error"]
    assert error["code"] == "node-failed"
    assert "n1: node n1: [127.0.0.1]" in error["message"]
    assert "n0:" not in error["message"]
    assert two.events("r")[-1] == "stopping"
    two.sshds[1].start()
    assert two.mesh("stop", "r").returncode == 0
    assert two.closed("r")["verified"] is True
    assert not marked(told["run"])
    assert not listening(two.port)


# What an engine that is split over hosts does: the first answers nobody before the other has come, and it never does.
ALONE = """
import socket, sys, time
if "--headless" in sys.argv:
    while True: time.sleep(60)
with socket.create_server(("127.0.0.1", 0)) as meeting:
    meeting.accept()
"""


def test_pair_whose_second_host_never_comes_is_refused_in_its_time_and_leaves_nothing(two: Site) -> None:
    from tests.sshd.hosts import listening, marked

    (two.folder / "engine.py").write_text(ALONE)
    (two.folder / "model").mkdir()
    (two.folder / "model" / "config.json").write_bytes(b"{}")
    two.recipe(
        "r",
        f'engine = "vllm"\ndeploy = "tmux"\nmodel = "{two.folder}/model"\nserved_model_name = "served"\n'
        f"entrypoint = {json.dumps([sys.executable, str(two.folder / 'engine.py')])}\n"
        'host = "127.0.0.1"\nrequired_nodes = 2\npipeline_parallel_size = 2\n',
    )
    error = json.loads(two.mesh("serve", "r", "--ready-s", "1", "--json").stdout)["error"]
    assert error["message"].startswith("not ready within 1 s: nobody listens"), error
    assert two.closed("r")["verified"] is True
    run = json.loads((two.folder / "launches" / "r" / "runs.jsonl").read_text().splitlines()[0])["run"]
    assert not marked(run)
    assert not listening(two.port)


def test_node_that_is_down_is_named_and_nothing_starts(two: Site) -> None:
    equip(two)
    two.sshds[1].stop()
    two.recipe("r", recipe("vllm", 2))
    done = two.mesh("serve", "r", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "node-unreachable"
    assert all(call[0] == "ps" for call in docker(two, 0))  # who is there was asked, and no more
