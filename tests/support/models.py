"""The real model that the tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.cli.engines import packaged_model
from mesh.errors import UsageError


def smollm2_path() -> Path:
    """The packaged SmolLM2. Without it the test is skipped on a developer's machine, and fails in CI."""
    try:
        return packaged_model()
    except UsageError as e:
        if os.environ.get("CI"):
            pytest.fail(str(e))
        pytest.skip(str(e))
