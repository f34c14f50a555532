"""The event loop of a server that runs for long, and what its process need not do at each serve."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mesh.errors import UsageError

_M_ARENA_MAX: Final = -8  # malloc.h
_NEW_OBJECTS: Final = 10_000  # between two looks of the collector, in place of 700; a serve holds about a hundred


def loop_of(uvloop: bool | None) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop, None for asyncio's own: uvloop's where it is asked for, and where nobody says and it is
    installed. Raises UsageError where it is asked for and is not."""
    if uvloop is False:
        return None
    try:
        from uvloop import new_event_loop
    except ImportError:
        if uvloop:
            raise UsageError("--uvloop needs the package: pip install uvloop") from None
        return None
    return new_event_loop


def one_heap() -> None:
    """Have all threads allocate from one heap, where the C library can be told: each would have one of its own, most of
    it empty, and hold megabytes for the two or three that run beside the loop. To be called before there are any."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """To be called once everything is started, which then stays for good: the collector need not walk it again and
    again. It looks seldom, as no answer and no refusal leaves it anything (`tests/gateway/test_circles.py`); what a
    crowd of serves holds at once is no reason to look."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
