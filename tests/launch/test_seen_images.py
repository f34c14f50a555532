"""RC-02: what was seen of an image before it vanished, and which words of docker mean that it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.launch.seen_images import SeenImages, is_gone


def test_image_is_told_as_it_was_last_seen_and_a_lost_file_loses_nothing_else(tmp_path: Path) -> None:
    seen = SeenImages(tmp_path / "s" / "images.json")
    assert seen.words("img:1") == "never seen from here"
    seen.add("img:1", what="sha256:1", where="a", at_ns=1_700_000_000 * 10**9)
    seen.add("img:2", what="sha256:2", where="b", at_ns=1)
    assert seen.words("img:1") == "last seen 2023-11-14 22:13:20Z on a as sha256:1"
    seen.path.write_text("{")
    assert seen.words("img:1") == "never seen from here"
    seen.add("img:1", what="sha256:3", where="a", at_ns=0)
    assert "sha256:3" in seen.words("img:1")


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ("Error response from daemon: manifest for a/b:c not found: manifest unknown: manifest unknown", True),
        ("Error response from daemon: pull access denied for x, repository does not exist or may require", True),
        ("Error response from daemon: Get https://r/v2/: dial tcp: lookup r: no such host", False),
        ("Error response from daemon: Get https://r/v2/: net/http: request canceled", False),
        ("denied: requested access to the resource is denied", False),
    ],
)
def test_gone_is_what_a_registry_says_and_not_that_nobody_could_ask(said: str, gone: bool) -> None:
    assert is_gone(said) == gone
