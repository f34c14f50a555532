"""RC-04 and RC-06, as the cases put them: a file with merge markers, and three files that describe one server."""

from __future__ import annotations

import pytest

from mesh.errors import UsageError
from mesh.launch.foreign import read_yaml
from tests.launch.foreign_examples import STATEFUL


def with_markers(text: str) -> str:
    """A merge that was never finished, in the middle of the document."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if "--port" in line)
    return "\n".join([*lines[:at], "<<<<<<< HEAD", lines[at], "=======", lines[at], ">>>>>>> main", *lines[at + 1 :]])


def test_rc_04_merge_conflict_markers_are_named_by_their_lines() -> None:
    text = with_markers(STATEFUL)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line[:7] in ("<<<<<<<", "=======", ">>>>>>>")]
    with pytest.raises(UsageError, match=f"merge-conflict markers in lines {', '.join(map(str, lines))}"):
        read_yaml(text.encode(), "statefulset.yaml")
