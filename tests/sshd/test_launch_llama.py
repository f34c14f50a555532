"""llama.cpp's own server, from a recipe: the code of `llama-server` as the wheel that we decode with has it in it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from mesh.launch.bench_package import load_package
from tests.support.tiny_gguf import write_tiny_gguf

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

SERVER = """
import sys, threading
import xllamacpp
words = dict(zip(sys.argv, sys.argv[1:]))
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = words["--model"], [words["--host"]], int(words["--port"])
params.model_alias, params.n_ctx = {words["--alias"]}, int(words["--ctx-size"])
params.n_parallel, params.warmup = 2, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
threading.Event().wait()
"""


def test_llama_server_is_launched_measured_and_gone(one: Site) -> None:
    model = write_tiny_gguf(one.folder / "tiny.gguf")
    (one.folder / "server.py").write_text(SERVER)
    one.recipe(
        "llama",
        f'engine = "llama.cpp"\nengine_version = "11549"\ndeploy = "tmux"\nmodel = "{model}"\nhost = "127.0.0.1"\n'
        f"entrypoint = {json.dumps([sys.executable, str(one.folder / 'server.py')])}\n"
        'served_model_name = "tiny"\nargs = ["--ctx-size", "1024"]\n',
    )
    done = one.mesh("serve", "llama", "--json")
    assert done.returncode == 0, done.stderr
    status = one.status("llama")
    assert (status["state"], status["nodes"][0]["model"]) == ("up", "tiny")
    shape = ("--depths", "64", "--concurrency", "1", "--output-tokens", "16", "--seed", "the same each time")
    measured = one.mesh("bench", "llama", *shape, "--json")
    assert measured.returncode == 0, measured.stderr
    bench = load_package(one.folder / json.loads(measured.stdout)["manifest"])
    assert bench.manifest.launch_digest == json.loads(done.stdout)["launch_digest"]
    assert bench.data.engine_version is not None
    (cell,) = bench.data.cells
    assert [(each.prompt_tokens, each.output_tokens) for each in cell.requests] == [(64, 16)]
    assert one.mesh("stop", "llama").returncode == 0
    assert one.closed("llama")["verified"] is True
