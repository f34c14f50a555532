"""A process that seals until it is killed and says each receipt's id once it is acknowledged: `PATH SEED ROUND`."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path

from mesh.ledger import Ledger
from mesh.schema.envelope import SigningKey

THREADS = 6


def main() -> None:
    path, seed, round_ = Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    spec = importlib.util.spec_from_file_location("conftest", Path(__file__).with_name("conftest.py"))
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    maker = conftest.Maker(SigningKey(seed))
    ledger = Ledger.open(path, steward=maker.steward)

    def seal(thread: int) -> None:
        for number in range(round_ * 1_000_000, (round_ + 1) * 1_000_000):
            made = maker.serve(ledger, number, thread=thread)
            sys.stdout.write(made.id.hex() + "\n")  # one write per line: threads share the pipe
            sys.stdout.flush()

    threads = [threading.Thread(target=seal, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
