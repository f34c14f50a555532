"""The lane of launches: a real openssh server and tmux, which not every machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lanes import skip_below

if "MESH_SSHD" in os.environ:
    from tests.sshd.hosts import Site, site
    from tests.sshd.network import Network, network

    @pytest.fixture
    def one(tmp_path: Path) -> Iterator[Site]:
        """One node."""
        with site(tmp_path) as made:
            yield made

    @pytest.fixture
    def two(tmp_path: Path) -> Iterator[Site]:
        """Two nodes of one cluster, on one kernel: what they run and keep is told apart by their home folders."""
        with site(tmp_path, nodes=2) as made:
            yield made

    @pytest.fixture
    def two_hosts(tmp_path: Path) -> Iterator[Network]:
        """Two nodes with a network, processes and memory of their own, where this machine allows that."""
        with network(tmp_path, 2) as made:
            yield made

    @pytest.fixture
    def three(tmp_path: Path) -> Iterator[Network]:
        with network(tmp_path, 3) as made:
            yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "MESH_SSHD" not in os.environ:
        skip_below(Path(__file__).parent, items, "MESH_SSHD names no sshd: make test-launch")
