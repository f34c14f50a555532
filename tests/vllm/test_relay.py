"""What hands connections on into a network namespace says nothing of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
CALLS = 10


def test_relay_of_a_silent_server_keeps_quiet_when_callers_leave(tmp_path: Path) -> None:
    async def main() -> None:
        asked: asyncio.Queue[bool] = asyncio.Queue()
        left: asyncio.Queue[bytes] = asyncio.Queue()
        over, ended = asyncio.Event(), asyncio.Queue[bool]()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            asked.put_nowait(True)
            left.put_nowait(await reader.read())
            await over.wait()
            writer.close()
            ended.put_nowait(True)

        here, there = str(tmp_path / "here"), str(tmp_path / "there")
        async with await asyncio.start_unix_server(silent, there):
            relay = await asyncio.create_subprocess_exec(
                sys.executable, "-X", "dev", "-c", _COLLECTING, str(HERE), here, there,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": ""},
            )  # fmt: skip
            assert relay.stdout is not None
            assert await relay.stdout.readline() == b"listening\n"
            for number in range(CALLS):
                _, writer = await asyncio.open_unix_connection(here)
                writer.write(b"x")
                await writer.drain()
                await asked.get()
                if number % 2:
                    writer.close()
                else:
                    writer.transport.abort()
                assert await left.get() == b""  # the server learns it
            assert relay.stdin is not None
            relay.stdin.write(b"\n")
            assert await relay.stdout.readline() == b"collected\n"
            relay.terminate()
            _, said = await relay.communicate()
            assert said == b""
            over.set()
            for _ in range(CALLS):
                await ended.get()

    asyncio.run(main())


# Collects what nothing holds when it is told to.
_COLLECTING = """
import asyncio, gc, sys
here, sys.argv[:] = sys.argv[1], sys.argv[2:]
sys.path.insert(0, here)
import relay

async def listen():
    started = asyncio.start_unix_server
    async def start(*words):
        server = await started(*words)
        print("listening", flush=True)
        return server
    asyncio.start_unix_server = start
    def collect():
        sys.stdin.readline()
        gc.collect()
        print("collected", flush=True)
    asyncio.get_running_loop().add_reader(sys.stdin, collect)
    await relay.main(*sys.argv)

asyncio.run(listen())
"""
