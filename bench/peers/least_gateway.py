"""The least that answers a completion and keeps a signed record of it, to see what else the gateway costs.

`python -m bench.peers.least_gateway URL FILE` prints its port and serves until it is killed. As `mesh serve` does, it
asks the server at URL for the prompt's ids and then for the answer, and has two rows on disk for each, the second one
signed; rows that wait share a commit. It checks nothing, limits nothing, measures nothing and logs nothing.
"""

import asyncio
import os
import sqlite3
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import uvloop
from aiohttp import web
from nacl.signing import SigningKey

from mesh.engine.http_pool import Pool
from mesh.engine.http_response import AnswerReader

_RECORD_BYTES = 900  # of a receipt
_PATIENCE_S = 60

Job = tuple[bytes, bytes, bool, asyncio.Future[None]]


class Whole(AnswerReader):
    body = b""

    def take(self, data: bytes) -> None:
        self.body += data


class Rows:
    """A thread that writes what waits, in one transaction."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[Job] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, serve: bytes, text: bytes, *, signed: bool) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((serve, text, signed, future))
        return future

    def _run(self) -> None:
        db, key = sqlite3.connect(self._path, isolation_level=None), SigningKey.generate()
        for said in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE rows (id, text, signature)"):
            db.execute(said)
        while True:
            jobs = [self._waiting.get()]
            try:
                while True:
                    jobs.append(self._waiting.get_nowait())
            except Empty:
                pass
            rows = [(serve, text, key.sign(text).signature if signed else None) for serve, text, signed, _ in jobs]
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")
            self._loop.call_soon_threadsafe(_wake, [future for *_, future in jobs])


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


async def main(url: str, path: str) -> None:
    pool, rows = Pool(url, name="server", headers={}, limit=64, keep_s=_PATIENCE_S), Rows(path)
    decode, encode = msgspec.json.decode, msgspec.json.encode

    async def asked(path: str, body: dict[str, Any]) -> Any:
        answer = Whole()
        await pool.ask("POST", path, encode(body), answer, patience_s=_PATIENCE_S, in_all=True)
        if answer.status != 200:
            raise RuntimeError(f"{path}: answered {answer.status}: {answer.body[:200]!r}")
        return decode(answer.body)

    async def complete(request: web.Request) -> web.Response:
        body = decode(await request.read())
        ids = (await asked("/tokenize", {"model": body["model"], "prompt": body["prompt"]}))["tokens"]
        serve = os.urandom(16)
        await rows.put(serve, encode({"model": body["model"], "tokens": len(ids)}), signed=False)
        answer = await asked("/v1/completions", {**body, "prompt": ids, "return_token_ids": True})
        await rows.put(serve, encode({"usage": answer["usage"], "rest": "0" * _RECORD_BYTES}), signed=True)
        return web.Response(body=encode(answer), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2]))
