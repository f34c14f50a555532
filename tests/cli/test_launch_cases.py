"""RC-02, RC-04 and RC-06, as the cases put them: files of others with their images, one with merge markers, and three
that describe one server."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.errors import UsageError
from mesh.launch.foreign import read_yaml
from tests.cli.conftest import Mesh
from tests.launch.foreign_examples import COMPOSE_ENV, ENV_FILE, EUGR, OPERATED, PROFILE, RUNNER, SPARKRUN, STATEFUL
from tests.launch.recipes import recipe_file

OPERATED_IMAGE = f"registry.example/engine:big-flash@sha256:{'c' * 64}"


def with_markers(text: str) -> str:
    """A merge that was never finished, in the middle of the document."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if "--port" in line)
    return "\n".join([*lines[:at], "<<<<<<< HEAD", lines[at], "=======", lines[at], ">>>>>>> main", *lines[at + 1 :]])


def test_rc_04_merge_conflict_markers_are_named_by_their_lines() -> None:
    text = with_markers(STATEFUL)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line[:7] in ("<<<<<<<", "=======", ">>>>>>>")]
    with pytest.raises(UsageError, match=f"merge-conflict markers in lines {', '.join(map(str, lines))}"):
        read_yaml(text.encode(), "statefulset.yaml")


IMAGE = f"registry.example/runtime@sha256:{'b' * 64}"
COMPOSE_PINNED = COMPOSE_ENV.replace("runtime:stage-c", IMAGE)
RUNNER_PINNED = RUNNER.replace("registry.example/runtime@sha256:" + "a" * 64, IMAGE)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name, text in (("compose.yaml", COMPOSE_PINNED), ("x.env", ENV_FILE), ("runner.yaml", RUNNER_PINNED)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_rc_06_clash_needs_an_explicit_choice_and_nothing_is_written_without(mesh: Mesh, three: Path) -> None:
    argv = ("launch", "import", "compose.yaml", "runner.yaml", "--env-file", "x.env", "--compare", "--out", "out")
    result = mesh(*argv, "--take", "host=x.env", "--json")
    assert result.code == 10
    open_ones = {one["where"] for one in result.json["merged"]["findings"] if one["code"] == "clash"}
    assert open_ones == {
        "gpu_memory_utilization", "max_cudagraph_capture_size", "max_num_seqs", "model",
        "env.VLLM_ENGINE_READY_TIMEOUT_S",
    }  # fmt: skip
    (clash,) = [one for one in result.json["merged"]["findings"] if one["where"] == "max_num_seqs"]
    assert clash["message"] == (
        "compose.yaml says '6', x.env says '12', runner.yaml says '6': --take max_num_seqs=FILE decides"
    )
    assert not (three / "out").exists()


def test_rc_06_every_value_has_one_origin_once_somebody_chose(mesh: Mesh, three: Path) -> None:
    argv = ("launch", "import", "compose.yaml", "runner.yaml", "--env-file", "x.env", "--compare", "--out", "out")
    result = mesh(*argv, "--take", "runner.yaml", "--take", "max_num_seqs=x.env", "--json")
    made = result.json["merged"]
    assert [one for one in made["findings"] if one["level"] == "error"] == []
    assert made["origins"]["max_num_seqs"] == "x.env"
    assert made["origins"]["gpu_memory_utilization"] == "runner.yaml"
    recipe = recipe_file((three / "out" / "compose" / "recipe.toml").read_text()).recipe
    assert (recipe.model, recipe.host, recipe.docker_image) == ("org/new", "0.0.0.0", IMAGE)
    assert recipe.args[recipe.args.index("--max-num-seqs") + 1] == "12"
    assert recipe.args[recipe.args.index("--gpu-memory-utilization") + 1] == "0.78"
    assert "--max-cudagraph-capture-size" not in recipe.args  # left unset, by choice
    assert recipe.env["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"


def test_rc_06_compose_with_its_env_file_is_a_recipe_that_says_where_each_value_is_from(
    mesh: Mesh, three: Path
) -> None:
    """The capture size is the shell's to compute: no value, so it is left out before anything can be launched."""
    (three / "compose.yaml").write_text(
        COMPOSE_PINNED.replace("        --max-cudagraph-capture-size $$(( ${SEQS:-6} * (${DRAFT:-5} + 1) ))\n", "")
    )
    result = mesh("launch", "import", "compose.yaml", "--env-file", "x.env", "--out", "out")
    text = (three / "out" / "compose" / "recipe.toml").read_text()
    assert recipe_file(text).recipe.origins["max_num_seqs"] == "x.env: SEQS"
    assert recipe_file(text).recipe.origins["image"] == "compose.yaml, default"
    assert "VLLM_ENGINE_READY_TIMEOUT_S: '3600': set but unused" in result.out
    recipe = recipe_file(text).recipe
    assert (recipe.engine, recipe.model, recipe.host) == ("vllm", "org/old", "0.0.0.0")
    assert recipe.args[recipe.args.index("--max-num-seqs") + 1] == "12"
    plan = mesh("launch", "plan", "out/compose/recipe.toml")
    assert plan.code == 2  # no cluster here; what is launched, and so signed, is these values and no file
    assert "no cluster in the configuration" in plan.err


def test_rc_06_choice_of_what_is_not_there_is_wrong_usage(mesh: Mesh, three: Path) -> None:
    argv = ("launch", "import", "compose.yaml", "runner.yaml", "--compare")
    assert "no such view; there are compose.yaml, runner.yaml" in mesh(*argv, "--take", "other.yaml").err
    assert "the views do not differ in it" in mesh(*argv, "--take", "dtype=runner.yaml").err


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "deploy.yaml",
            OPERATED,
            [
                f"# warning: line 8: a comment names registry.example/engine:big-flash, what runs is {OPERATED_IMAGE}",
                "# error: GraphDeployment graph Frontend: registry.example/frontend:1.4: the tag can be pushed again, "
                "or deleted; no digest",
                f"# note: GraphDeployment graph Worker: {OPERATED_IMAGE}: the digest decides, the tag big-flash is not "
                "looked at",
                "# warning: GraphDeployment graph Worker: resources.requests is null",
            ],
        ),
        (
            "flash.yaml",
            EUGR.replace("container: vllm-node", "container: registry.example/engine:big-flash-arm64"),
            [
                "# note: model: org/example: written in the command again, to the same",
                "# error: docker_image: registry.example/engine:big-flash-arm64: the tag big-flash-arm64 can be pushed "
                "again, or deleted; `mesh launch pin` writes the digest",
            ],
        ),
        (
            "nightly.yml",
            PROFILE,
            [
                "# error: file: of no form that is known: eugr, sparkrun, vllm-recipes: its images alone are looked at",
                "# error: install.spec: registry.example/engine:nightly-1acd67a795ebccdf9b9db7697ae9082058301657: the "
                "tag can be pushed again, or deleted; no digest",
            ],
        ),
    ],
    ids=["tag-and-digest", "bare-tag", "nightly"],
)
def test_rc_02_d_image_of_each_file_is_told_by_its_fault(
    mesh: Mesh, tmp_path: Path, name: str, text: str, found: list[str]
) -> None:
    """Files of three forms: a tag with a digest that a comment leaves out, a bare tag, a nightly one."""
    (tmp_path / name).write_text(text)
    result = mesh("launch", "import", tmp_path / name)
    assert result.code == 10
    lines = [line for line in result.out.splitlines() if line.startswith("# ")]
    assert [line for line in lines if line in found] == found
    if name != "flash.yaml":
        assert lines[1:] == found


def test_file_of_no_known_form_that_names_no_image_is_wrong_usage(mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [b/c, 'http://x/y:z', '1:2']\n")
    assert mesh("launch", "import", tmp_path / "x.yaml").code == 2


def test_document_that_holds_itself_ends(mesh: Mesh, tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: K\nspec: &a {containers: [{image: a/b:c}], again: *a}\n"
    (tmp_path / "x.yaml").write_text(text)
    result = mesh("launch", "import", tmp_path / "x.yaml")
    assert result.out.count("a/b:c") == 1


def test_rc_02_comment_that_names_another_digest_is_drift(mesh: Mesh, tmp_path: Path) -> None:
    digest = OPERATED_IMAGE.rpartition(":")[2]
    same = SPARKRUN.replace("sglang:v1", f"sglang@sha256:{digest} # registry.example/sglang@sha256:{digest}")
    (tmp_path / "r.yaml").write_text(same)
    assert "a comment names" not in mesh("launch", "import", tmp_path / "r.yaml").out
    (tmp_path / "r.yaml").write_text(same.replace(f"# registry.example/sglang@sha256:{digest}",
                                                  f"# registry.example/sglang@sha256:{'0' * 64}"))  # fmt: skip
    assert "a comment names registry.example/sglang@sha256:0000" in mesh("launch", "import", tmp_path / "r.yaml").out
