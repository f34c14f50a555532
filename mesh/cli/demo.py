"""`mesh demo`: a sealed serve from end to end, and two frauds that it catches."""

from __future__ import annotations

import argparse
import asyncio
import base64
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, say, stream_out
from mesh.cli.engines import PACKAGED, packaged_model, watts_u
from mesh.cli.exits import DIVERGED
from mesh.cli.specs import EngineSpec, GgufSpec, MeterSpec, ReferenceSpec
from mesh.engine.call_off import CallOff
from mesh.errors import MeshError, UsageError

if TYPE_CHECKING:
    from mesh.cli.assembly import Assembly
    from mesh.engine.protocol import Scores, Served, ServingEngine, TokenSink
    from mesh.replay.verdict import Verdict
    from mesh.schema.disclosure import Disclosure
    from mesh.schema.request import ServeRequest

QUESTION = "In one sentence: why is the sky blue?"
MAX_TOKENS = 64
FALSIFIED_POSITION = 5  # or the last of a shorter answer
# The demo's stated guess for one busy core. Receipts say `modelled` and name the figure; `mesh serve` has no default.
DEMO_WATTS = "10"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a sealed serve on a real model, verified, replayed, and two frauds caught",
        description="Serves a model on loopback, asks it one question, checks and replays the receipt, and shows that "
        "a changed answer and a falsified serve are caught. Keeps nothing. Exit code 10 where one of these fails.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--gguf", default=PACKAGED, metavar="FILE", help="another model than the packaged SmolLM2")
    which.add_argument("--reference", action="store_true", help="the reference engine, no model")
    parser.add_argument("--question", default=QUESTION, metavar="TEXT", help=f"what to ask the model ({QUESTION})")
    parser.add_argument(
        "--cpu-watts", type=watts_u, default=watts_u(DEMO_WATTS), metavar="W", help="watts of one busy core (10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    spec: EngineSpec = ReferenceSpec()
    if not args.reference:
        spec = GgufSpec(packaged_model() if args.gguf == PACKAGED else Path(args.gguf))
    with tempfile.TemporaryDirectory(prefix="mesh-demo-") as folder:
        report = asyncio.run(_demo(spec, args.cpu_watts, Path(folder), args.question, quiet=args.json))
    if args.json:
        emit(report)
    as_promised = (
        report["verdict"] == "verified"
        and report["changed"]["output"] == "differs"
        and report["falsified"]["verdict"] == "diverged"
        and report["falsified"]["first_difference"] == _falsified_position(report["tokens_out"])
    )
    return 0 if as_promised else DIVERGED


async def _demo(spec: EngineSpec, cpu_watts_u: int, folder: Path, question: str, *, quiet: bool) -> dict[str, Any]:
    from mesh.cli.assembly import assembled
    from mesh.cli.state import State
    from mesh.cli.words import receipt_words
    from mesh.gateway.app import Gateway
    from mesh.gateway.config import GatewayConfig
    from mesh.replay.replayer import replay
    from mesh.schema.disclosure import Disclosure, pack_ids
    from mesh.schema.envelope import RECEIPT_TYPE, verify

    tell = _mute if quiet else say
    began = time.monotonic()
    if not isinstance(spec, ReferenceSpec):
        note("loading the model and measuring whether it is deterministic ...")
    async with assembled(State(folder), [spec], meter=MeterSpec(cpu_watts_u)) as mesh:
        gateway = Gateway(mesh.steward, [mesh.engine], GatewayConfig())
        port = await gateway.start("127.0.0.1", 0)
        try:
            tell(f"serving {mesh.engine.recipe_id} ({mesh.engine.backend_id}) on http://127.0.0.1:{port}")
            tell()
            answer = await _ask(f"http://127.0.0.1:{port}", mesh.engine.recipe_id, question, quiet=quiet)
        finally:
            await gateway.stop()
        trust = {mesh.steward.public}
        entry = mesh.steward.reader.by_receipt(answer.receipt_id)
        if entry is None:
            raise MeshError(f"the ledger lacks receipt {answer.receipt_id.hex()}")
        sealed = verify(entry.envelope, RECEIPT_TYPE, trust)
        receipt = sealed.value
        tell()
        tell(receipt_words(receipt, sealed.id))
        tell()

        disclosure = Disclosure.from_bytes(answer.disclosure)
        honest = await replay(entry.envelope, disclosure, mesh.engine, trust)
        tell(f"replay of the serve:              {_told(honest)}")

        output = disclosure.output_ids or []
        changed_ids = [*output[:-1], output[-1] ^ 1]
        changed_disclosure = Disclosure.of(**{**disclosure.to_map(), "output": pack_ids(changed_ids)})
        changed = await replay(entry.envelope, changed_disclosure, mesh.engine, trust)
        tell(f"an answer changed after sealing:  {_caught(changed.output == 'differs')}{_told(changed)}")

        falsified = await _falsified(mesh, disclosure)
        tell(f"a serve falsified by its engine:  {_caught(falsified.kind == 'diverged')}{_told(falsified)}")
        tell()
        note(f"done in {time.monotonic() - began:.1f} s")

        energy = receipt.energy.to_map()
        return {
            "engine": {
                "backend_id": receipt.engine.backend_id,
                "recipe_id": receipt.engine.recipe_id,
                "weights_digest": _digest_text(receipt.engine.weights_digest),
                "deterministic": receipt.engine.deterministic,
            },
            "steward": f"ed25519:{receipt.steward.hex()}",
            "receipt_id": sealed.id.text,
            "answer": answer.text,
            "finish": receipt.outcome.finish,
            "tokens_in": receipt.outcome.tokens_in,
            "tokens_out": receipt.outcome.tokens_out,
            "energy": {name: energy[name] for name in ("basis", "uj", "span_ns", "reason") if name in energy},
            **honest.to_json(),
            "changed": changed.to_json(),
            "falsified": falsified.to_json(),
        }


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    receipt_id: bytes
    disclosure: bytes


async def _ask(url: str, model: str, question: str, *, quiet: bool) -> _Answer:
    """One streamed chat through the real OpenAI client."""
    from mesh.schema.ids import ContentId

    try:
        from openai import AsyncOpenAI
    except ImportError:
        raise UsageError("the demo talks through OpenAI's client: pip install 'servemesh[demo]'") from None
    parts: list[str] = []
    told: dict[str, Any] = {}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"mesh": {"disclose": True}},
        )
        if not quiet:
            say(f"> {question}\n")
        async for chunk in stream:
            told = (chunk.model_extra or {}).get("mesh") or told
            text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            parts.append(text)
            if not quiet:
                stream_out(text)
    if not quiet:
        say()
    packed = told["disclosure"]
    disclosure = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
    return _Answer("".join(parts), ContentId.from_text(told["receipt_id"]), disclosure)


async def _falsified(mesh: Assembly, disclosure: Disclosure) -> Verdict:
    """Serve the same request through an engine that swaps one token before it is committed to, and replay that."""
    from mesh.replay.replayer import replay
    from mesh.steward.steward import SealedServe

    falsifier: Any = Falsifier(mesh.engine, _falsified_position(len(disclosure.output_ids or ())))
    admitted = await mesh.steward.admit(disclosure.request, [falsifier], caller="demo")
    serve = await mesh.steward.serve(
        admitted, disclosure.payload_ids, _Collector(), serve_id=mesh.steward.new_serve_id()
    )
    if not isinstance(serve, SealedServe):
        raise MeshError("the falsified serve was not sealed")
    return await replay(serve.sealed.envelope, serve.disclosure(), mesh.engine, {mesh.steward.public})


def _falsified_position(tokens_out: int) -> int:
    """Where the falsifier swaps a token: inside of the answer, however short it is."""
    return max(0, min(FALSIFIED_POSITION, tokens_out - 1))


class Falsifier:
    """An engine that says it is another and changes the token at one position of what that one made."""

    def __init__(self, engine: ServingEngine, position: int) -> None:
        self._engine = engine
        self._position = position

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        from dataclasses import replace

        swapped = _Swapping(sink, self._position)
        served = await self._engine.serve(request, prompt, swapped)
        return replace(served, tokens=tuple(swapped.put_ids))


class _Swapping:
    def __init__(self, sink: TokenSink, position: int) -> None:
        self._sink = sink
        self._position = position
        self.cancelled = sink.cancelled
        self.put_ids: list[int] = []

    def put(self, token: int, scores: Scores | None = None) -> None:
        if len(self.put_ids) == self._position:
            token ^= 1
        self.put_ids.append(token)
        self._sink.put(token)


@dataclass(slots=True)
class _Collector:
    """A client that takes everything."""

    cancelled: CallOff = field(default_factory=CallOff)
    cut_by: str | None = None
    count: int = 0

    def put(self, token: int, scores: Scores | None = None) -> None:
        self.count += 1

    async def settle(self) -> int:
        return self.count


def _caught(yes: bool) -> str:
    """Said before the verdict, which by itself is no alarm: a changed answer is `Verified` with `output: differs`."""
    return "caught: " if yes else "NOT CAUGHT: "


def _told(verdict: Verdict) -> str:
    from mesh.cli.words import verdict_words

    return verdict_words(verdict)


def _digest_text(digest: bytes | None) -> str | None:
    return None if digest is None else f"b3:{digest.hex()}"


def _mute(text: str = "") -> None:
    """With --json, only the object is printed."""
