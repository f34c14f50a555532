"""`mesh serve` on a GGUF model as an operator runs it: killed in mid-stream, started again, checked and replayed by the
commands."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from mesh.ledger import LedgerReader, check_sequence
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId, serve_id_from_text, steward_from_text
from tests.support.tiny_gguf import write_tiny_gguf

MESH = (sys.executable, "-m", "mesh.cli.main")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, seed=1)
    return path


class Server:
    """One `mesh serve`, ready to be asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "mesh serve ended before it served"
        self.told = json.loads("".join(lines))
        self.port = int(self.told["url"].rpartition(":")[2])

    @contextmanager
    def ask(self, **fields: Any) -> Iterator[HTTPResponse]:
        """The response to a chat, its body not read yet."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "tell"}], "ignore_eos": True} | fields
        headers = {"Content-Type": "application/json"}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            with connection.getresponse() as response:
                assert response.status == 200
                yield response

    def answer(self, **fields: Any) -> dict[str, Any]:
        with self.ask(**fields) as response:
            return json.loads(response.read())


@contextmanager
def serving(model: Path, state: Path, *flags: str) -> Iterator[Server]:
    command = [*MESH, "serve", "--gguf", str(model), "--state", str(state), "--port", "0", "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield Server(process)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
        finally:
            process.kill()


def mesh(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    done = subprocess.run([*MESH, *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def files_of(answer: dict[str, Any], state: Path, folder: Path) -> tuple[Path, Path]:
    """The receipt, exported by the command, and the disclosure that came with the answer."""
    name = answer["mesh"]["receipt_id"].removeprefix("b3:")[:12]
    receipt, disclosure = folder / f"{name}.cbor", folder / f"{name}.disclosure"
    code, _ = mesh("receipts", "export", answer["mesh"]["receipt_id"], "--state", state, "--out", receipt)
    assert code == 0
    packed = answer["mesh"]["disclosure"]
    disclosure.write_bytes(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    return receipt, disclosure


def test_serve_killed_in_mid_stream_is_sealed_by_the_next_start(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(model, state) as server:
        got = [server.answer(max_tokens=4)["mesh"]["receipt_id"] for _ in range(2)]
        with server.ask(max_tokens=1500, stream=True) as stream:
            cut = stream.headers["Mesh-Serve"]
            while b"content" not in stream.readline():
                pass
            server.process.kill()
            server.process.wait()
    with serving(model, state) as server:
        assert server.told["recovered"] == 1
        got.append(server.answer(max_tokens=4)["mesh"]["receipt_id"])
        # read beside the running gateway
        code, listed = mesh("receipts", "list", "--state", state)
        assert code == 0
        assert len(listed["receipts"]) == 4
    trust = {steward_from_text(server.told["steward"])}
    with LedgerReader.open(state / "ledger.sqlite") as reader:
        sealed = [verify(entry.envelope, RECEIPT_TYPE, trust) for entry in reader.receipts()]
        interrupted = reader.by_serve(serve_id_from_text(cut))
    check_sequence((one.value, one.id) for one in sealed)
    assert {ContentId.from_text(text) for text in got} <= {one.id for one in sealed}
    assert interrupted is not None
    assert [one.value.outcome.finish for one in sealed] == ["length", "length", "interrupted", "length"]
    assert sealed[2].id == interrupted.receipt_id
    assert mesh("verify", state, "--trust", server.told["steward"])[0] == 0


GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "mesh": {"disclose": True}}
SEEDED: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 7, "top_p": 0.95, "mesh": {"disclose": True}}


def test_replay_after_a_restart(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(model, state, "--cpu-watts", "10") as server:
        answers = [server.answer(**sampling) for sampling in (GREEDY, SEEDED)]
    trust = server.told["steward"]
    engine = ("--gguf", model, "--name", "tiny")
    for answer in answers:
        receipt, disclosure = files_of(answer, state, tmp_path)
        code, verdict = mesh("replay", receipt, disclosure, "--trust", trust, *engine)
        assert (code, verdict["verdict"], verdict["prompt"], verdict["output"]) == (0, "verified", "checked", "matches")


@pytest.mark.deep
def test_replay_on_other_engines(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(model, state) as server:
        answer = server.answer(**SEEDED)
    trust = server.told["steward"]
    receipt, disclosure = files_of(answer, state, tmp_path)
    engine = ("--gguf", model, "--name", "tiny")
    other = tmp_path / "other.gguf"
    write_tiny_gguf(other, seed=2)
    for flags, reason in (
        (("--gguf", other, "--name", "tiny"), "other-weights"),
        ((*engine, "--kv-type", "f16"), "other-recipe"),
        ((*engine, "--context", "512"), "other-settings"),
        (("--reference", "--name", "tiny"), "other-backend"),
    ):
        code, verdict = mesh("replay", receipt, disclosure, "--trust", trust, *flags)
        assert (code, verdict["verdict"], verdict["reason"]) == (11, "not-replayable", reason)
    # the recipe is the same by its digest, whatever its server is called
    code, verdict = mesh("replay", receipt, disclosure, "--trust", trust, "--gguf", model, "--name", "else")
    assert (code, verdict["verdict"]) == (0, "verified")
    code, verdict = mesh("replay", receipt, "--trust", trust, *engine)
    assert (code, verdict["reason"]) == (11, "no-opening")


def test_prompt_and_answer_are_in_no_file_of_the_state(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    secret = "a plain secret 8c1f"
    with serving(model, state) as server:
        answer = server.answer(max_tokens=40, messages=[{"role": "user", "content": secret}])
    text = answer["choices"][0]["message"]["content"].encode()
    assert len(text) > 8
    for path in state.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()
            assert text not in path.read_bytes()
