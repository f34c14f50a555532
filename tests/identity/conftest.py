from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models import smollm2_path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The packaged SmolLM2 file, found without importing its package."""
    return smollm2_path()
