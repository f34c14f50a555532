"""A server of our own through its lives: launched, waited for until it answers, launched again with back-off."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mesh.engine.excess import Excess, ExcessWatch
from mesh.engine.server_port import KeptPort
from mesh.engine.vllm_http import VllmServer
from mesh.engine.vllm_managed import ManagedServer
from mesh.errors import EngineError, EngineFailed, UsageError

log = logging.getLogger(__name__)

Launch = Callable[[Callable[[EngineError], None]], Awaitable[ManagedServer]]

_POLL_S: Final = 0.25  # between two looks at a server that is starting
_RESTART_FIRST_S: Final = 1.0
_RESTART_MOST_S: Final = 60.0


class OwnServer:
    """`ended` is how it ended, None while it runs or loads; `lost` hears of each end that nobody asked for. `failures`
    counts starts since somebody last set it to 0. One that does not answer within `start_s` seconds is ended, as is one
    of which `excess` says why. `port` is kept for it until `close`."""

    def __init__(
        self, launch: Launch, server: VllmServer, lost: Callable[[EngineError], None], *, start_s: float,
        excess: Excess | None = None, port: KeptPort | None = None,
    ) -> None:  # fmt: skip
        self._port = port
        self._start_s = start_s
        self._excess = ExcessWatch(excess, self._exceeded)
        self._ending: asyncio.Task[None] | None = None
        self.ended: EngineError | None = None
        self.failures = 0
        self._launch, self._server, self._lost = launch, server, lost
        self._managed: ManagedServer | None = None

    @property
    def pid(self) -> int | None:
        return None if self._managed is None else self._managed.pid

    async def begin(self) -> None:
        """Launch one in place of what is left of the last, and wait until it answers. Raises how it ended, if it
        did, and EngineFailed with its last lines where it took too long."""
        await self.stop()
        self.ended = None
        self._managed = await self._launch(self._on_end)
        self._excess.start(self._managed.pid)
        give_up_s = time.monotonic() + self._start_s
        while True:
            if self.ended is not None:
                raise self.ended
            try:
                await self._server.models()
            except EngineError:
                if time.monotonic() >= give_up_s:
                    said = self._managed.said
                    await self.stop()
                    raise EngineFailed(f"vllm server: did not answer within {self._start_s:g} s{said}") from None
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def begin_again(self, may: Callable[[], Awaitable[None]], is_it: Callable[[], Awaitable[None]]) -> None:
        """Begin one until it is as before, later each time. `may` raises where there is no use in it, `is_it` where it
        is another."""
        while True:
            await asyncio.sleep(min(_RESTART_FIRST_S * 2 ** min(self.failures, 16), _RESTART_MOST_S))
            self.failures += 1
            try:
                await may()
                await self.begin()
                await is_it()
            except (EngineError, UsageError) as e:  # UsageError: it serves another model now
                log.warning("vllm engine: not started again: %s", e)
                continue
            if self.ended is None:
                return

    async def stop(self) -> None:
        self._excess.stop()
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.cancel()
            await asyncio.wait({ending})
        if self._managed is not None:
            await self._managed.stop()

    async def close(self) -> None:
        """Stop it for good."""
        try:
            await self.stop()
        finally:
            if self._port is not None:
                self._port.close()

    def _exceeded(self, why: str) -> None:
        assert self._managed is not None
        self._ending = asyncio.create_task(self._end(self._managed, EngineFailed(f"vllm server: {why}")))

    async def _end(self, managed: ManagedServer, reason: EngineError) -> None:
        try:
            await managed.stop()
        except EngineFailed as e:  # some of it could not be ended
            reason = EngineFailed(f"{reason}; {e}")
        self._ending = None
        self._on_end(reason)

    def _on_end(self, reason: EngineError) -> None:
        self._excess.stop()
        self.ended = reason
        self._lost(reason)
