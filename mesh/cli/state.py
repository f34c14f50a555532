"""The state directory: the signing key and the ledger, in one place that only its owner can read."""

from __future__ import annotations

import argparse
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import KeyFileError

if TYPE_CHECKING:
    from mesh.ledger.reader import LedgerReader
    from mesh.schema.envelope import SigningKey

LEDGER_NAME = "ledger.sqlite"
KEY_NAME = "key"


@dataclass(frozen=True, slots=True)
class State:
    root: Path

    @property
    def key(self) -> Path:
        return self.root / KEY_NAME

    @property
    def ledger(self) -> Path:
        return self.root / LEDGER_NAME

    def open_reader(self) -> LedgerReader:
        """The ledger, read-only, beside a running gateway. Raises LedgerError or OSError."""
        from mesh.ledger.reader import LedgerReader

        if not self.ledger.exists():
            raise FileNotFoundError(f"{self.root}: no ledger here; `mesh serve` makes one, --state names another place")
        return LedgerReader.open(self.ledger)

    def own_key(self) -> SigningKey:
        """The signing key, a new one in a new place. Beside a ledger a missing key was lost, and a new one would seal
        nothing there and stand in the way of the backup. Raises KeyFileError."""
        from mesh.steward import keys

        if os.path.lexists(self.ledger) and not os.path.lexists(self.key):
            raise KeyFileError(
                f"key file {self.key}: does not exist, and the ledger beside it is sealed with it; put its backup "
                "there, or start in another state directory with a new key"
            )
        return keys.load_or_create(self.key)

    @property
    def begun(self) -> bool:
        """Whether anything of a key or a ledger is there."""
        return os.path.lexists(self.key) or os.path.lexists(self.ledger)

    def check_place(self) -> None:
        """Look, and make nothing, whether a key could be made here. Raises KeyFileError."""
        place = self.root
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        fault = None if place.is_dir() else errno.ENOTDIR
        if fault is None and not os.access(place, os.W_OK | os.X_OK):
            fault = errno.EACCES
        if fault is not None:
            raise KeyFileError(f"key file {self.key}: {place}: {os.strerror(fault).lower()}")

    @property
    def begins_again(self) -> bool:
        """Whether there is a key and nothing of its ledger: what the key sealed before, if anything, was lost."""
        return os.path.lexists(self.key) and not (self.ledger.exists() and self.ledger.stat().st_size)

    def load_key(self) -> SigningKey:
        """The signing key. Raises KeyFileError."""
        from mesh.steward import keys

        return keys.load(self.key)


def add_state_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", metavar="DIR", type=Path, help="key and ledger (default: $MESH_STATE or ~/.local/state/mesh)"
    )


def state_of(args: argparse.Namespace) -> State:
    return State(args.state if args.state is not None else default_state())


def default_state() -> Path:
    """$MESH_STATE, else `mesh` in the XDG state directory. An empty or relative XDG_STATE_HOME does not count."""
    own = os.environ.get("MESH_STATE")
    if own:
        return Path(own)
    xdg = os.environ.get("XDG_STATE_HOME", "")
    return (Path(xdg) if xdg.startswith("/") else Path.home() / ".local" / "state") / "mesh"
