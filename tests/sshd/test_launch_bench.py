"""A launched serve measured over real sshd, and what is landed and told of it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from mesh.launch.bench_package import load_package
from tests.sshd.following import ended

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd.hosts import Site

# Counts words for tokens; streams four, but breaks off a prompt of fifty, refuses one of sixty, and leaves one of
# seventy without an end, which it notes in a file beside it.
COUNTING = """
import json, pathlib, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass
    def send(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.send(200, {"data": [{"id": "reference", "max_model_len": 100}]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = len(asked.get("prompt", "").split())
        if self.path == "/tokenize":
            return self.send(404, {}) if "--mute" in sys.argv else self.send(200, {"count": count})
        if not asked.get("stream"):
            return self.send(200, {"choices": [{"text": "x"}]})
        if count == 60:
            return self.send(429, {"error": {"message": "not so many words"}})
        self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
        for n in range(4):
            self.event({"choices": [{"text": "x", "finish_reason": None}]})
            if count == 70:
                pathlib.Path(__file__).with_suffix(".silent").touch()
                time.sleep(3600)
            if count == 50 and n == 2:
                self.close_connection = True
                return
        self.event({"choices": [{"text": "", "finish_reason": "length"}]})
        self.event("[DONE]")
        self.wfile.write(b"0\\r\\n\\r\\n")
    def event(self, told):
        data = b"data: " + (told if isinstance(told, str) else json.dumps(told)).encode() + b"\\n\\n"
        self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data)); self.wfile.flush()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
"""


def bench(site: Site, *argv: str, code: int = 0) -> Any:
    done = site.mesh("bench", *argv, "--json")
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


def parts(folder: Path) -> list[str]:
    return sorted(path.name.split("_", 2)[-1] for path in folder.iterdir())


def test_bench_of_a_gateway_lands_one_package_that_leads_to_the_launch(one: Site) -> None:
    one.reference()
    launched = json.loads(one.mesh("serve", "ref", "--json").stdout)
    plan = bench(one, "ref", "--depths", "300", "--dry-run")
    assert [cell["concurrency"] for cell in plan["cells"]] == [1, 2]
    reports = one.folder / "recipes" / "ref" / "reports"
    assert not reports.exists()
    told = bench(one, "ref", "--depths", "300,700", "--concurrency", "1,2", "--output-tokens", "8", "--label", "first")
    assert (told["ok"], told["drift"], told["unknown"]) == (True, [], [])
    assert [(cell["depth"], cell["concurrency"]) for cell in told["cells"]] == [(300, 1), (300, 2), (700, 1), (700, 2)]
    assert all(float(cell["ttft_ms"]) > 0 and float(cell["prefill_per_s"]) > 0 for cell in told["cells"])
    assert parts(reports) == ["first.json", "first.log", "first.manifest.json", "first.md", "first.recipe.toml"]
    package = load_package(one.folder / told["manifest"])
    assert package.manifest.launch_digest == launched["launch_digest"]
    assert package.manifest.nodes[0].program is not None
    assert {"system", "cores", "memory_kib"} <= package.manifest.nodes[0].machine.keys()
    requests = [request for cell in package.data.cells for request in cell.requests]
    assert {request.output_tokens for request in requests} == {8}
    assert [cell.requests[0].prompt_tokens for cell in package.data.cells] == [300, 300, 700, 700]
    recipe = one.folder / "recipes" / "ref" / "recipe.toml"
    was = recipe.read_bytes()
    recipe.write_bytes(was.replace(b"[env]", b'[env]\nNOTE = "1"'))
    told = bench(one, "ref", "--depths", "200", "--concurrency", "1", "--output-tokens", "2", "--direct")
    (drift,) = told["drift"]
    assert drift.startswith("recipe.toml: changed since the launch: env (")
    assert load_package(one.folder / told["manifest"]).path.with_name(
        f"{load_package(one.folder / told['manifest']).manifest.stem}.recipe.toml"
    ).read_bytes() == was  # fmt: skip
    assert one.mesh("stop", "ref").returncode == 0
    closed = one.mesh("bench", "ref")
    assert (closed.returncode, "no open run; the last was " in closed.stderr) == (3, True)


def test_cells_that_fail_are_named_and_unknown_figures_are_left_out(one: Site) -> None:
    one.script("counting", COUNTING)
    assert one.mesh("serve", "counting").returncode == 0
    told = bench(one, "counting", "--depths", "40,50,60,99", "--concurrency", "2", "--output-tokens", "4", code=10)
    good, broken, refused, long = told["cells"]
    assert float(good["ttft_ms"]) > 0
    assert not {"fault", "prefill_per_s", "decode_per_s", "output_per_s"} & good.keys()  # it counts no tokens
    assert broken["fault"].startswith("2 of 2 failed: an answer that broke off in a chunk")
    assert refused["fault"] == "2 of 2 failed: status 429: not so many words"
    assert long["fault"] == "skipped: needs 103 tokens, the model takes 100"
    assert all(cell.keys() == {"depth", "concurrency", "repetition", "fault"} for cell in (broken, refused, long))
    assert one.mesh("stop", "counting").returncode == 0


def test_line_that_is_cut_in_the_middle_is_named_in_each_cell_that_it_cost(one: Site) -> None:
    one.script("counting", COUNTING)
    assert one.mesh("serve", "counting").returncode == 0
    process = one.begin(
        "bench", "counting", "--depths", "40,70,80", "--output-tokens", "4", "--concurrency", "1", "--json"
    )
    assert process.stdout is not None
    silent = one.folder / "counting.silent"
    with ended(process):
        while process.poll() is None and not silent.exists():
            time.sleep(0.05)
        one.sshds[0].stop()
        told = json.loads(process.stdout.read())
        assert process.wait() == 10
    whole, cut, never = told["cells"]
    assert "fault" not in whole
    assert cut["fault"].startswith("1 of 1 failed: ")
    assert never["fault"].startswith("skipped: the engine is gone: ")
    assert told["unknown"][0].startswith("rank 0 on n0: ")
    assert load_package(one.folder / told["manifest"]).data.failed == 2
    one.sshds[0].start()
    assert one.mesh("stop", "counting", "--drain-s", "1").returncode == 0


def test_engine_without_a_tokenizer_cannot_be_measured(one: Site) -> None:
    one.script("mute", COUNTING, 'args = ["--mute"]')
    assert one.mesh("serve", "mute").returncode == 0
    error = bench(one, "mute", code=3)["error"]
    assert error["message"] == (
        "reference: no tokenizer is served, so no prompt can be measured: /tokenize answers 404"
    )
    assert not (one.folder / "recipes" / "mute" / "reports").exists()
    assert one.mesh("stop", "mute").returncode == 0


def test_run_that_does_not_exist_and_a_node_that_is_down_are_named(one: Site) -> None:
    one.reference()
    never = bench(one, "ref", code=3)["error"]["message"]
    assert never == "recipe ref: never launched from here: no ledger in launches; there are none"
    assert one.mesh("serve", "ref").returncode == 0
    wrong = one.mesh("logs", "ref", "--run-id", "2020")
    assert "run '2020': no such run; there are 2" in wrong.stderr
    one.sshds[0].stop()
    down = one.mesh("bench", "ref", "--depths", "64")
    assert (down.returncode, "mesh launch: node n0: " in down.stderr) == (3, True), down.stderr
    one.sshds[0].start()
    assert one.mesh("stop", "ref").returncode == 0
