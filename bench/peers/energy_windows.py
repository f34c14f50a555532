"""Opens and closes windows of energy with another library, over and over, for whoever writes to its standard input.

Arguments: the library, and a powercap tree that it is made to find in the place of the kernel's. Then one number of
windows a line. One line out for each line in, after one with the library's version: nanoseconds of CPU time, all
threads together, for all those windows.
"""

import importlib.machinery
import importlib.metadata
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

KERNELS = b"/sys/class/powercap"


def main(library: str, tree: str) -> None:
    _move_the_kernels_tree(tree)
    logging.disable(logging.CRITICAL)
    window = {"pyJoules": _pyjoules, "zeus": _zeus, "codecarbon": _codecarbon}[library]()
    window(0)
    _answer(importlib.metadata.version(library))
    number = 0
    for line in sys.stdin:
        windows = int(line)
        start = time.process_time_ns()
        for _ in range(windows):
            number += 1
            window(number)
        _answer(str(time.process_time_ns() - start))


def _move_the_kernels_tree(tree: str) -> None:
    """Each of them has the path in its source, in several places: it is changed as the source is loaded."""
    sys.dont_write_bytecode = True
    sys.pycache_prefix = tempfile.gettempdir() + "/no-such-folder"  # nor read what was compiled before
    loader = importlib.machinery.SourceFileLoader
    get_data = loader.get_data

    def changed(self: Any, path: str) -> bytes:
        data = get_data(self, path)
        return data.replace(KERNELS, tree.encode()) if path.endswith(".py") else data

    loader.get_data = changed  # type: ignore[method-assign]


def _pyjoules() -> Callable[[int], None]:
    from pyJoules.device.rapl_device import RaplDevice  # type: ignore[import-not-found]
    from pyJoules.energy_meter import EnergyMeter  # type: ignore[import-not-found]

    device = RaplDevice()
    device.configure()
    if len(device.get_configured_domains()) != 2:
        raise SystemExit("it did not find the package and its memory")
    meter = EnergyMeter([device])

    def window(number: int) -> None:
        meter.start(tag="window")
        meter.stop()
        if len(meter.get_trace()) != 1:
            raise SystemExit("not one sample")

    return window


def _zeus() -> Callable[[int], None]:
    from zeus.monitor import ZeusMonitor  # type: ignore[import-not-found]

    monitor = ZeusMonitor(gpu_indices=[], cpu_indices=[0])

    def window(number: int) -> None:
        monitor.begin_window("window", sync_execution=False)
        if 0 not in (monitor.end_window("window", sync_execution=False).cpu_energy or {}):
            raise SystemExit("no energy of the processor")

    return window


def _codecarbon() -> Callable[[int], None]:
    from codecarbon import OfflineEmissionsTracker  # type: ignore[import-not-found]

    tracker = OfflineEmissionsTracker(
        country_iso_code="FRA",
        save_to_file=False,
        log_level="critical",
        allow_multiple_runs=True,
        tracking_mode="process",  # what one process did, as a serve's figure is what its engine did
    )
    if "rapl" not in str(tracker._conf).lower() and not any(
        "rapl" in str(vars(hw)).lower() for hw in tracker._hardware
    ):
        raise SystemExit("it did not find the tree")

    def window(number: int) -> None:
        tracker.start_task(f"window {number}")
        tracker.stop_task(f"window {number}")

    return window


def _answer(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
