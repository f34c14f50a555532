"""`mesh serve` on a model file whose chat template does harm, as an operator runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from tests.support.tiny_gguf import write_tiny_gguf

HOSTILE = """{% if messages[0].content == 'spin' %}
{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}
{% endif %}{{ 'a' * 10**10 }}"""


@pytest.mark.parametrize("said", ["spin", "hello"])
def test_a_hostile_template_costs_its_own_requests_and_no_more(tmp_path: Path, said: str) -> None:
    model = write_tiny_gguf(tmp_path / "hostile.gguf", template=HOSTILE)
    command = [sys.executable, "-m", "mesh.cli.main", "serve", "--gguf", str(model), "--name", "m", "--port", "0",
               "--state", str(tmp_path / "state"), "--json"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
                assert lines[-1], "mesh serve ended before it served"
            port = int(json.loads("".join(lines))["url"].rpartition(":")[2])
            body = {"model": "m", "messages": [{"role": "user", "content": said}], "max_tokens": 2}
            headers = {"Content-Type": "application/json"}
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                if said == "hello":
                    with connection.getresponse() as response:
                        error = json.loads(response.read())["error"]
                        assert (response.status, error["code"]) == (400, "template_error")
                with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as other:
                    plain = {"model": "m", "prompt": "hello", "max_tokens": 2}
                    other.request("POST", "/v1/completions", json.dumps(plain), headers)
                    with other.getresponse() as response:
                        assert response.status == 200
                children = psutil.Process(process.pid).children()
                assert len(children) == 2
                assert psutil.Process(process.pid).memory_info().rss < 1 << 30
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            assert not any(child.is_running() for child in children)
        finally:
            process.kill()
