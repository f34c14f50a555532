"""One model over two network hosts: certified by a forward of its own before it serves, refused where it is not one
model, and ended honestly when a host dies under it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from mesh.cli.assembly import assembled
from mesh.cli.main import main
from mesh.cli.specs import VllmSpec
from mesh.cli.state import State
from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.engine.vllm_http import VllmServer
from mesh.engine.vllm_identity import WeightsFolder
from mesh.engine.vllm_rank import METHOD
from mesh.engine.vllm_route import read_route
from mesh.errors import EngineUnavailable, RecipeNotCertified, RouteIncompatible
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.identity.evidence import ForwardEvidence
from mesh.identity.shard import ShardIdentity
from mesh.identity.shard_route import ShardRoute
from mesh.ledger import Ledger
from mesh.schema.canonical import decode_map
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_SETTINGS_BYTES
from mesh.steward.steward import Steward
from tests.support.tiny_hf import cut_tiny_hf, write_tiny_hf
from tests.vllm.asking import CHAT, chat, events
from tests.vllm.servers import START_S, RealServer
from tests.vllm.two_hosts import CONTEXT, LOOPBACK, RANK_FLAGS, RANKED, TwoHosts

LAYERS, CUT = 4, 2
TOKENS = 24
OFF = "model.layers.3.mlp.down_proj.weight"


@dataclass(frozen=True)
class Folders:
    whole: Path
    first: Path
    second: Path
    off: Path  # the second half with a matrix that is not the source's


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    base = tmp_path_factory.mktemp("route")
    whole = write_tiny_hf(base / "tiny", layers=LAYERS, context=CONTEXT)
    return Folders(
        whole,
        cut_tiny_hf(whole, base / "first", 0, CUT),
        cut_tiny_hf(whole, base / "second", CUT, LAYERS),
        cut_tiny_hf(whole, base / "off", CUT, LAYERS, off=OFF),
    )


@pytest.fixture(scope="module")
def hosts(executable: Path) -> Iterator[TwoHosts]:
    running = TwoHosts(executable)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def good(hosts: TwoHosts, folders: Folders) -> TwoHosts:
    hosts.be([folders.first, folders.second])
    return hosts


@dataclass(frozen=True)
class Seen:
    """What the two hosts reported, and the model that they compute."""

    reports: Sequence[Any]
    whole: ShardIdentity


@pytest.fixture(scope="module")
def seen(hosts: TwoHosts, folders: Folders) -> Seen:
    hosts.be([folders.first, folders.second])

    async def look() -> Seen:
        engine = await VllmEngine.start(config(hosts, folders))
        await engine.close()
        assert engine.identity is not None
        return Seen(await reports(hosts.url), engine.identity)

    return asyncio.run(look())


def config(hosts: TwoHosts, folders: Folders) -> VllmConfig:
    return VllmConfig(hosts.url, weights=folders.whole, dtype="float32", device="cpu", route=True)


async def reports(url: str) -> list[Any]:
    server = VllmServer(url, key=None, connections=1, idle_s=60)
    try:
        return await server.ranks(METHOD, patience_s=60)
    finally:
        await server.close()


def mesh(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    """A command's exit code, and its one JSON object."""
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def flags(hosts: TwoHosts, folders: Folders) -> list[object]:
    return ["--vllm", hosts.url, "--weights", folders.whole, "--dtype", "float32", "--device", "cpu"]


def read(told: Sequence[Any], seen: Seen, folders: Folders) -> ShardRoute:
    source = WeightsFolder.of(folders.whole)
    return read_route(told, seen.whole, source, source.tensors)


def reasons(told: Sequence[Any], seen: Seen, folders: Folders) -> list[tuple[str, str, int | None]]:
    with pytest.raises(RouteIncompatible) as refused:
        read(told, seen, folders)
    return [(each["reason"], each["field"], each["shard_index"]) for each in refused.value.reasons]


def test_route_is_certified_by_its_own_forward_and_serves_with_receipts_that_name_it(
    good: TwoHosts,
    server: RealServer,
    folders: Folders,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = tmp_path / "state"
    code, told = mesh(capsys, "route", "check", *flags(good, folders))
    assert (code, told["compatible"], told["nodes"]) == (0, True, list(good.addresses)), told
    assert [(shard["shard_start"], shard["shard_end"]) for shard in told["shards"]] == [(0, CUT), (CUT, LAYERS)]
    whole = WeightsFolder.of(folders.whole)
    for shard, part in zip(told["shards"], (folders.first, folders.second), strict=True):
        assert shard["artifact"]["content_digest"] == WeightsFolder.of(part).content
        assert shard["artifact"]["derived_from"]["source_artifact_digest"] == whole.content
    assert told["shards"][0]["fingerprint"] == told["shards"][1]["fingerprint"]

    with Ledger.open(State(state).ledger, steward=State(state).own_key().public) as ledger:
        assert ledger.register_recipe(ShardIdentity.from_map(told["shards"][0])).result().status == "dark"
    with pytest.raises(RecipeNotCertified, match="dark, expected certified"):
        asyncio.run(served(good, folders, state))

    server.be(folders.whole, *RANK_FLAGS, environment=RANKED)
    against = ("--against", server.url, "--state", state)
    code, status = mesh(capsys, "route", "certify", *flags(good, folders), *against)
    assert (code, status["status"]) == (0, "certified"), status
    evidence = ForwardEvidence.from_map(status["evidence"])
    assert evidence.rejection() is None
    assert evidence.node_ids == good.addresses
    assert evidence.shard_ranges == ((0, CUT), (CUT, LAYERS))
    assert status["fingerprint"] == told["shards"][0]["fingerprint"]
    assert mesh(capsys, "route", "list", "--state", state)[1]["certified"] == [status]

    envelope, document = asyncio.run(served(good, folders, state))
    receipt = verify(envelope, RECEIPT_TYPE, {State(state).own_key().public}).value
    assert receipt.outcome.tokens_out == TOKENS
    assert receipt.engine.model_artifact_digest.hex() == status["fingerprint"]["model_artifact_digest"]
    assert ContentId.of("route", document) == receipt.engine.route_digest
    assert ContentId(receipt.engine.route_digest).text == told["route_digest"]
    assert [shard["content_digest"] for shard in document["shards"]] == [
        shard["artifact"]["content_digest"] for shard in told["shards"]
    ]


async def served(hosts: TwoHosts, folders: Folders, state: Path) -> tuple[bytes, dict[str, Any]]:
    """A receipt of a chat over the route, and the document that it names."""
    async with (
        gateway(hosts, folders, state) as (port, steward),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
    ):
        body = chat("tiny", "hello", max_tokens=TOKENS, temperature=0, ignore_eos=True)
        async with http.post(CHAT, json=body) as response:
            assert response.status == 200, await response.text()
            receipt_id = response.headers["Mesh-Receipt"]
        async with http.get(f"/mesh/v1/receipts/{receipt_id}") as response:
            envelope = await response.read()
        digest = ContentId(verify(envelope, RECEIPT_TYPE, {steward.public}).value.engine.route_digest)
        async with http.get(f"/mesh/v1/routes/{digest.text}") as response:
            assert response.status == 200
            return envelope, decode_map(await response.read(), max_bytes=MAX_SETTINGS_BYTES)


@asynccontextmanager
async def gateway(hosts: TwoHosts, folders: Folders, state: Path) -> AsyncIterator[tuple[int, Steward]]:
    """As `mesh serve --route` has it."""
    spec = VllmSpec(hosts.url, weights=folders.whole, dtype="float32", device="cpu", route=True)
    async with assembled(State(state), [spec]) as mesh:
        running = Gateway(mesh.steward, mesh.engines, GatewayConfig())
        port = await running.start("127.0.0.1", 0)
        try:
            yield port, mesh.steward
        finally:
            await running.stop()


def test_each_fault_of_a_route_is_refused_by_its_own_reason(seen: Seen, folders: Folders) -> None:
    """What the hosts reported, each time but for one thing."""
    first, second = seen.reports
    assert read(seen.reports, seen, folders).nodes == (first["address"], second["address"])
    assert reasons([first], seen, folders) == [
        ("range", "layers", None),
        ("nodes", "nodes", None),
        ("artifact", "tensors", None),  # what the other host has and nobody else
    ]
    again = {**second, "address": first["address"]}
    assert reasons([first, again], seen, folders) == [("repeated-node", "nodes", None), ("nodes", "nodes", None)]
    early = {**first, "layers": [0, CUT - 1]}
    assert reasons([early, second], seen, folders) == [("range", "layers", None)]
    late = {**second, "layers": [CUT - 1, LAYERS]}
    assert reasons([first, late], seen, folders) == [("range", "layers", 1)]  # it does not hold all of them
    other = {**second, "dtype": "bfloat16"}
    found = reasons([first, other], seen, folders)
    assert found == [
        ("activation-recipe", "activation_dtype", 1),
        ("activation-recipe", "compute_dtype", 1),
        ("cache-layout", "kv_dtype", 1),
    ]


def test_hosts_that_are_not_one_model_are_refused_before_anybody_is_served(
    hosts: TwoHosts, seen: Seen, folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything at once: another partition on each, a matrix that is 5 % off, and one address twice. The server is
    well, and says nothing of it."""
    address = "127.0.0.1"
    hosts.be([folders.first, folders.off], partitions=("1,3", "2,2"), addresses=(address, address))
    state = tmp_path / "state"
    code, told = mesh(capsys, "route", "check", *flags(hosts, folders))
    assert (code, told["compatible"]) == (10, False)
    found = {each["reason"]: each["detail"] for each in told["mismatches"]}
    assert set(found) == {"artifact", "range", "repeated-node", "nodes"}
    assert found["artifact"].startswith(OFF)
    assert found["range"] == "layers 1 to 2 are on no shard"
    code, told = mesh(capsys, "route", "certify", *flags(hosts, folders), "--state", state)
    assert (code, told["error"]["code"]) == (10, "route_incompatible")
    with pytest.raises(RouteIncompatible, match=OFF):
        asyncio.run(served(hosts, folders, state))
    (off,) = (report for report in asyncio.run(reports(hosts.url)) if report["layers"][0])
    weights = {name: off[name] for name in ("files", "tensors")}
    assert reasons([seen.reports[0], {**seen.reports[1], **weights}], seen, folders) == [("artifact", "tensors", 1)]


def test_unsplit_server_is_no_route(server: RealServer, folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    server.be(folders.whole, *RANK_FLAGS, environment=RANKED)
    told = ["--vllm", server.url, "--weights", folders.whole, "--dtype", "float32", "--device", "cpu"]
    code, found = mesh(capsys, "route", "check", *told)
    assert (code, [each["reason"] for each in found["mismatches"]]) == (10, ["nodes"])


def test_pair_on_the_loopback_waits_for_its_second_host_and_is_certified(
    hosts: TwoHosts, folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a machine lets nobody make network hosts: two addresses of its own."""
    state = tmp_path / "state"
    hosts.begin([folders.first, folders.second])
    certify = ("route", "certify", *flags(hosts, folders), "--state", state, "--start-s")
    code, told = mesh(capsys, *certify, 1)
    assert (code, told["error"]["code"]) == (3, "engine-unavailable")
    assert told["error"]["message"].endswith("its hosts were not all there within 1 s")
    with pytest.raises(EngineUnavailable):
        asyncio.run(served(hosts, folders, state))
    assert not state.exists()

    hosts.join()
    code, status = mesh(capsys, *certify, START_S)
    assert (code, status["status"]) == (0, "certified"), status
    evidence = ForwardEvidence.from_map(status["evidence"])
    assert (evidence.node_ids, evidence.shard_ranges) == (LOOPBACK, ((0, CUT), (CUT, LAYERS)))
    _, document = asyncio.run(served(hosts, folders, state))
    assert [shard["shard_start"] for shard in document["shards"]] == [0, CUT]


def test_pair_whose_second_host_never_comes_ends_in_its_time_and_leaves_nothing(
    hosts: TwoHosts, folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    hosts.begin([folders.first, folders.second], patience_s=5)
    hosts.ended()
    code, told = mesh(capsys, "route", "certify", *flags(hosts, folders), "--state", state)
    assert (code, told["error"]["code"]) == (3, "engine-unavailable")
    assert not state.exists()
    hosts.stop()


def test_death_of_a_host_in_mid_stream_is_an_honest_end(
    good: TwoHosts, folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    code, told = mesh(capsys, "route", "certify", *flags(good, folders), "--state", state)
    assert (code, told["status"]) == (0, "certified"), told

    async def cut() -> None:
        async with (
            gateway(good, folders, state) as (port, _),
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):
            body = chat("tiny", "hello", max_tokens=CONTEXT - 1000, ignore_eos=True, stream=True)
            lines = []
            async with http.post(CHAT, json=body) as response:
                serve_id = response.headers["Mesh-Serve"]
                async for line in events(response):
                    lines.append(line)
                    if len(lines) == 5:
                        for one in good.host(1):
                            with suppress(psutil.NoSuchProcess):
                                one.kill()
            assert "[DONE]" not in lines
            assert json.loads(lines[-1])["error"]["code"] in ("engine-failed", "engine-unavailable")
            async with http.get(f"/mesh/v1/receipts/{serve_id}", headers={"Accept": "application/json"}) as response:
                receipt = (await response.json())["receipt"]
            assert receipt["outcome"]["finish"] == "engine-error"
            assert receipt["engine"]["route_digest"]
            async with http.get("/healthz") as response:
                assert response.status == 200
            async with http.post(CHAT, json=chat("tiny", "hello", max_tokens=2)) as response:
                assert response.status in (502, 503), await response.text()

    try:
        asyncio.run(cut())
    finally:
        good.stop()  # it may go on to answer for a moment, and be taken for well
