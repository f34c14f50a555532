"""What runs, held to its launch record: what differs is drift, and what cannot be seen is unknown."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mesh.launch.record import HIDDEN, LaunchRecord
from mesh.launch.run_ledger import Run
from mesh.launch.running import Kept, Running, _take, observe_steps
from mesh.launch.ssh import Done
from mesh.schema.ids import ContentId

ARGV = ["/opt/engine", "serve", "~/models/m", "--port", "30000"]
ENVIRONMENT = {"OMP_NUM_THREADS": "4", "HF_TOKEN": HIDDEN}


def kept(**rank: Any) -> Kept:
    told = {"rank": 0, "node": "a", "argv": ARGV, "environment": ENVIRONMENT, "found": {}, **rank}
    record = LaunchRecord(b"", ContentId.of_bytes(b""), b"", {"ranks": [told]})
    return Kept(record, None, (), ())


def zeros(*parts: str) -> str:
    return base64.b64encode("\0".join(parts).encode() + b"\0").decode()


def process(words: list[str], environment: list[str], of: Kept | None = None) -> Running:
    seen = Running("a", 0)
    out = f"{zeros(*words)}\n{zeros(*environment)}\n"
    _take(seen, "engine's process", Done(0, out, ""), of or kept())
    return seen


def container(of: Kept, image: str, args: list[str], environment: list[str], path: str = ARGV[0]) -> Running:
    seen = Running("a", 0)
    lines = [image, {"mesh.checksum": "c" * 12}, path, args, environment]
    _take(seen, "engine's container", Done(0, "\n".join(map(json.dumps, lines)) + "\n", ""), of)
    return seen


AS_LAUNCHED = ["/opt/engine", "serve", "/home/u/models/m", "--port", "30000"]
ITS_OWN = ["MESH_RUN=r", "OMP_NUM_THREADS=4", "HF_TOKEN=a secret", "PATH=/bin"]


@pytest.mark.parametrize("words", [AS_LAUNCHED, ["/usr/bin/python3", "/venv/bin/engine", *AS_LAUNCHED[1:]]])
def test_process_as_it_was_launched_has_no_drift(words: list[str]) -> None:
    seen = process(words, ITS_OWN)
    assert (seen.drift, seen.unknown) == ([], [])


def test_other_word_variable_or_lost_one_is_drift() -> None:
    seen = process([*AS_LAUNCHED[:4], "30001"], ["MESH_RUN=r", "OMP_NUM_THREADS=8"])
    assert seen.drift == [
        "command line: '30001', not '30000'",
        "environment: OMP_NUM_THREADS is '8', '4' was launched",
    ]
    assert process([*AS_LAUNCHED, "--more"], ITS_OWN).drift != []
    assert process(AS_LAUNCHED, ["MESH_RUN=r"]).drift == ["environment: OMP_NUM_THREADS is not set, '4' was launched"]


def test_process_that_renamed_itself_is_unknown_and_no_drift() -> None:
    seen = process(["VLLM::Engine", "", ""], ["", ""])
    assert seen.drift == []
    assert seen.unknown == [
        "command line: the engine calls itself 'VLLM::Engine'",
        "environment: the engine has written over it",
    ]
    assert process(AS_LAUNCHED, ITS_OWN, Kept(None, None, (), ())).unknown == ["nothing is recorded of this rank"]


def test_container_is_held_to_image_command_and_environment() -> None:
    image = "sha256:" + "d" * 64
    of = kept(found={"image": f'{image} ["x@{image}"]'}, argv=[*ARGV[:2], "m"])
    same = container(of, image, ["serve", "m"], ["OMP_NUM_THREADS=4", "HF_TOKEN=x"])
    assert (same.drift, same.unknown, same.image) == ([], [], image)
    assert same.labels == {"mesh.checksum": "c" * 12}
    other = container(of, "sha256:" + "e" * 64, ["serve", "other"], ["OMP_NUM_THREADS=4"])
    assert [line.partition(":")[0] for line in other.drift] == ["image", "command line"]
    # what [mods] adds runs in a shell, which gets the engine's words as one text
    assert container(of, image, ["-c", "x && exec y"], [], path="sh").drift == []
    seen = Running("a", 0)
    _take(seen, "engine's container", Done(0, "not json\n", ""), of)
    assert seen.unknown == ["engine's container: docker's answer is not understood"]


def test_other_program_is_drift() -> None:
    seen = Running("a", 0)
    of = kept(found={"program": "1\n2"})
    _take(seen, "program", Done(0, "1\n2\n", ""), of)
    assert (seen.drift, seen.program) == ([], "1")
    _take(seen, "program", Done(0, "1\n3\n", ""), of)
    assert seen.drift == ["program: the executable, or what is installed beside it, is another than was launched"]


def test_machine_is_told_by_what_its_node_says() -> None:
    seen = Running("a", 0)
    out = "system Linux 6\ncores 4\nprocessor \ngpu A, 80\ngpu B, 80\n"
    _take(seen, "machine", Done(0, out, ""), kept())
    assert seen.machine == {"system": "Linux 6", "cores": "4", "gpu": "A, 80; B, 80"}


@pytest.mark.parametrize(("deploy", "what"), [("tmux", "engine's process"), ("docker", "engine's container")])
def test_looks_are_of_each_rank(deploy: str, what: str) -> None:
    nodes = [{"name": name, "ssh_ip": "10.0.0.1", "rank": rank} for rank, name in enumerate("ab")]
    steps = observe_steps(Run("r", {"deploy": deploy, "nodes": nodes}), Kept(None, None, (), ()))
    assert [(step.node, step.what) for step in steps] == [
        ("a", "machine"), ("a", what), ("b", "machine"), ("b", what)
    ]  # fmt: skip
