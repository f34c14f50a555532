"""The command `mesh`: parse, run one command, turn what it raises into an exit code and one line."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import mesh
from mesh.cli.console import emit, flush, note
from mesh.cli.exits import INTERRUPTED, NOT_RUN, error_code, exit_code
from mesh.errors import UsageError

# Each a module of this room: one that nobody asks for is not loaded, which a server would carry for as long as it runs.
COMMANDS = (
    "demo",
    "serve",
    "chat",
    "receipts",
    "verify",
    "disclose",
    "replay",
    "audit",
    "grant",
    "key",
    "weights",
    "identity",
    "route",
    "blueprint",
    "runtime",
    "launch",
    "meter",
    "conformance",
)

_EXITS = """exit codes: 0 accepted or verified, 10 refused, diverged or malformed, 11 cannot be decided,
2 wrong usage, 3 could not run"""
_HELP_WIDTH = 100


class _Help(argparse.HelpFormatter):
    """Lines that stay readable in a wide terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, _HELP_WIDTH))


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line like every other error: one line, or one JSON object."""

    def __init__(self, **options: Any) -> None:
        # no abbreviations: what a script writes today must not become ambiguous with the next option
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What follows `--` are flags for a server of our own. argparse by itself would not take them for that where
        options stand between them and the command's files."""
        before = list(args)
        if "--" not in before or all(action.dest != "flags" for action in self._actions):
            return super().parse_known_args(args, namespace)
        at = before.index("--")
        found, rest = super().parse_known_args(before[:at], namespace)
        found.flags = [*found.flags, *before[at + 1 :]]
        return found, rest

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Of one command alone, where it is known which."""
    top = _Parser(prog="mesh", description=mesh.__doc__, epilog=_EXITS)
    top.add_argument("--version", action="version", version=f"mesh {mesh.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS if command is None else (command,):
        import_module(f"mesh.cli.{name}").add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in arguments
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to fail
    where = "mesh"
    try:
        named = arguments[0] if arguments and arguments[0] in COMMANDS else None
        args = parser(named).parse_args(arguments)
        where = f"mesh {args.command}"
        code: int = args.run(args)
        flush()
        return code
    except SystemExit as e:  # --help and --version
        return e.code if isinstance(e.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # whoever read it has gone
        return NOT_RUN
    except Exception as e:
        found = exit_code(e)
        if found is None:
            raise
        _report(e, where, as_json=as_json)
        return found


def _report(error: Exception, where: str, *, as_json: bool) -> None:
    """Say what went wrong on the stream that is meant for it; on stderr where stdout takes nothing."""
    message = describe(error)
    try:
        if as_json:
            emit({"error": {"code": error_code(error), "message": message}})
        sys.stdout.flush()
    except OSError:
        _drop_output()
        as_json = False
    if not as_json:
        note(f"{where}: {message}")


def _drop_output() -> None:
    """What is still buffered for stdout must not fail again at exit."""
    with contextlib.suppress(OSError, ValueError):  # no stream of the system, but one that a test put there
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _open_closed_streams() -> None:
    """Give the number of a standard stream that was closed to something that fails when used, so that no file opened
    later gets it and is written over with messages. What is said on a closed stderr is lost."""
    for number, name, mode, access in (
        (0, "stdin", "r", os.O_WRONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None and os.open(os.devnull, access) == number:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for the rest of the run


def describe(error: Exception) -> str:
    """The message of an error, without the errno that Python puts before a file's."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
