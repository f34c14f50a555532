"""A process that draws 5 microjoules a serve from a total of 2,000 until nothing is left or it is killed: `PATH SEED
ROUND`. Every seventh receipt says nothing of its energy."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

from mesh.errors import GrantRefused
from mesh.ledger import Ledger
from mesh.schema.envelope import SigningKey

THREADS = 6


def beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    path, seed, round_ = Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    maker = beside("conftest").Maker(SigningKey(seed))
    totals = beside("test_totals")
    ledger = Ledger.open(path, steward=maker.steward)

    def spend(thread: int) -> None:
        for number in range(round_ * 10_000 + thread, (round_ + 1) * 10_000, THREADS):
            wanted = maker.intent(maker.serve_id(number)).but(grant_id=totals.GRANT, draws=(totals.draw(5, 2000),))
            try:
                ledger.open_intent(wanted).result()
            except GrantRefused:
                return
            uj = None if number % 7 == 0 else number % 6
            ledger.seal(maker.serve_id(number), totals.sealing(maker, number, uj)).result()
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

    threads = [threading.Thread(target=spend, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
