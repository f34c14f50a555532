"""RC-02 at the command: tags that move, tags and digests that vanish, and what was seen of them before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Mesh
from tests.launch.recipes import COMMIT, DIGEST
from tests.launch.test_pins import OTHER, Answers, answering, manifest

FORMS = ("img:latest", "img:glm53-flash", f"img:glm53-flash@{DIGEST}", f"img@{DIGEST}", "img:nightly-01d4")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (tmp_path / "launch.toml").write_text("")
    return tmp_path


def write(here: Path, image: str) -> Path:
    path = here / "recipes" / "r" / "recipe.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'engine = "vllm"\nengine_version = "0.32.0"\nmodel = "org/model"\nmodel_revision = "{COMMIT}"\n'
        f'docker_image = "{image}"\n'
    )
    return path


@pytest.mark.parametrize("image", FORMS)
def test_rc_02_every_form_is_linted_and_launched_by_its_digest_after_a_pin(mesh: Mesh, here: Path, image: str) -> None:
    answers: Answers = {f"/v2/img/manifests/{tag}": manifest(DIGEST) for tag in ("latest", "glm53-flash", DIGEST)}
    with answering(answers) as host:
        path = write(here, f"{host}/{image}")
        assert mesh("launch", "validate", "r").code == (0 if "@" in image else 10)
        pinned = mesh("launch", "pin", "r", "--no-model")
        if "nightly" in image:
            assert pinned.code == 10
            assert f"image gone: {host} has no tag nightly-01d4; never seen from here" in pinned.err
            return
        assert pinned.code == 0, pinned.err
        assert mesh("launch", "validate", "r").code == 0
        answers["/v2/img/manifests/glm53-flash"] = manifest(OTHER)  # pushed again
        text = path.read_text()
        checked = mesh("launch", "pin", "r", "--no-model", "--check")
        assert checked.code == 0, checked.err
        if "glm53-flash" in image:
            assert f"{host}/img:glm53-flash is {OTHER} now; what runs is {DIGEST}" in checked.err
        else:
            assert "now; what runs is" not in checked.err
        assert path.read_text() == text


def test_rc_02_image_that_vanished_is_told_with_when_it_was_last_seen(mesh: Mesh, here: Path) -> None:
    answers: Answers = {
        "/v2/img/manifests/nightly-01d4": manifest(DIGEST),
        f"/v2/img/manifests/{DIGEST}": manifest(DIGEST),
    }
    with answering(answers) as host:
        write(here, f"{host}/img:nightly-01d4")
        assert mesh("launch", "pin", "r", "--no-model").code == 0
        assert mesh("launch", "pin", "r", "--no-model", "--check").code == 0
        answers.clear()
        gone = mesh("launch", "pin", "r", "--no-model", "--check")
        assert gone.code == 10
        assert f"image gone: {DIGEST}, {host} has it no more; last seen 20" in gone.err
        assert gone.err.rstrip().endswith(f"on {host} as {DIGEST}")
        write(here, f"{host}/img:nightly-01d4")
        tag = mesh("launch", "pin", "r", "--no-model")
        assert "has no tag nightly-01d4; last seen 20" in tag.err


def test_rc_02_tag_that_was_deleted_is_told_while_the_digest_is_there(mesh: Mesh, here: Path) -> None:
    with answering({f"/v2/img/manifests/{DIGEST}": manifest(DIGEST)}) as host:
        write(here, f"{host}/img:old@{DIGEST}")
        checked = mesh("launch", "pin", "r", "--no-model", "--check")
        assert checked.code == 0
        assert f"image gone: {host} has no tag old; what runs is {DIGEST}" in checked.err


def test_file_that_is_other_than_pinned_is_drift(mesh: Mesh, here: Path) -> None:
    write(here, f"img@{DIGEST}")
    folder = here / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    argv = ("launch", "pin", "r", "--no-image", "--model-dir", folder)
    assert mesh(*argv).code == 0
    assert mesh(*argv, "--check").out == "what is pinned is what is there\n"
    (folder / "config.json").write_bytes(b"[]")
    drifted = mesh(*argv, "--check", "--json")
    assert (drifted.code, drifted.json["ok"]) == (10, False)
    assert drifted.json["drift"][0].startswith("model file config.json: sha256:")
