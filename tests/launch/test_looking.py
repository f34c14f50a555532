from __future__ import annotations

import pytest

from mesh.launch.looking import pane_end
from mesh.launch.ssh import Done


@pytest.mark.parametrize(
    ("done", "how"),
    [
        (Done(0, "812 1 3,\n", ""), "status 3"),
        (Done(0, "812 1 0,\n", ""), "status 0"),
        (Done(0, "812 1 ,9\n", ""), "signal 9"),
        (Done(0, "812 1 3, \n", ""), "status 3"),
        (Done(0, "812 1 , Z 768\n", ""), "status 3"),
        (Done(0, "812 1 , Z 0\n", ""), "status 0"),
        (Done(0, "812 1 , Z 9\n", ""), "signal 9"),
        (Done(0, "812 1 , Z 139\n", ""), "signal 11"),
        (Done(0, "812 1 , \n", ""), "status unknown"),
        (Done(0, "812 1 , R 0\n", ""), None),
        (Done(0, "812 1\n", ""), None),
        (Done(0, "812 0 , S 0\n", ""), None),
        (Done(0, "812 0 ,\n", ""), None),
        (Done(0, "none\n", ""), None),
        (Done(0, "", ""), None),
        (Done(127, "", "tmux: not found\n"), None),
        (Done(None, "812 1 3,\n", ""), None),
    ],
)
def test_end_of_an_engine_is_told_and_one_not_yet_waited_for_by_the_kernel(done: Done, how: str | None) -> None:
    assert pane_end(done) == how
