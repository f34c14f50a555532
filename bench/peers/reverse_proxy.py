"""The least that stands between a client and a server of models: hands requests on, and answers back as they come.

`python reverse_proxy.py URL [LOOP]` prints its port and serves until it is killed, on asyncio's own loop or on that of
the package LOOP.
"""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

URL, SESSION = web.AppKey("url", str), web.AppKey("session", aiohttp.ClientSession)


async def hand_on(request: web.Request) -> web.StreamResponse:
    url, body = request.app[URL] + request.path_qs, await request.read()
    headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
    async with request.app[SESSION].request(request.method, url, data=body, headers=headers) as answer:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]})
        await response.prepare(request)
        async for part in answer.content.iter_any():
            await response.write(part)
        await response.write_eof()
        return response


async def session(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as app[SESSION]:
        yield


async def main() -> None:
    app = web.Application()
    app[URL] = sys.argv[1]
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", hand_on)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    loops = [importlib.import_module(name).new_event_loop for name in sys.argv[2:]]
    with asyncio.Runner(loop_factory=next(iter(loops), None)) as runner:
        runner.run(main())
