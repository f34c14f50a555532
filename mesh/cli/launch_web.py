"""`mesh launch web`: clusters, nodes and runs in the browser, with a look at them every so often."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, flush, note
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED
from mesh.cli.launch_flags import add_common_flags, ledgers, loaded, login_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.config import Loaded


def add(actions: Any) -> None:
    from mesh.cli.serve import port

    parser = actions.add_parser(
        "web",
        help="a page of clusters, nodes and runs, with their states as they are",
        description="Looks at the nodes every so often, and shows what was found on loopback. A gateway shows the same "
        "page where its mesh.toml names the state folder in [launch].",
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="an address of loopback (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8090, metavar="PORT", help="0 takes a free one (8090)")
    parser.add_argument("--every", type=positive, default=10, metavar="SECONDS", help="between looks (10)")
    parser.add_argument("--no-look", action="store_true", help="ask no node: show what another's looks have found")
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = loaded(args)
    if not config.config.clusters and not args.no_look:
        raise UsageError("no cluster in the configuration: add [[clusters]] or cluster_sources")
    asyncio.run(_serve(args, config))
    return ACCEPTED


async def _serve(args: argparse.Namespace, config: Loaded) -> None:
    from mesh.gateway.launch_page import LaunchPage

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    page = LaunchPage(ledgers(config))
    bound = await page.start(args.host, args.port)
    url = f"http://{f'[{args.host}]' if ':' in args.host else args.host}:{bound}"
    if args.json:
        emit({"url": url})
        flush()
    note(f"showing {ledgers(config)} on {url}/launches")
    looking = None if args.no_look else asyncio.create_task(_look(args, config))
    try:
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, *([looking] if looking else [])}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if looking is not None and looking.done():
            looking.result()
    finally:
        if looking is not None:
            looking.cancel()
        await page.stop()


async def _look(args: argparse.Namespace, config: Loaded) -> None:
    """For ever. What ends it, a login that says too little, ends the command."""
    from mesh.launch.fleet import survey
    from mesh.launch.live import write_live
    from mesh.launch.plugins import load_plugins

    plugins = load_plugins()

    while True:
        fleet = await survey(config.config, ledgers(config), login_of(config), now_ns=time.time_ns, plugins=plugins)
        write_live(ledgers(config), fleet, args.every)
        await asyncio.sleep(args.every)
