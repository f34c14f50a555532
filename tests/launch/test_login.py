"""What a login to a node needs, found before anything goes to one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

from mesh.errors import HostKeyError, MeshError, UsageError
from mesh.launch.config import Node
from mesh.launch.ssh import Login, connect

NODE = Node(name="a", ssh_ip="127.0.0.1", ssh_port=9, rank=0)  # nobody listens there: nothing here comes so far
HOST_KEY = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
PINNED = f"[127.0.0.1]:9 {HOST_KEY}\n"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(path))
    return path


def fault(login: Login) -> MeshError:
    with pytest.raises(MeshError) as raised:
        asyncio.run(connect(NODE, login))
    return raised.value


@pytest.mark.parametrize(
    ("data", "why"),
    [(None, "no such file"), (b"", "invalid private key"), (b"\xff" * 99, "invalid private key")],
    ids=["missing", "empty", "garbage"],
)
def test_private_key_that_is_none_is_named(tmp_path: Path, data: bytes | None, why: str) -> None:
    path = tmp_path / "key"
    if data is not None:
        path.write_bytes(data)
    error = fault(Login("me", path, PINNED))
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"ssh_key_path {path}: {why}")


def test_login_without_a_key_or_a_name_says_which(key: Path) -> None:
    assert str(fault(Login("me", Path(""), PINNED))) == "ssh_key_path: empty, and nodes are reached by it"
    assert str(fault(Login("", key, PINNED))) == "ssh_user: empty, and nodes are reached by it"


def test_name_that_no_login_has_is_named(key: Path) -> None:
    error = fault(Login("me\ue000", key, PINNED))
    assert isinstance(error, UsageError)
    assert str(error).startswith("ssh_user 'me\\ue000': ")


@pytest.mark.parametrize(
    ("pinned", "kind", "words"),
    [
        ("", HostKeyError, "no host key of [127.0.0.1]:9 is pinned"),
        ("# [127.0.0.1]:9 ssh-ed25519 AAAA\n", HostKeyError, "no host key of [127.0.0.1]:9 is pinned"),
        ("\x00\x01\ufffd\n", HostKeyError, "no host key of [127.0.0.1]:9 is pinned"),
        (f"@revoked {PINNED}", HostKeyError, "no host key of [127.0.0.1]:9 is pinned"),
        ("[127.0.0.1]:9\n", UsageError, "known_hosts: invalid known hosts entry"),
        ("[127.0.0.1]:9 ssh-ed25519 AA!!\n", HostKeyError, "what known_hosts has of [127.0.0.1]:9 is no key that"),
    ],
    ids=["none", "commented out", "binary", "revoked", "no key", "damaged key"],
)
def test_pinned_keys_that_are_none_are_told_from_another_key(
    key: Path, pinned: str, kind: type[MeshError], words: str
) -> None:
    error = fault(Login("me", key, pinned))
    assert type(error) is kind
    assert words in str(error)
