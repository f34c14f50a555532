"""The GID index, in tables as a kernel shows them: numbered, of several adapters, with entries that do not do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mesh.launch.commands import gid_step
from mesh.launch.config import Node

NODE = Node(name="a", ssh_ip="h", rank=0)
LINK = "fe80:0000:0000:0000:0202:c9ff:fe00:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:c0a8:0101"
NOTHING = "0000:0000:0000:0000:0000:0000:0000:0000"


def table(sysfs: Path, device: str, entries: list[tuple[str, str]]) -> None:
    port = sysfs / "class" / "infiniband" / device / "ports" / "1"
    (port / "gid_attrs" / "types").mkdir(parents=True)
    (port / "gids").mkdir()
    for index, (kind, gid) in enumerate(entries):
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")


def found(sysfs: Path, hca: str | None) -> str:
    command = gid_step(NODE, hca, sysfs=str(sysfs)).command
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    link = [("IB/RoCE v1", LINK), ("RoCE v2", LINK)]
    table(tmp_path, "mlx5_0", [*link, ("IB/RoCE v1", MAPPED), ("RoCE v2", MAPPED)])
    table(tmp_path, "roce0", [*link, *[("RoCE v2", NOTHING)] * 8, ("RoCE v2", MAPPED), ("RoCE v2", MAPPED)])
    table(tmp_path, "roce1", link)
    return tmp_path


@pytest.mark.parametrize(
    ("hca", "index"),
    [
        (None, "3"),
        ("mlx5", "3"),
        ("=mlx5_0:1", "3"),
        ("roce0", "10"),  # ten is not before two
        ("roce1,roce0", "10"),
        ("^mlx5_0", "3"),  # those to leave out are not those to use: all are looked at
        ("roce1", "no RoCE v2 entry with an IPv4 address"),
        ("none", "no RoCE v2 entry with an IPv4 address"),
    ],
)
def test_index_is_the_first_that_does_of_the_adapters_that_are_used(sysfs: Path, hca: str | None, index: str) -> None:
    assert found(sysfs, hca) == index
