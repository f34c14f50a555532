"""Staging and marks, by the commands that nodes run, in this machine's own sh."""

from __future__ import annotations

import os
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from mesh.launch.commands import compose_steps, free_space_step, gid_step, placeholder_step
from mesh.launch.config import Node
from mesh.launch.marks import SAMPLED_OVER_BYTES, listing
from mesh.launch.recipe import ComposedModel, Mount
from mesh.launch.staging import LEDGER, SAMPLE_BYTES, SAMPLES, mirror_command, weights_step
from tests.launch.recipes import COMMIT, recipe_file

NODE = Node(name="a", ssh_ip="h", rank=0)
LARGE = SAMPLE_BYTES * (SAMPLES + 4)


def sh(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A model cache as the hub's client leaves it: blobs, and a snapshot of links."""
    root = tmp_path / "cache" / "hub" / "models--org--model"
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, data in (("config.json", b"{}"), ("model.safetensors", bytes(LARGE))):
        (root / "blobs" / name).write_bytes(data)
        (snapshot / name).symlink_to(root / "blobs" / name)
    return tmp_path / "cache"


def staged(cache: Path, mirror: Path, *, full: bool = False) -> subprocess.CompletedProcess[str]:
    return sh(mirror_command(str(cache), str(mirror), "org/model", None, full=full), cache)


def test_unchanged_repository_is_copied_once(cache: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "my mirror"
    first = staged(cache, mirror)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == "copied config.json\ncopied model.safetensors\n"
    assert staged(cache, mirror).stdout == ""
    copy = mirror / "hub" / "models--org--model" / "snapshots" / COMMIT / "model.safetensors"
    assert copy.read_bytes() == bytes(LARGE)
    assert not copy.is_symlink()


def test_change_of_the_same_size_and_time_in_the_mirror_is_seen_and_mended(cache: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "m"
    staged(cache, mirror)
    copy = mirror / "hub" / "models--org--model" / "snapshots" / COMMIT / "model.safetensors"
    before = copy.stat()
    copy.write_bytes(b"\x01" + bytes(LARGE - 1))
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert staged(cache, mirror).stdout == "copied model.safetensors\n"
    assert copy.read_bytes() == bytes(LARGE)


def test_full_check_sees_what_samples_do_not(cache: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "m"
    staged(cache, mirror)
    copy = mirror / "hub" / "models--org--model" / "snapshots" / COMMIT / "model.safetensors"
    data = bytearray(LARGE)
    data[4 * SAMPLE_BYTES] = 1  # of twenty blocks the fifth lies between two samples
    copy.write_bytes(data)
    assert staged(cache, mirror).stdout == ""
    assert staged(cache, mirror, full=True).stdout == "copied model.safetensors\n"


def test_hand_staged_tree_without_a_source_is_adopted_and_held_to_its_ledger(cache: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "m"
    staged(cache, mirror)
    (mirror / "hub" / LEDGER).unlink()
    nothing = tmp_path / "nothing"
    assert staged(nothing, mirror).stdout == "adopted\n"
    config = mirror / "hub" / "models--org--model" / "snapshots" / COMMIT / "config.json"
    config.write_bytes(b"[]")
    done = staged(nothing, mirror)
    assert done.returncode == 1
    assert "org/model/config.json: changed in the mirror, and there is no source" in done.stderr


def test_repository_that_is_nowhere_says_how_to_get_it(tmp_path: Path) -> None:
    done = staged(tmp_path / "no", tmp_path / "m")
    assert done.returncode == 1
    assert "huggingface-cli download org/model" in done.stderr


def test_marks_are_of_every_file_and_differ_with_one_byte(cache: Path) -> None:
    recipe = recipe_file('engine = "vllm"\nmodel = "org/model"\n').recipe
    step = weights_step(NODE, recipe, str(cache))
    assert step is not None
    lines = sh(step.command, cache).stdout.splitlines()
    assert lines[0] == f"{sha256(b'{}').hexdigest()} config.json"
    (cache / "hub" / "models--org--model" / "blobs" / "model.safetensors").write_bytes(bytes(LARGE - 1) + b"\x01")
    assert sh(step.command, cache).stdout.splitlines()[1] != lines[1]


def test_marks_of_a_local_file_and_of_one_that_is_not_there(tmp_path: Path) -> None:
    model = tmp_path / "a b.gguf"
    model.write_bytes(b"GGUF")
    recipe = recipe_file(f'engine = "llama.cpp"\nmodel = "{model}"\n').recipe
    step = weights_step(NODE, recipe, "/none")
    assert step is not None
    assert sh(step.command, tmp_path).stdout == f"{sha256(b'GGUF').hexdigest()} a b.gguf\n"
    model.unlink()
    done = sh(step.command, tmp_path)
    assert (done.returncode, done.stderr) == (1, f"{model}: not there\n")


def test_free_space_is_a_gate(tmp_path: Path) -> None:
    folder = str(tmp_path / "not" / "yet")
    assert sh(free_space_step(NODE, folder, "0G").command, tmp_path).returncode == 0
    done = sh(free_space_step(NODE, folder, "999999T").command, tmp_path)
    assert done.returncode == 1
    assert "KiB free" in done.stderr
    assert sh(free_space_step(NODE, folder, "101%").command, tmp_path).returncode == 1


def test_node_without_a_fabric_says_so(tmp_path: Path) -> None:
    assert "no RoCE v2 entry" in sh(gid_step(NODE).command, tmp_path).stderr


def test_placeholder_is_the_folder_as_the_container_sees_it(cache: Path) -> None:
    mount = Mount(repo="org/model", container="draft")
    done = sh(placeholder_step(NODE, mount, str(cache), "/root/.cache/huggingface").command, cache)
    assert done.stdout == f"/root/.cache/huggingface/hub/models--org--model/snapshots/{COMMIT}\n"
    missing = sh(placeholder_step(NODE, Mount(repo="org/x", container="d"), str(cache), "/c").command, cache)
    assert "huggingface-cli download org/x" in missing.stderr


def test_composed_folder_is_links_generated_files_and_later_sources_win(cache: Path, tmp_path: Path) -> None:
    local = Path("/tmp") / f"mesh-test-{os.getpid()}"
    composed = ComposedModel.model_validate(
        {
            "mount": "/root/model",
            "sources": [{"repo": "org/model"}, {"repo": "org/model", "glob": "*.json", "exclude": ["no.json"]}],
            "files": [{"name": "layers.json", "content": '{"a": 1}'}],
            "local_files": [{"host": str(local), "name": "model.safetensors"}],
        }
    )
    run = f"test-{os.getpid()}"
    local.write_bytes(b"local")
    folder = Path(f"/tmp/mesh-composed-{run}")
    try:
        (step,) = compose_steps(NODE, composed, run, str(cache))
        done = sh(step.command, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        inside = f"/root/.cache/huggingface/hub/models--org--model/snapshots/{COMMIT}/config.json"
        assert os.readlink(folder / "config.json") == inside
        assert (folder / "layers.json").read_text() == '{"a": 1}'
        assert (folder / "model.safetensors").read_bytes() == b"local"
    finally:
        local.unlink()
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.mark.parametrize("full", [False, True])
def test_marks_taken_here_are_those_that_nodes_take(cache: Path, full: bool) -> None:
    """Whatever the size, with links and folders in it, and in whichever language the node sorts."""
    snapshot = cache / "hub" / "models--org--model" / "snapshots" / COMMIT
    (snapshot / "sub").mkdir()
    for name, size in (
        ("sub/Zero", 0),
        ("sub/a b", SAMPLED_OVER_BYTES),
        ("B", SAMPLED_OVER_BYTES + 1),
        ("é", 5_000_001),
    ):
        (snapshot / name).write_bytes(bytes((7 * i) % 251 for i in range(size)))
    step = weights_step(NODE, recipe_file('engine = "vllm"\nmodel = "org/model"\n').recipe, str(cache), full=full)
    assert step is not None
    done = sh(step.command, cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert listing(snapshot, full=full) == done.stdout.strip()
