"""This package's own client, without a start of Python for each case: a process that has loaded it forks for every
question. A fork is asked as PROTOCOL.md has it: in the case's folder, by words, for one line and an exit code. Nothing
that it does is left for the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import NoReturn, Self

from conformance.runner import TIMEOUT_S, Reply, reply_of

_ROOT = Path(__file__).parent.parent
# The package of this checkout, wherever this was started and whatever else is installed.
_START = "import sys; sys.path.insert(0, sys.argv[1]); from conformance.forked import serve; serve(int(sys.argv[2]))"

Main = Callable[[Sequence[str]], int]


class Forked:
    """An `Ask`, as a context. Questions are asked one after the other."""

    def __init__(self, *, timeout_s: int = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        words = [sys.executable, "-c", _START, str(_ROOT), str(timeout_s)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, question: Sequence[str], folder: Path) -> Reply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps([os.path.abspath(folder), *question]).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return Reply(None, "", "could not be started: the process that forks has ended")
            answer = self._process.stdout.readline()
        if not answer:
            return Reply(None, "", "could not be started: the process that forks has ended")
        code, stdout = json.loads(answer)
        if code == -signal.SIGALRM:
            return Reply(None, "", f"no answer within {self._timeout_s} s")
        return reply_of(code, bytes.fromhex(stdout))


def serve(timeout_s: int) -> None:
    """Answer each line of stdin, a folder and the words of a question, with a fork's exit code and stdout in hex."""
    from conformance.client import main

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    for line in sys.stdin.buffer:
        folder, *words = json.loads(line)
        code, stdout = fork(main, words, folder, timeout_s)
        sys.stdout.write(json.dumps([code, stdout.hex()]) + "\n")
        sys.stdout.flush()


def fork(main: Main, words: Sequence[str], folder: str, timeout_s: int) -> tuple[int, bytes]:
    """Exit code, or the negative number of a signal, and stdout. A fork that takes longer ends by SIGALRM."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(main, words, folder, writing, timeout_s)
    os.close(writing)
    with open(reading, "rb") as file:
        stdout = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), stdout


def _answer(main: Main, words: Sequence[str], folder: str, writing: int, timeout_s: int) -> NoReturn:
    code = 1  # what Python makes of an exception that nobody expected
    try:
        signal.alarm(timeout_s)
        os.chdir(folder)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number, there in enumerate((nowhere, writing, nowhere)):
            os.dup2(there, number)
        os.close(writing)
        try:
            code = main(words)
        finally:
            sys.stdout.flush()
    finally:
        os._exit(code)
