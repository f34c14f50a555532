"""RC-01, RC-02, RC-04 and RC-06 at the launch itself, over real sshd, with engines that are programs of the tests'."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mesh.launch.record import load_record
from tests.launch.foreign_examples import COMPOSE
from tests.launch.recipes import COMMIT, DIGEST

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

# A container of it is a process; it says what it was started with as vLLM does.
ENGINE = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
words = dict(zip(sys.argv, sys.argv[1:]))
print(f"INFO non-default args: {{'max_num_seqs': {words['--max-num-seqs']}}}", flush=True)
class H(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"data": [{"id": "org/old"}], "choices": [{"text": "x"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
    do_GET = do_POST = answer
HTTPServer(("127.0.0.1", int(words["--port"])), H).serve_forever()
"""
DOCKER = r"""#!/bin/sh
cd "$HOME"
case "$1 $2" in
  "image inspect") cat image ;;
  "run -d")
    for a in "$@"; do case "$a" in mesh.run=*) export MESH_RUN="${a#mesh.run=}" ;; esac; done
    setsid PYTHON engine.py "$@" >engine.log 2>&1 </dev/null &
    echo $! >running; echo c0ffee ;;
  "stop -t"|"rm -f") [ -e running ] && kill "$(cat running)"; rm -f running ;;
  "ps -q"|"ps -aq") [ -e running ] && echo c0ffee ;;
  "ps -a") [ -e running ] && echo "c0ffee running" ;;
  "logs "*) cat engine.log ;;
esac
exit 0
"""
IMAGE = f"registry.example/runtime@{DIGEST}"
COMPOSED = f"""
services:
  engine:
    image: ${{IMAGE:-{IMAGE}}}
    environment: {{LEVEL: "${{LEVEL:-1}}"}}
    command: vllm serve ${{MODEL:-org/new}} --host ${{BIND:-127.0.0.1}} --max-num-seqs ${{SEQS:-6}} --seed 7
"""
ENV = "MODEL=org/old\nSEQS=12\nVLLM_ENGINE_READY_TIMEOUT_S=3600\n"


def equip(home: Path, image: str) -> None:
    """Docker, the image and the model."""
    (home / "bin" / "docker").write_text(DOCKER.replace("PYTHON", sys.executable))
    (home / "bin" / "docker").chmod(0o755)
    (home / "engine.py").write_text(ENGINE)
    (home / "image").write_text(f"{image}\n")
    model = home / ".cache" / "huggingface" / "hub" / "models--org--old"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "snapshots" / COMMIT / "config.json").write_bytes(b"{}")


def test_rc_06_compose_file_with_its_env_is_launched_and_each_value_in_force_has_its_origin(one: Site) -> None:
    equip(one.sshds[0].folder / "home", "sha256:1 []")
    (one.folder / "server.yaml").write_text(COMPOSED)
    (one.folder / "x.env").write_text(ENV)
    imported = one.mesh("import", "server.yaml", "--env-file", "x.env", "--out", "recipes")
    assert "VLLM_ENGINE_READY_TIMEOUT_S: '3600': set but unused" in imported.stdout
    done = one.mesh("serve", "server", "--json")
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout)
    (told,) = json.loads(one.mesh("report", "server", "--json").stdout)["recipes"]
    found = {each["name"]: (each["value"], each["origin"]) for each in told["settings"]}
    assert len(found) == len(told["settings"])
    assert {name: found[name] for name in ("model", "image", "host", "max_num_seqs", "seed", "env.LEVEL", "port")} == {
        "model": ("org/old", "x.env: MODEL"),
        "image": (IMAGE, "server.yaml, default"),
        "host": ("127.0.0.1", "server.yaml, default"),
        "max_num_seqs": ("12", "x.env: SEQS"),
        "seed": ("7", "server.yaml"),
        "env.LEVEL": ("1", "server.yaml, default"),
        "port": (str(one.port), "the launcher"),
    }
    assert "env.VLLM_ENGINE_READY_TIMEOUT_S" not in found
    assert "server: max_num_seqs = 12 (x.env: SEQS)" in one.mesh("report", "server").stdout
    record = load_record(one.folder / launched["record"])
    (rank,) = record.fields["ranks"]
    assert record.digest.text == launched["launch_digest"]  # what a gateway's receipts name: of values, and no file
    assert rank["argv"][rank["argv"].index("--max-num-seqs") + 1] == "12"
    assert rank["environment"]["LEVEL"] == "1"
    assert one.mesh("stop", "server", "--drain-s", "1").returncode == 0


def test_rc_04_deployment_that_is_not_consistent_is_not_launched(one: Site) -> None:
    """A floating tag and a token that was never filled in: it becomes a recipe, and that is refused."""
    (one.folder / "compose.yaml").write_text(COMPOSE)
    assert one.mesh("import", "compose.yaml", "--out", "recipes").returncode == 10
    done = one.mesh("serve", "compose")
    assert done.returncode == 3
    assert "error: docker_image: org/sglang:latest: the tag latest floats" in done.stderr
    assert "error: env.HF_TOKEN: '<secret>' stands for a value that was never filled in" in done.stderr
    assert "breaks its contract, so nothing is launched" in done.stderr
    assert not (one.folder / "launches").exists()


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ('env = { VLLM_ATTENTION_BACKEND = "FLEX_ATTENTION" }', "env.VLLM_ATTENTION_BACKEND: vllm 0.32.0 does not"),
        ('env = { VLLM_NOT_A_REAL_VAR = "1" }', "env.VLLM_NOT_A_REAL_VAR: vllm 0.32.0 does not read it"),
        (
            'args = ["--kv-cache-memory-bytes", "67108864"]\nenv = { VLLM_CPU_KVCACHE_SPACE = "4" }',
            "--kv-cache-memory-bytes: '--kv-cache-memory-bytes 67108864', and env.VLLM_CPU_KVCACHE_SPACE says '4': one",
        ),
    ],
    ids=["a-removed", "b-misspelt", "d-flag-and-variable"],
)
def test_rc_01_lever_that_nothing_reads_or_that_two_places_set_is_not_launched(
    one: Site, more: str, fault: str
) -> None:
    one.recipe(
        "r", f'engine = "vllm"\nengine_version = "0.32.0"\ndeploy = "tmux"\nmodel = "{one.folder}"\n{more}\n'
    )  # fmt: skip
    done = one.mesh("serve", "r")
    assert done.returncode == 3
    assert f"error: {fault}" in done.stderr
    assert not (one.folder / "launches").exists()


def test_rc_02_c_image_for_two_kinds_of_machine_is_two_images_and_a_launch_over_both_is_refused(two: Site) -> None:
    """One index by its digest, which each node has resolved for itself."""
    text = (
        f'engine = "vllm"\nmodel = "org/old"\nmodel_revision = "{COMMIT}"\ndocker_image = "{IMAGE}"\n'
        "required_nodes = 2\ntensor_parallel_size = 2\n"
    )
    two.recipe("r", text)
    for sshd, identity in zip(two.sshds, ("amd64", "arm64"), strict=True):
        equip(sshd.folder / "home", f"sha256:{identity} [{IMAGE}]")
    error: dict[str, Any] = json.loads(two.mesh("serve", "r", "--json").stdout)["error"]
    assert error["code"] == "ranks-differ"
    assert "sha256:arm64" in error["message"]
    assert not (two.folder / "launches" / "r" / "runs.jsonl").exists()
