"""Images over real SSH: built where they are not, copied between two servers, pushed once. Docker is a program that
writes down what it is told."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from tests.sshd.docker_shim import calls, install

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd.hosts import Site

RECIPE = 'engine = "vllm"\nmodel = "org/model"\ndocker_image = "eng"\n'


@pytest.fixture
def images(two: Site) -> Site:
    """A recipe whose image is of a folder, and docker on both nodes, which reach each other by the operator's key."""
    two.recipe("r", RECIPE)
    folder = two.folder / "docker-images" / "r"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM base\nARG TORCH\n")
    (folder / "versions.env").write_text("TORCH=2.10\n")
    for sshd in two.sshds:
        install(sshd.folder / "home")
        ssh = sshd.folder / "home" / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -i {two.folder}/user "$@"\n')
        ssh.chmod(0o755)
    return two


def home(site: Site, node: int = 0) -> Path:
    return site.folder / f"node{node}" / "home"


def told(site: Site, *argv: str) -> dict[str, Any]:
    done = site.mesh("image", *argv, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def commands(site: Site, node: int, *kinds: str) -> list[list[str]]:
    return [call for call in calls(home(site, node)) if call[0] in kinds]


def test_image_is_built_with_its_label_and_skipped_until_something_changes(images: Site) -> None:
    shown = told(images, "show", "r")
    first = told(images, "build", "r", "--node", "n0")
    assert (first["done"], first["checksum"], first["image"]) == (True, shown["checksum"], shown["image"])
    (build,) = commands(images, 0, "build")
    assert build == [
        "build", "-t", shown["image"], "--label", f"mesh.checksum={shown['checksum']}", "--build-arg", "TORCH=2.10",
        f"{home(images)}/.mesh/images/{shown['checksum']}",
    ]  # fmt: skip
    assert (home(images) / "built").read_text().split() == ["Dockerfile", "versions.env"]
    assert list((home(images) / ".mesh" / "images").iterdir()) == []
    assert list((home(images) / ".mesh" / "jobs").iterdir()) == []
    again = told(images, "build", "r", "--node", "n0")
    assert (again["done"], again["why"]) == (False, f"{shown['image']} is of this content already")
    assert told(images, "build", "r", "--node", "n0", "--force")["done"] is True
    images.recipe("r", RECIPE + '[build.versions]\nTORCH = "2.11"\n')
    other = told(images, "build", "r", "--node", "n0")
    assert other["done"] is True
    assert other["checksum"] != first["checksum"]
    assert commands(images, 1, "build") == []


def test_build_that_fails_is_told_with_its_last_words_and_keeps_its_log(images: Site) -> None:
    (home(images) / "fail-build").write_text("step 3: no space left on device\n")
    done = images.mesh("image", "build", "r", "--node", "n0")
    assert done.returncode == 3
    assert "ended in status 1: step 3: no space left on device (log: ~/.mesh/jobs/build-" in done.stderr
    (log,) = (home(images) / ".mesh" / "jobs").glob("*/log")
    assert log.read_text() == "step 3: no space left on device\n"


def test_dry_run_prints_what_is_run_and_runs_none(images: Site) -> None:
    steps = told(images, "build", "r", "--node", "n0", "--dry-run")["steps"]
    assert [step["what"] for step in steps] == ["image", "upload", "build", "image"]
    assert calls(home(images)) == []
    built = told(images, "build", "r", "--node", "n0")
    assert f"docker build -t {built['image']} --label mesh.checksum={built['checksum']}" in steps[2]["command"]
    copied = told(images, "copy", "r", "--node", "n0", "--dry-run")["steps"]
    assert [step["what"] for step in copied] == ["image", "image", "copy to n1 by 127.0.0.1", "image"]
    assert commands(images, 0, "save") == []


def test_image_goes_from_node_to_node_by_the_second_address_where_the_first_fails(images: Site) -> None:
    config = images.folder / "launch.toml"
    config.write_text(config.read_text().replace('name = "n1",', 'name = "n1", ib_ip = "127.0.0.9",'))
    built = told(images, "build", "r", "--node", "n0")
    done = images.mesh("image", "copy", "r", "--node", "n0", "--json")
    assert done.returncode == 0, done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["node"], node["why"], node["id"]) == ("n1", "copied by 127.0.0.1", built["id"])
    assert "copy of eng" in done.stderr
    assert "by 127.0.0.9: ended in status 255" in done.stderr
    assert commands(images, 0, "save") == [["save", built["image"]]] * 2
    assert commands(images, 1, "load") == [["load"]]
    assert told(images, "copy", "r", "--node", "n0")["nodes"][0]["why"] == f"{built['image']} is there already"
    assert len(commands(images, 0, "save")) == 2


def test_image_is_not_sent_to_a_node_that_shows_another_key(images: Site) -> None:
    """Not the launcher's connection, which is refused too: what the sending node itself is told to trust."""
    from mesh.launch.config import Node
    from mesh.launch.image_commands import copy_command

    told(images, "build", "r", "--node", "n0")
    other = images.sshds[0].known.partition(" ")[2]
    peer = Node(name="n1", ssh_ip="127.0.0.1", ssh_port=images.sshds[1].port, rank=1)
    (home(images) / "send").write_text(copy_command("eng", "root", peer, [other], "127.0.0.1"))
    done = run_on(images, 0, 'sh "$HOME/send"')
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done or "Host key verification failed" in done
    assert commands(images, 1, "load") == []


def run_on(site: Site, node: int, command: str) -> str:
    import asyncio
    from pathlib import Path

    from mesh.launch.config import Node
    from mesh.launch.ssh import Login, connect
    from mesh.launch.toml_file import parse_toml

    config = parse_toml((site.folder / "launch.toml").read_bytes(), "launch.toml")

    async def work() -> str:
        where = Node(name="n", ssh_ip="127.0.0.1", ssh_port=site.sshds[node].port, rank=0)
        login = Login(config["ssh_user"], Path(config["ssh_key_path"]), (site.folder / "known_hosts").read_text())
        host = await connect(where, login)
        try:
            done = await host.run(command)
            return done.out + done.err
        finally:
            await host.close()

    return asyncio.run(work())


def test_push_goes_under_the_tag_of_the_content_once_and_no_credential_is_kept(images: Site) -> None:
    config = images.folder / "launch.toml"
    config.write_text(config.read_text() + '[registry]\nbase = "registry.example/org"\n')
    built = told(images, "build", "r", "--node", "n0")
    target = f"registry.example/org/eng:{built['checksum'][:12]}"
    pushed = told(images, "push", "r", "--node", "n0")
    assert (pushed["done"], pushed["published"]) == (True, target)
    assert pushed["digest"] == "sha256:" + "7".zfill(64)
    assert commands(images, 0, "tag", "push") == [["tag", built["image"], target], ["push", target]]
    again = told(images, "push", "r", "--node", "n0")
    assert (again["done"], again["why"], again["digest"]) == (False, "published already", pushed["digest"])
    told(images, "build", "r", "--node", "n0", "--force")  # another image of the same content
    refused = images.mesh("image", "push", "r", "--node", "n0")
    assert refused.returncode == 3
    assert "was published as image sha256:" in refused.stderr
    assert "--force moves the tag" in refused.stderr
    assert told(images, "push", "r", "--node", "n0", "--force")["done"] is True
    assert len(commands(images, 0, "push")) == 2
    assert not any(call[0] == "login" for call in calls(home(images)))
    kept = json.loads((images.folder / "launches" / "published.json").read_text())
    assert set(kept[target]) == {"id", "checksum", "digest", "at_ns", "node"}


def test_push_of_what_the_registry_has_is_skipped_and_a_refused_login_says_what_to_do(images: Site) -> None:
    config = images.folder / "launch.toml"
    config.write_text(config.read_text() + '[registry]\nbase = "registry.example/org"\n')
    built = told(images, "build", "r", "--node", "n0")
    target = f"registry.example/org/eng:{built['checksum'][:12]}"
    (home(images) / "fail-push").write_text("denied: requested access to the resource is denied\n")
    done = images.mesh("image", "push", "r", "--node", "n0")
    assert "log the node in once: ssh n0 docker login registry.example" in done.stderr
    (home(images) / "registry").write_text(target + "\n")
    assert told(images, "push", "r", "--node", "n0")["why"].startswith("the registry has it already")


def test_image_that_is_nowhere_is_said_and_upload_that_is_damaged_is_refused(images: Site) -> None:
    done = images.mesh("image", "copy", "r", "--node", "n0")
    assert "is not there, so it cannot be copied from it" in done.stderr
    step = told(images, "build", "r", "--node", "n0", "--dry-run")["steps"][1]
    (home(images) / "upload").write_text(step["command"])
    told(images, "build", "r", "--node", "n0")
    assert "computed checksum did NOT match" in run_on(images, 0, 'echo x | sh "$HOME/upload"')
    assert sha256(b"x\n").hexdigest() not in step["command"]


def test_launch_that_is_to_make_images_names_the_commands_that_do(images: Site) -> None:
    """Each of them then does it."""
    for flags, node in (
        (["--build-node", "n0"], 0),
        (["--sync-image-source", "n0"], 1),
        (["--force-build"], None),
        (["--sync-image"], None),
    ):
        refused = images.mesh("serve", "r", *flags)
        assert refused.returncode == 2
        named = re.search(r"first `mesh launch (image [^`]*)`, then serve without it", refused.stderr)
        assert named is not None, refused.stderr
        words = named[1].split()
        done = images.mesh(*words, *([] if node is not None else ["--node", "n0"]))
        assert done.returncode == 0, done.stderr
        if node is not None:
            assert any((home(images, node) / "images").iterdir())
    assert len(commands(images, 0, "build")) == 2
    assert "a launch pushes nothing" in images.mesh("serve", "r", "--no-push").stderr
