"""Hands connections on from one address to another: through a path a network namespace is reached from outside.

python relay.py HERE THERE, each HOST:PORT or a path
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):  # also where a side broke off: the other has to learn it
        writer.write_eof()


async def main(here: str, there: str) -> None:
    # nothing else holds a task whose caller has left and whose server is silent: it would be collected, and complain
    running: set[asyncio.Task[None]] = set()

    def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(join(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if there.startswith("/"):
                answers, onward = await asyncio.open_unix_connection(there)
            else:
                answers, onward = await asyncio.open_connection(*there.split(":"))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, onward), pump(answers, writer))
        for one in (writer, onward):
            one.close()

    if here.startswith("/"):
        server = await asyncio.start_unix_server(joined, here)
    else:
        server = await asyncio.start_server(joined, *here.split(":"))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
