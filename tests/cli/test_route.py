from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mesh.cli.engines import add_engine_flags, spec_of
from mesh.cli.serve_plan import backend_spec
from mesh.cli.specs import VllmSpec
from mesh.cli.state import State
from mesh.gateway.config import MeshConfig
from mesh.ledger import Ledger
from tests.identity.identities import identity
from tests.support.vllm_route import MATRIX, Halves, write_halves

ROOT = Path(__file__).parents[2]


@pytest.fixture
def halves(tmp_path: Path) -> Halves:
    return write_halves(tmp_path / "models")


def serving(ranks: Path | None) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.support.fake_vllm", *(() if ranks is None else ("--ranks", str(ranks)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


@pytest.fixture
def reported(tmp_path: Path, halves: Halves) -> Path:
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps(halves.reports()))
    return path


@pytest.fixture
def url(reported: Path) -> Iterator[str]:
    yield from serving(reported)


@pytest.fixture
def unsplit() -> Iterator[str]:
    yield from serving(None)


def told(url: str, halves: Halves) -> tuple[object, ...]:
    return ("--vllm", url, "--weights", halves.whole, "--dtype", "float32", "--device", "cpu")


@pytest.mark.deep
def test_route_is_looked_at_certified_and_listed(mesh, url, unsplit, halves, tmp_path):
    state = ("--state", tmp_path / "state")
    result = mesh("route", "check", *told(url, halves))
    assert result.code == 0
    first, second, name = result.out.splitlines()
    assert first == "10.211.0.1: layers 0 to 1, holds a cut of it"
    assert second == "10.211.0.2: layers 1 to 2, holds a cut of it"
    looked = mesh("route", "check", *told(url, halves), "--json").json
    assert name == f"route {looked['route_digest']}, on one machine"
    assert [shard["shard_end"] for shard in looked["shards"]] == [1, 2]

    result = mesh("serve", *told(url, halves), "--route", "--port", "0", *state, "--json")
    assert (result.code, result.json["error"]["code"]) == (10, "recipe_not_certified")
    assert "unknown, expected certified" in result.json["error"]["message"]

    result = mesh("route", "certify", *told(url, halves), "--against", unsplit, *state)
    assert result.code == 0
    assert result.out.endswith(" over 2 nodes\n")
    (certified,) = mesh("route", "list", *state, "--json").json["certified"]
    assert certified["evidence"]["node_ids"] == ["10.211.0.1", "10.211.0.2"]
    digests = looked["shards"][0]["fingerprint"]
    assert mesh("route", "list", *state).out == (
        f"certified tiny sha256:{digests['runtime_recipe_digest']} of sha256:{digests['model_artifact_digest']}\n"
    )


@pytest.mark.deep
def test_route_that_is_not_one_model_is_refused_by_every_reason(mesh, url, halves, reported, tmp_path):
    off = write_halves(tmp_path / "off", off=MATRIX)
    reports = [halves.reports()[0], off.reports()[1] | {"address": "10.211.0.1"}]
    reported.write_text(json.dumps(reports))
    for server in serving(reported):
        result = mesh("route", "check", *told(server, halves))
        assert result.code == 10
        assert result.out.splitlines() == [
            f"shard 1: artifact: {MATRIX}: not the source's",
            "repeated-node: 10.211.0.1 counted more than once, expected once",
            "nodes: 1 distinct hosts, expected at least 2",
        ]
        found = mesh("route", "check", *told(server, halves), "--json").json
        assert (found["compatible"], len(found["mismatches"])) == (False, 3)
        state = ("--state", tmp_path / "state")
        result = mesh("route", "certify", *told(server, halves), *state, "--json")
        assert (result.code, result.json["error"]["code"]) == (10, "route_incompatible")
        assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("route", "check", "--vllm", "http://127.0.0.1:1"), "required: --weights"),
        (("route", "check", "--vllm", "nowhere", "--weights", "."), "is not a url"),
        (("serve", "--reference", "--route"), "--route does not apply to --reference"),
    ],
)
def test_what_is_no_route_is_wrong_usage(mesh, words, said):
    result = mesh(*words)
    assert result.code == 2
    assert said in result.err


def test_certification_beside_a_gateway_is_refused_before_anything_is_computed(mesh, tmp_path):
    state = State(tmp_path / "state")
    told = ("--vllm", "http://127.0.0.1:1", "--weights", tmp_path / "nowhere", "--state", state.root)
    with Ledger.open(state.ledger, steward=state.own_key().public) as ledger:
        ledger.register_recipe(identity()).result()
        result = mesh("route", "certify", *told, "--json")
        assert (result.code, result.json["error"]["code"]) == (3, "ledger-locked")
        said = result.json["error"]["message"]
        assert f"ledger.sqlite.lock: held by process {os.getpid()}: a gateway keeps its ledger" in said
        assert said.endswith("stop it, certify, start it")
        assert mesh("route", "list", "--state", state.root).out.startswith("dark ")


def test_hosts_that_never_come_are_given_up_after_the_time_that_was_given(mesh, halves, tmp_path):
    told = ("--vllm", "http://127.0.0.1:1", "--weights", halves.whole, "--start-s", "1")
    state = ("--state", tmp_path / "state")
    for words in (("check",), ("certify", *state)):
        result = mesh("route", *words, *told, "--json")
        assert (result.code, result.json["error"]["code"]) == (3, "engine-unavailable")
        assert result.json["error"]["message"].endswith("its hosts were not all there within 1 s")
    assert not (tmp_path / "state").exists()


def test_server_that_answers_nobody_yet_is_waited_for(mesh, halves):
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503 if len(asked) == 1 else 200)
            self.end_headers()
            self.wfile.write(b'{"version": 5}')

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            result = mesh("route", "check", "--vllm", url, "--weights", halves.whole, "--start-s", "600")
        finally:
            server.shutdown()
            serving.join()
    assert (result.code, asked) == (3, ["/version", "/version"])
    assert "/version names none: no vLLM" in result.err


def test_route_is_told_in_flags_and_in_a_file(tmp_path):
    path = tmp_path / "mesh.toml"
    path.write_text('[[backend]]\nkind = "vllm"\nurl = "http://127.0.0.1:1"\nweights = "m"\nroute = true\n')
    (backend,) = MeshConfig.load(path).backend
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    flagged = spec_of(parser.parse_args(["--vllm", "http://127.0.0.1:1", "--weights", str(tmp_path / "m"), "--route"]))
    assert isinstance(flagged, VllmSpec)
    assert flagged.route
    assert backend_spec(backend, tmp_path) == flagged
