"""The command `mesh`: parse, run one command, turn what it raises into an exit code and one line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import mesh
from mesh.cli import chat, demo, disclose, key, receipts, replay, serve, verify, weights
from mesh.cli.console import emit, note
from mesh.cli.exits import INTERRUPTED, NOT_RUN, error_code, exit_code
from mesh.errors import UsageError

COMMANDS = (demo, serve, chat, receipts, verify, disclose, replay, key, weights)

_EXITS = """exit codes: 0 accepted or verified, 10 refused, diverged or malformed, 11 cannot be decided,
2 wrong usage, 3 could not run"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line like every other error: one line, or one JSON object."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    top = _Parser(prog="mesh", description=mesh.__doc__, epilog=_EXITS, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"mesh {mesh.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to fail
    where = "mesh"
    try:
        args = parser().parse_args(arguments)
        where = f"mesh {args.command}"
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as e:  # --help and --version
        return e.code if isinstance(e.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read the output has gone; what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_RUN
    except Exception as e:
        found = exit_code(e)
        if found is None:
            raise
        message = describe(e)
        if as_json:
            emit({"error": {"code": error_code(e), "message": message}})
        else:
            note(f"{where}: {message}")
        return found


def describe(error: Exception) -> str:
    """The message of an error, without the errno that Python puts before a file's."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
