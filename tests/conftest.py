"""What holds for every test, however the run was started."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

MOST = 8

# How long an example takes says how busy the machine is. In CI the examples are the same each time, as hypothesis has
# it there. `make test` tries a third of them, the deep lane all: tests/support/examples.py.
for name, share in (("some", 33), ("all", 100)):
    settings.register_profile(
        name,
        parent=settings.default,
        max_examples=share,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("some")

# A shell starts what runs in its background deaf to Ctrl-C, and a process hands that down: a command under test would
# never hear the Ctrl-C that its test sends.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The cores that this process may run on: by itself pytest-xdist counts the machine's, or half of them."""
    return min(len(os.sched_getaffinity(0)), MOST)
