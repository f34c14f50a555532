"""Images of our own: pins in their order, a checksum over everything that the build reads, the commands to the word."""

from __future__ import annotations

import io
import shlex
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from mesh.errors import LaunchError, UsageError
from mesh.launch.config import Node
from mesh.launch.image_commands import build_command, copy_command
from mesh.launch.images import Context, checksum_of, context_of, is_built, pushed_ref
from mesh.launch.imaging import Image, Published
from tests.launch.recipes import DIGEST, recipe_file

BUILT = 'engine = "vllm"\nmodel = "org/model"\ndocker_image = "eng"\n'
DOCKERFILE = "FROM base@sha256:1\nARG TORCH\nARG VLLM_COMMIT=none\nRUN true\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The image of the recipe `r` in this directory."""
    folder = tmp_path / "docker-images" / "r"
    (folder / "profiles").mkdir(parents=True)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "versions.env").write_text("# pins\nTORCH=2.10\nVLLM_COMMIT='aaa'\n")
    (folder / "profiles" / "r28.env").write_text("VLLM_COMMIT=bbb\n")
    (folder / "build.sh").write_text("#!/bin/sh\n")
    (folder / "build.sh").chmod(0o755)
    return folder


def context(folder: Path, more: str = "") -> Context:
    return context_of(recipe_file(BUILT + more, "r", folder.parent.parent / "recipes"))


def test_pins_of_the_recipe_win_over_the_profile_and_that_over_the_image(folder: Path) -> None:
    assert context(folder).pins == {"TORCH": "2.10", "VLLM_COMMIT": "aaa"}
    assert context(folder, 'build_profile = "r28"\n').pins == {"TORCH": "2.10", "VLLM_COMMIT": "bbb"}
    both = context(folder, 'build_profile = "r28"\n[build.versions]\nVLLM_COMMIT = "ccc"\n')
    assert both.pins == {"TORCH": "2.10", "VLLM_COMMIT": "ccc"}
    assert both.origins == {"TORCH": "versions.env", "VLLM_COMMIT": "build.versions"}


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ('[build.versions]\nTORHC = "1"\n', "build.versions: TORHC: not a pin of .*, which has TORCH, VLLM_COMMIT"),
        ('build_profile = "r29"\n', "build_profile 'r29': no such profile .*; there are r28"),
        ('docker_image_dir = "other"\n', "no folder 'other' in"),
    ],
)
def test_key_or_profile_that_is_not_there_is_refused(folder: Path, more: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        context(folder, more)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("profiles/r28.env", "NEW=1\n", "profile r28: NEW: not a pin of"),
        ("versions.env", "TORCH=1\nUNREAD=2\n", "UNREAD: no ARG of its Dockerfile, which takes TORCH, VLLM_COMMIT"),
        ("versions.env", "TORCH=1\nwhat\n", "versions.env: line 2: 'what' is no KEY=VALUE"),
        ("versions.env", "TORCH=1\nTORCH=2\n", "line 2: TORCH again"),
    ],
)
def test_pins_that_would_change_nothing_are_refused(folder: Path, name: str, text: str, fault: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(UsageError, match=fault):
        context(folder, 'build_profile = "r28"\n' if name != "versions.env" else "")


def test_checksum_is_as_it_is_documented(folder: Path) -> None:
    pins = "TORCH=2.10\nVLLM_COMMIT=aaa\n"
    lines = [
        ("-", "Dockerfile", DOCKERFILE),
        ("x", "build.sh", "#!/bin/sh\n"),
        ("-", "profiles/r28.env", "VLLM_COMMIT=bbb\n"),
        ("-", "versions.env", pins),
    ]
    text = b"".join(f"{mode}\0{name}\0{sha256(data.encode()).hexdigest()}\n".encode() for mode, name, data in lines)
    assert context(folder).checksum == sha256(text).hexdigest()


def test_every_change_of_folder_or_pins_is_another_checksum_and_nothing_else_is(folder: Path) -> None:
    first = context(folder).checksum
    seen = {first, context(folder, 'build_profile = "r28"\n').checksum}
    assert len(seen) == 2
    (folder / "versions.env").write_text("# another comment\nVLLM_COMMIT=aaa\nTORCH=2.10\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    (folder / "empty").mkdir()
    assert context(folder).checksum == first
    for change in (
        lambda: (folder / "build.sh").chmod(0o644),
        lambda: (folder / "a").symlink_to("build.sh"),
        lambda: (folder / "Dockerfile").write_text(DOCKERFILE + "\n"),
        lambda: (folder / "build.sh").rename(folder / "build2.sh"),
    ):
        change()
        seen.add(context(folder).checksum)
    assert len(seen) == 6


def test_folder_travels_as_the_same_bytes_with_the_merged_pins(folder: Path) -> None:
    one = context(folder, 'build_profile = "r28"\n')
    (folder / "Dockerfile").touch()
    assert context(folder, 'build_profile = "r28"\n').tar() == one.tar()
    with tarfile.open(fileobj=io.BytesIO(one.tar())) as tar:
        assert tar.getnames() == ["Dockerfile", "build.sh", "profiles/r28.env", "versions.env"]
        pins = tar.extractfile("versions.env")
        assert pins is not None
        assert pins.read() == b"TORCH=2.10\nVLLM_COMMIT=bbb\n"
        assert tar.getmember("build.sh").mode == 0o755


def test_image_without_a_tag_gets_its_contents_and_one_with_a_tag_keeps_it(folder: Path) -> None:
    one = context(folder)
    assert one.ref == f"eng:{one.checksum[:12]}"
    named = BUILT.replace('"eng"', '"registry.example:5000/eng:mine"')
    assert context_of(recipe_file(named, "r", folder.parent.parent / "recipes")).ref == "registry.example:5000/eng:mine"
    pinned = BUILT.replace('"eng"', f'"eng@{DIGEST}"')
    assert not is_built(recipe_file(pinned, "r", folder.parent.parent / "recipes"))
    assert is_built(recipe_file(BUILT, "r", folder.parent.parent / "recipes"))
    assert not is_built(recipe_file(BUILT, "without", folder.parent.parent / "recipes"))


def test_socket_in_the_folder_is_refused(folder: Path) -> None:
    import os

    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="pipe: neither a file nor a link"):
        checksum_of(folder, {})


def test_build_command_is_label_and_every_pin(folder: Path) -> None:
    one = context(folder, '[build.versions]\nTORCH = "2.11 rc"\n')
    words = shlex.split(build_command(one).replace('"$HOME"', "/h"))
    at = f"/h/.mesh/images/{one.checksum}"
    assert words == [
        "docker", "build", "-t", one.ref, "--label", f"mesh.checksum={one.checksum}",
        "--build-arg", "TORCH=2.11 rc", "--build-arg", "VLLM_COMMIT=aaa", at, "&&", "rm", "-rf", at,
    ]  # fmt: skip


def test_copy_trusts_the_pinned_keys_alone() -> None:
    peer = Node(name="b", ssh_ip="10.0.0.2", ib_ip="200.0.0.2", ssh_port=2222, rank=1)
    command = copy_command("eng:1", "me", peer, ["ssh-ed25519 AAAA"], "200.0.0.2")
    assert "docker save eng:1 | ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o HostKeyAlias=mesh-node" in command
    assert "-o GlobalKnownHostsFile=/dev/null" in command
    assert '-o UserKnownHostsFile="$k" -p 2222 me@200.0.0.2 docker load' in command
    assert "mesh-node ssh-ed25519 AAAA\n" in command


def test_pushed_name_is_the_registry_the_image_and_its_content() -> None:
    assert pushed_ref("ghcr.io/org/", "registry.example:5000/eng:mine", "abc") == "ghcr.io/org/eng:abc"
    assert Image("sha256:0123456789abcdef", "").version == "0123456789ab"
    assert Image("sha256:0", "f" * 64).version == "f" * 12


def test_ledger_of_what_was_published_is_kept_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    ledger = Published(tmp_path / "state" / "published.json")
    assert ledger.read() == {}
    ledger.add("a:1", {"id": "sha256:1", "digest": None, "at_ns": 1})
    ledger.add("b:1", {"id": "sha256:2", "digest": DIGEST, "at_ns": 2})
    assert ledger.read() == {
        "a:1": {"id": "sha256:1", "at_ns": 1},
        "b:1": {"id": "sha256:2", "digest": DIGEST, "at_ns": 2},
    }
    ledger.path.write_text("[")
    with pytest.raises(LaunchError, match="no ledger of what was published"):
        ledger.read()
