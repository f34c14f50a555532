"""Which zones of a powercap tree are added up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.meter.powercap import BOUNDARIES, Passed, choose, look
from tests.meter.powercap_tree import RANGE_UJ, amd, laptop, threadripper, two_sockets, zone


def chosen(root: Path, boundary: str = BOUNDARIES[0]) -> tuple[dict[str, str], dict[str, str]]:
    """Domain to zone, and zone to why it is none."""
    counted, passed = choose(look(root), boundary)
    assert len(counted) + len(passed) == len(look(root))  # each zone is one or the other
    return {entry.domain: entry.zone.id for entry in counted}, {entry.zone.id: entry.why for entry in passed}


@pytest.mark.parametrize(
    ("tree", "boundary", "domains"),
    [
        (laptop, "package+dram", {"rapl:package-0": "intel-rapl:0"}),
        (laptop, "package", {"rapl:package-0": "intel-rapl:0"}),
        (laptop, "psys", {"rapl:psys": "intel-rapl:1"}),
        (
            two_sockets,
            "package+dram",
            {
                "rapl:package-0": "intel-rapl:0",
                "rapl:package-0/dram": "intel-rapl:0:0",
                "rapl:package-1": "intel-rapl:1",
                "rapl:package-1/dram": "intel-rapl:1:0",
            },
        ),
        (two_sockets, "package", {"rapl:package-0": "intel-rapl:0", "rapl:package-1": "intel-rapl:1"}),
        (two_sockets, "psys", {}),
        (amd, "package+dram", {"rapl:package-0": "intel-rapl:0"}),
        (threadripper, "package+dram", {"rapl:package-0-die-0": "intel-rapl:0"}),
    ],
)  # EN-04
def test_zones_that_are_counted_are_disjoint(
    tmp_path: Path, tree: Callable[[Path], None], boundary: str, domains: dict[str, str]
) -> None:
    tree(tmp_path)
    assert chosen(tmp_path, boundary)[0] == domains


def test_zones_that_are_not_counted_say_why(tmp_path: Path) -> None:
    laptop(tmp_path)
    assert chosen(tmp_path)[1] == {
        "intel-rapl:0:0": "inside",
        "intel-rapl:0:1": "inside",
        "intel-rapl:1": "around",
        "intel-rapl-mmio:0": "duplicate",
    }
    assert chosen(tmp_path, "psys")[1] == {
        "intel-rapl:0": "inside",
        "intel-rapl:0:0": "inside",
        "intel-rapl:0:1": "inside",
        "intel-rapl-mmio:0": "duplicate",
    }


def test_nested_tree_reads_as_the_flat_one(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl/intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl/intel-rapl:0/intel-rapl:0:0", "core")
    zone(tmp_path, "intel-rapl/intel-rapl:0/intel-rapl:0:1", "dram")
    assert chosen(tmp_path) == (
        {"rapl:package-0": "intel-rapl:0", "rapl:package-0/dram": "intel-rapl:0:1"},
        {"intel-rapl:0:0": "inside"},
    )


def test_zone_that_is_linked_and_nested_is_there_once(tmp_path: Path) -> None:
    real = zone(tmp_path, "intel-rapl/intel-rapl:0", "package-0")
    (tmp_path / "intel-rapl:0").symlink_to(real)
    assert chosen(tmp_path) == ({"rapl:package-0": "intel-rapl:0"}, {})


def test_unknown_zones_are_listed_and_not_added(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl:0:0", "hbm")
    zone(tmp_path, "intel-rapl:7", "core")
    zone(tmp_path, "dtpm:0", "soc")
    domains, passed = chosen(tmp_path)
    assert domains == {"rapl:package-0": "intel-rapl:0"}
    assert passed == {"intel-rapl:0:0": "unknown", "intel-rapl:7": "unknown", "dtpm:0": "unknown"}


def test_duplicate_that_can_be_read_is_taken_for_one_that_cannot(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", None)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    zone(tmp_path, "intel-rapl-mmio:0:0", "dram")
    assert chosen(tmp_path) == (
        {"rapl:package-0": "intel-rapl-mmio:0", "rapl:package-0/dram": "intel-rapl-mmio:0:0"},
        {"intel-rapl:0": "duplicate"},
    )


def test_memory_of_a_duplicate_is_a_duplicate(tmp_path: Path) -> None:
    for driver in ("intel-rapl", "intel-rapl-mmio"):
        zone(tmp_path, f"{driver}:0", "package-0")
        zone(tmp_path, f"{driver}:0:0", "dram")
    assert chosen(tmp_path)[1] == {"intel-rapl-mmio:0": "duplicate", "intel-rapl-mmio:0:0": "duplicate"}


@pytest.mark.parametrize(
    ("first", "second", "mirrored"),
    [
        (68_000_000, 68_000_000, True),
        (68_000_000, 68_900_000, True),
        (68_000_000, 75_000_000, False),
        (RANGE_UJ - 10, 500, True),  # the second has begun again a moment ago
        (500, RANGE_UJ - 10, True),
        (0, 0, False),  # two counters that show nothing say nothing of one another
    ],
)
def test_dies_with_one_counter_are_counted_once(tmp_path: Path, first: int, second: int, mirrored: bool) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0-die-0", first)
    zone(tmp_path, "intel-rapl:1", "package-0-die-1", second)
    domains, passed = chosen(tmp_path)
    assert (len(domains), passed) == ((1, {"intel-rapl:1": "mirror"}) if mirrored else (2, {}))


def test_packages_that_happen_to_stand_alike_are_all_counted(tmp_path: Path) -> None:
    """Only dies of one package can be one counter."""
    for socket in (0, 1):
        zone(tmp_path, f"intel-rapl:{socket}", f"package-{socket}-die-0", 68_000_000)
    assert len(chosen(tmp_path)[0]) == 2


def test_zone_without_a_name_is_listed(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").symlink_to(tmp_path / "nowhere")
    zone(tmp_path, "intel-rapl:1", "package-1")
    (entry,) = (entry for entry in choose(look(tmp_path), "package")[1])
    assert isinstance(entry, Passed)
    assert (entry.zone.id, entry.why, entry.zone.fault) == ("intel-rapl:0", "unreadable", "no-such-zone")


def test_zones_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for socket in (10, 9, 0):
        zone(tmp_path, f"intel-rapl:{socket}", f"package-{socket}")
    assert [found.id for found in look(tmp_path)] == ["intel-rapl:0", "intel-rapl:9", "intel-rapl:10"]


def test_tree_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        look(tmp_path / "powercap")
