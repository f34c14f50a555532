"""What a recipe would start today, against the record of what was started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mesh.launch.config import load_config
from mesh.launch.drift import drift_of
from mesh.launch.plan import make_plan
from mesh.launch.record import keep, make_record
from mesh.launch.run_ledger import Run
from mesh.launch.running import kept_of
from mesh.launch.selection import Wish, choose
from mesh.schema.envelope import SigningKey
from tests.launch.recipes import CLUSTERS, DIGEST, PINNED, recipe_file

KEY = SigningKey(b"\x07" * 32)
CONFIGURED = "launch.toml: changed since the launch, or another one is read now"
TEXT = PINNED + '[env]\nHF_TOKEN = "hf_a"\nWORD = "a"\n'


def drift(tmp_path: Path, now: str, clusters: str = CLUSTERS, wish: Wish = Wish("2nodes")) -> list[str]:  # noqa: B008
    """Between TEXT, launched, and what the files say now."""
    path = tmp_path / "launch.toml"
    path.write_text(CLUSTERS)
    loaded, file = load_config(path), recipe_file(TEXT)
    plan = make_plan(
        loaded.config, file, choose(loaded.config, file.recipe, wish), run="r1", gid={"a": "3", "b": "5"}
    )  # as found on the nodes
    record = make_record(plan, loaded, {}, model="org/model", launched_ns=5, key=KEY)
    if not (tmp_path / "run").exists():
        keep(tmp_path / "run", record, plan, loaded, {})
    path.write_text(clusters)
    run = Run("r1", {"recipe_sha256": file.digest, "record": record.digest.text})
    return drift_of(kept_of(tmp_path / "run", "test", run), recipe_file(now), load_config(path))


def test_nothing_moved_is_no_drift_and_a_comment_is_none_of_what_runs(tmp_path: Path) -> None:
    assert drift(tmp_path, TEXT) == []
    (line,) = drift(tmp_path, TEXT + "# a word\n")
    assert line.startswith("recipe.toml: changed since the launch")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"fp8"', '"fp4"', "rank 1 on b: launched with `--kv-cache-dtype fp8`, now `--kv-cache-dtype fp4`"),
        ('["--kv-cache-dtype", "fp8"]', "[]", "rank 0 on a: launched with `--kv-cache-dtype fp8`, now nothing"),
        ('"fp8"]', '"fp8", "--seed", "1"]', "rank 0 on a: launched with nothing, now `--seed 1`"),
        ('WORD = "a"', 'WORD = "b"', "rank 1 on b: WORD: launched with `a`, now `b`"),
        ('WORD = "a"\n', "", "rank 0 on a: WORD: launched with `a`, now not set"),
        (DIGEST, "sha256:" + "b" * 64, f"now registry.example/img@sha256:{'b' * 64}"),
        ('"0.32.0"', '"0.33.0"', "engine_version: launched with 0.32.0, now 0.33.0"),
        ("1" * 40, "2" * 40, f"model_revision: launched with {'1' * 40}, now {'2' * 40}"),
        ('"vllm"', '"llama.cpp"', "the recipe cannot be launched so any more: llama.cpp serves from one node"),
    ],
)
def test_what_moved_is_told_by_rank(tmp_path: Path, old: str, new: str, told: str) -> None:
    lines = drift(tmp_path, TEXT.replace(old, new))
    assert any(told in line for line in lines[1:]), lines
    assert not any("NCCL_IB_GID_INDEX" in line or "HF_TOKEN" in line for line in lines)


def test_secret_is_compared_by_its_name_alone(tmp_path: Path) -> None:
    (line,) = drift(tmp_path, TEXT.replace("hf_a", "hf_b"))
    assert "hf_" not in line
    lines = drift(tmp_path, TEXT.replace('HF_TOKEN = "hf_a"\n', ""))
    assert "rank 0 on a: HF_TOKEN: launched with `(not recorded)`, now not set" in lines


def test_configuration_that_moved_is_told_with_what_it_does(tmp_path: Path) -> None:
    lines = drift(tmp_path, TEXT, CLUSTERS.replace('"enp1"', '"enp2"'))
    assert lines[0] == CONFIGURED
    assert "rank 0 on a: NCCL_SOCKET_IFNAME: launched with `enp1`, now `enp2`" in lines
    lines = drift(tmp_path, TEXT, CLUSTERS.replace('name = "b"', 'name = "z"'))
    assert lines == [CONFIGURED, "no cluster has the nodes a, b any more"]


def test_size_that_was_asked_for_at_the_launch_is_no_drift(tmp_path: Path) -> None:
    (line,) = drift(tmp_path, TEXT + "# a word\n", wish=replace(Wish("2nodes"), fit=1))
    assert line.startswith("recipe.toml: changed since the launch")


def test_record_that_is_gone_or_changed_is_told(tmp_path: Path) -> None:
    drift(tmp_path, TEXT)
    path = tmp_path / "run" / "launch.record"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x00")
    (line,) = drift(tmp_path, TEXT)
    assert line.startswith("launch record: signature")
    path.unlink()
    assert drift(tmp_path, TEXT) == ["launch record: no such file or directory"]


def test_configuration_as_launched_that_is_no_file_is_told(tmp_path: Path) -> None:
    drift(tmp_path, TEXT)
    (tmp_path / "run" / "config-0.toml").unlink()
    (tmp_path / "run" / "config-0.toml").mkdir()
    assert "config-0.toml as launched: is a directory" in drift(tmp_path, TEXT)
