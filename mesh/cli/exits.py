"""Exit codes: what a script may act on, and which error means which."""

from __future__ import annotations

from mesh.errors import Invalid, LedgerCorrupt, MeshError, Refused, Undecidable, UsageError

ACCEPTED = 0
BUG = 1
USAGE = 2
NOT_RUN = 3  # a file, a device, an engine or the network stood in the way
REFUSED = 10  # refused or malformed
DIVERGED = 10
UNDECIDED = 11  # an unknown steward, a serve that cannot be replayed
INTERRUPTED = 130


def exit_code(error: Exception) -> int | None:
    """The exit code of an error that a command may end in; None where only a bug raises it."""
    match error:
        case UsageError():
            return USAGE
        case Invalid() | Refused() | LedgerCorrupt():
            return REFUSED
        case Undecidable():
            return UNDECIDED
        case MeshError() | OSError():
            return NOT_RUN
        case _:
            return None


def error_code(error: Exception) -> str:
    """The stable word for an error in JSON."""
    return error.code if isinstance(error, MeshError) else "io"
