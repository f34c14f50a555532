from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a gateway's state goes."""
    return tmp_path / "state"
