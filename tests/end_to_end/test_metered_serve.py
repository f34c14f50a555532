"""A gateway that is to measure what this machine cannot: its start and its receipts say so in one voice. EN-03."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

MESH = (sys.executable, "-m", "mesh.cli.main")


def served(state: Path, *flags: str) -> tuple[dict, str]:
    """The energy in the receipt of one serve, and what the gateway said."""
    command = [*MESH, "serve", "--state", str(state), "--port", "0", "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] not in ("}\n", ""):
                lines.append(process.stdout.readline())
            port = int(json.loads("".join(lines))["url"].rpartition(":")[2])
            body = json.dumps({"model": "reference", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                with connection.getresponse() as response:
                    assert response.status == 200
                    response.read()
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    listed = subprocess.run(
        [*MESH, "receipts", "show", "0", "--state", str(state), "--json"], capture_output=True, text=True, check=True
    )
    energy: dict = json.loads(listed.stdout)["receipt"]["energy"]
    return energy, said


@pytest.mark.parametrize("by", ["flags", "config"])
def test_gateway_that_cannot_measure_says_so_at_its_start_and_in_its_receipts(tmp_path: Path, by: str) -> None:
    (tmp_path / "tree").mkdir()
    flags = ["--reference", "--meter", f"rapl={tmp_path / 'tree'}"]
    if by == "config":
        (tmp_path / "mesh.toml").write_text('[meter]\nrapl = "tree"\n[[backend]]\nkind = "reference"\n')
        flags = ["--config", str(tmp_path / "mesh.toml")]
    energy, said = served(tmp_path / "state", *flags)
    assert (energy["basis"], energy["reason"], energy["sources"]) == ("absent", "no-zones", [])
    assert "uj" not in energy
    assert "energy of reference: absent while rapl (no-zones) cannot be read" in said
    assert "has no zones" in said


def test_gateway_without_a_meter_says_which_there_are(tmp_path: Path) -> None:
    energy, said = served(tmp_path / "state", "--reference")
    assert (energy["basis"], energy["reason"]) == ("absent", "no-meter")
    assert "energy: no meter; --meter measures" in said


def test_two_meters_of_one_processor_are_refused_before_anything_starts(tmp_path: Path) -> None:
    command = [*MESH, "serve", "--reference", "--meter", "rapl", "--cpu-watts", "5", "--state", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "both count" in done.stderr
    assert not (tmp_path / "s").exists()
