"""Names of images taken apart: registry path, name, tag, digest."""

from __future__ import annotations

from mesh.launch.recipe import without_tag

IMAGES_DIR = "docker-images"


def image_name(image: str) -> str:
    """Without registry path, tag and digest."""
    return without_tag(image.partition("@")[0], force=True).rpartition("/")[2]


def image_tag(image: str) -> str | None:
    _, colon, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    return tag if colon else None


def has_registry(image: str) -> bool:
    """Whether the name says which registry has it: without one, a node's own images are meant first."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
