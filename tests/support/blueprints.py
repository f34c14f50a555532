"""Blueprints as an operator makes them: keys, a certificate, a list of revocations, signed files, by the commands."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

MESH = (sys.executable, "-m", "mesh.cli.main")
LATER = "2100-01-01T00:00:00Z"


def mesh(*arguments: str | Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    words = [str(word) for word in arguments]
    words.insert(words.index("--") if "--" in words else len(words), "--json")  # what follows -- is for the engine
    done = subprocess.run(
        [*MESH, *words], capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def made(*arguments: str | Path) -> dict[str, Any]:
    code, told = mesh("blueprint", *arguments)
    assert code == 0, told
    return told


@dataclass(frozen=True)
class Signers:
    """A root, a signer that it vouches for, and its empty list, in `folder`."""

    folder: Path

    @classmethod
    def in_(cls, folder: Path) -> Signers:
        folder.mkdir(mode=0o700)
        for name in ("root", "signer"):
            made("keygen", "--out", folder / name)
        made("certify", "--key", folder / "root", "--subject", folder / "signer.pub", "--label", "a signer",
             "--not-after", LATER, "--out", folder / "cert")  # fmt: skip
        made("revoke", "--key", folder / "root", "--not-after", LATER, "--out", folder / "revoked")
        return cls(folder)

    @property
    def trusted(self) -> tuple[str | Path, ...]:
        return ("--blueprint-root", self.folder / "root.pub", "--blueprint-revoked", self.folder / "revoked")

    def sign(self, preview: Path, out: Path) -> str:
        """The blueprint's id."""
        told = made("sign", preview, "--key", self.folder / "signer", "--cert", self.folder / "cert", "--out", out)
        blueprint_id: str = told["blueprint_id"]
        return blueprint_id

    def build(self, out: Path, *flags: str | Path, last: tuple[str, ...] = ()) -> str:
        """A signed file; its id. What is `last` is for the engine."""
        preview = out.with_suffix(".preview")
        made("build", *flags, "--out", preview, *last)
        return self.sign(preview, out)


@dataclass
class Gate:
    """A gateway that runs."""

    port: int
    steward: str

    def ask(self, model: str, key: str | None = None, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": model, "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 24, **fields}
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            with connection.getresponse() as response:
                return response.status, json.loads(response.read())


@contextmanager
def serving(log: Path, *flags: str | Path) -> Iterator[Gate]:
    """`mesh serve` with these flags, from when it serves until it is told to end."""
    command = [*MESH, "serve", *map(str, flags), "--port", "0", "--json"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
                assert lines[-1], f"it ended before it served: {log.read_text()}"
            told = json.loads("".join(lines))
            assert "url" in told, (told, log.read_text())
            yield Gate(int(told["url"].rpartition(":")[2]), told["steward"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()


def kept(answer: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """The receipt of a disclosed answer, from the ledger in `folder`/state, and the disclosure, as files."""
    receipt, disclosure = folder / "receipt", folder / "disclosure"
    code, _ = mesh("receipts", "export", answer["mesh"]["receipt_id"], "--state", folder / "state", "--out", receipt)
    assert code == 0
    text = answer["mesh"]["disclosure"]
    disclosure.write_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return receipt, disclosure
