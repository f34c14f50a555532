"""How many examples a property is tried on: all of them in the deep lane, a share of them in `make test`."""

from hypothesis import settings


def examples(count: int) -> int:
    """Of `count`, as many as this run tries: the profile's own number is a share in hundredths."""
    return max(1, count * settings.default.max_examples // 100)
