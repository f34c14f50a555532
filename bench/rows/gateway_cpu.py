"""What the gateway costs beside a reverse proxy that hands the same request on, and beside the LiteLLM proxy.

All stand in front of one server that only looks like vLLM, each in a process of its own, and only that process's CPU
time counts. The reverse proxy does nothing but hand on; the gateway tokenizes over HTTP, looks whether the server is
still the one it knows, checks and counts every id, and seals a receipt. A plain answer it asks for in one piece, as
the others do. Where several ask at once it has a slot for each: the others make nobody wait either. The gateway runs on
uvloop, which it takes by itself, as LiteLLM does; the reverse proxy on asyncio's loop, unless the row says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version

from bench import fronts
from bench.fronts import CHUNKS, Front
from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides
from bench.scratch import scratch

_REQUESTS_PER_CALL = 8  # a request costs a thousand times what the calls of other rows do
_EACH = 4  # requests on a connection, at least, where connecting would show
_FEWER = 5  # rounds where a round takes LiteLLM half a minute


# Of the threads' own CPU times, 16 and 64 at once, and of samples of their stacks.
_PLAIN_LIMIT = (
    "a quarter is the ledger's thread (two durable writes and a signature); of the rest half is the event loop, the"
    " sockets and aiohttp's server, which the proxy has too, and half the 730 calls that read the body strictly, ask"
    " for the prompt's ids, check, count, meter, admit and log. What is asked of the server and of the disk costs no"
    " more than the proxy does: the least gateway has a row of its own"
)
_STREAMED_LIMIT = (
    "a third is taking the server's events apart, checking and counting them, of which the proxy only hands on the"
    " bytes; a fifth is writing ours, which is what the proxy does too; a twentieth is the ledger's thread, and the"
    " rest what a plain answer costs beside it"
)


@contextmanager
def _cpu(plan: Plan, *, peer: str, callers: int, streamed: bool, loop: str | None) -> Iterator[Sides]:
    with scratch("gateway") as folder, ExitStack() as stack:
        server = stack.enter_context(fronts.upstream(folder))
        flags = [
            "--slots",
            str(callers),
            *([] if loop is None else ["--uvloop" if loop == "uvloop" else "--no-uvloop"]),
        ]
        ours = stack.enter_context(fronts.gateway(folder, server.url, *flags))
        each = _EACH if peer == "proxy" else 1
        requests = max(each * callers, plan.cpu_calls // _REQUESTS_PER_CALL)
        measured = partial(Front.cpu_us, requests=requests, callers=callers, streamed=streamed)
        if peer == "proxy":
            loops = ["uvloop"] if loop == "uvloop" else []
            bare = stack.enter_context(fronts.reverse_proxy(server.url, *loops))
            named = ", ".join(f"{package} {version(package)}" for package in ("aiohttp", *loops))
            yield Sides(partial(measured, ours), partial(measured, bare), named)
            return
        try:
            other = stack.enter_context(fronts.litellm(folder, server.url))
        except PeerMissing as e:
            yield Sides(partial(measured, ours), e)
            return
        yield Sides(partial(measured, ours), partial(measured, other), "1.108.7, one worker")


@contextmanager
def _least(plan: Plan, callers: int) -> Iterator[Sides]:
    with scratch("gateway") as folder, ExitStack() as stack:
        server = stack.enter_context(fronts.upstream(folder))
        least = stack.enter_context(fronts.least_gateway(folder, server.url))
        bare = stack.enter_context(fronts.reverse_proxy(server.url))
        requests = max(_EACH * callers, plan.cpu_calls // _REQUESTS_PER_CALL)
        measured = partial(Front.cpu_us, requests=requests, callers=callers, streamed=False)
        yield Sides(partial(measured, least), partial(measured, bare), f"aiohttp {version('aiohttp')}")


@contextmanager
def _added(plan: Plan) -> Iterator[Sides]:
    """What each adds to the time that the server takes when asked directly, in the same round and in turns."""
    requests = max(8, plan.cpu_calls // _REQUESTS_PER_CALL)
    with scratch("gateway") as folder, ExitStack() as stack:
        server = stack.enter_context(fronts.upstream(folder))
        ours = stack.enter_context(fronts.gateway(folder, server.url))
        bare = stack.enter_context(fronts.reverse_proxy(server.url))
        added = partial(Front.added_us, server=server, requests=requests)
        yield Sides(partial(added, ours), partial(added, bare), f"aiohttp {version('aiohttp')}")


@contextmanager
def _memory(plan: Plan) -> Iterator[Sides]:
    requests = max(16, plan.cpu_calls // _REQUESTS_PER_CALL)
    with scratch("gateway") as folder, ExitStack() as stack:
        server = stack.enter_context(fronts.upstream(folder))
        ours = stack.enter_context(fronts.gateway(folder, server.url))

        def held(front: Front) -> float:
            front.cpu_us(requests, 16, streamed=False)
            return front.memory_mib()

        try:
            other = stack.enter_context(fronts.litellm(folder, server.url))
        except PeerMissing as e:
            yield Sides(partial(held, ours), e)
            return
        yield Sides(partial(held, ours), partial(held, other), "1.108.7, one worker")


@contextmanager
def _start(plan: Plan) -> Iterator[Sides]:
    with scratch("gateway") as folder, fronts.upstream(folder) as server:
        number = iter(range(1000))

        def ours() -> float:
            with fronts.gateway(folder, server.url, state=f"state{next(number)}") as front:
                return front.started_s

        def other() -> float:
            with fronts.litellm(folder, server.url) as front:
                return front.started_s

        try:
            other()
        except PeerMissing as e:
            yield Sides(ours, e)
            return
        yield Sides(ours, other, "1.108.7, one worker")


def _comparison(peer: str, callers: int, goal: float, *, streamed: bool, loop: str | None = None) -> Comparison:
    kind = "streamed" if streamed else "plain"
    bare = peer == "proxy"
    return Comparison(
        name=f"gateway vs {'reverse proxy' if bare else 'LiteLLM'}, {kind}, {callers} at once"
        + ("" if loop is None else f", both on {loop}"),
        unit="us CPU",
        ours=f"the gateway's process for an answer of {CHUNKS} tokens, {kind}: receipt sealed, ledger on disk",
        peer="a reverse proxy of 40 lines for the same request, which only hands on"
        if bare
        else "the LiteLLM proxy for the same request, without a database or a log of what was spent",
        goal=Goal("<=", goal),
        sides=partial(_cpu, peer=peer, callers=callers, streamed=streamed, loop=loop),
        rounds=None if bare else _FEWER,
        limit=_STREAMED_LIMIT if streamed else _PLAIN_LIMIT,
    )


BARE = tuple(
    _comparison("proxy", callers, 2 if streamed else 3, streamed=streamed, loop=loop)
    for streamed in (False, True)
    for callers, loop in ((16, None), (64, None), (64, "asyncio"), (64, "uvloop"))
)
LEAST = Comparison(
    name="the least gateway vs reverse proxy, plain, 64 at once",
    unit="us CPU",
    ours="asking for ids and for the answer, two rows on disk, one signed, and nothing else that a gateway does",
    peer="a reverse proxy of 40 lines for the same request",
    goal=None,
    sides=partial(_least, callers=64),
)
LITELLM = tuple(
    _comparison("litellm", callers, 0.1 if streamed else 0.0666, streamed=streamed)
    for streamed in (False, True)
    for callers in (16, 64)
)
ADDED = Comparison(
    name="time added, gateway vs reverse proxy",
    unit="us wall",
    ours="what the gateway adds to a plain answer in the median, one caller alone",
    peer="what a reverse proxy of 40 lines adds",
    goal=Goal("<=", 5),
    sides=_added,
    limit="two durable writes, one before the serve and one before its answer, and a second question to the server come"
    " one after another: whoever is alone waits for each",
)
MEMORY = Comparison(
    name="memory, gateway vs LiteLLM",
    unit="MiB",
    ours="the gateway's processes after a round of requests, 16 at once, the pages that they share counted once",
    peer="the LiteLLM proxy after the same",
    goal=Goal("<=", 0.25),
    sides=_memory,
    rounds=_FEWER,
    limit="two interpreters of 10 MiB (chat templates of strangers are rendered in a process of their own), aiohttp 17,"
    " asyncio 8, pydantic 9, jinja2 5; the rest is the gateway's own",
)
START = Comparison(
    name="start, gateway vs LiteLLM",
    unit="s wall",
    ours="from the start of the process to its first answer, the self-check of its engine included",
    peer="the same of the LiteLLM proxy",
    goal=Goal("<=", 0.2),
    sides=_start,
    rounds=_FEWER,
)
