"""Texts that are in the child to be made into ids, each with whoever waits for it."""

from __future__ import annotations

import asyncio

from mesh.engine.gguf_process import ChildProcess
from mesh.engine.gguf_watch import TEXTS, Watch
from mesh.errors import EngineError


class Texts:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[list[int]]] = {}

    async def ask(
        self, child: ChildProcess, watch: Watch, call: int, text: str, *, special: bool, bare: bool
    ) -> list[int]:
        """The ids of `text`; `call` is what the child's answer names. Raises what the child refuses it with, or ends
        with."""
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting[call] = answer
        watch.owe(TEXTS)
        try:
            child.send({"op": "encode", "call": call, "text": text, "special": special, "bare": bare})
            return await answer
        finally:
            del self._waiting[call]
            if not self._waiting:
                watch.settle(TEXTS)

    def answer(self, call: int, answer: list[int] | EngineError) -> None:
        """What the child says of one, who may have left meanwhile."""
        waiting = self._waiting.get(call)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, EngineError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def fail(self, reason: EngineError) -> None:
        for call in list(self._waiting):
            self.answer(call, type(reason)(str(reason)))
