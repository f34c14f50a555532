"""What the hosts of a split server report, held against the whole model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.engine.vllm_identity import WeightsFolder
from mesh.engine.vllm_route import RankReport, read_route
from mesh.errors import EngineUnavailable, EngineUnsupported, IdentityChanged, RouteIncompatible, UsageError
from mesh.identity.shard_route import ShardRoute
from tests.engine.test_vllm_identity import FACTS, identity
from tests.support.fake_vllm import FakeVllm, running
from tests.support.vllm_engines import engine_on
from tests.support.vllm_route import MATRIX, PARTED, Halves, report, write_halves


@pytest.fixture
def halves(tmp_path: Path) -> Halves:
    return write_halves(tmp_path)


def read(told: list[Any], halves: Halves) -> ShardRoute:
    source = WeightsFolder.of(halves.whole)
    return read_route(told, identity(halves.whole, FACTS.named(PARTED)), source, source.tensors)


def refused(told: list[Any], halves: Halves) -> list[tuple[str, str, int | None]]:
    with pytest.raises(RouteIncompatible) as caught:
        read(told, halves)
    return [(each["reason"], each["field"], each["shard_index"]) for each in caught.value.reasons]


def test_each_host_is_a_cut_of_the_source(halves):
    route = read(halves.reports(), halves)
    assert route.nodes == ("10.211.0.1", "10.211.0.2")
    for shard, part, held in zip(route.shards, (halves.first, halves.second), ((0, 1), (1, 2)), strict=True):
        assert shard.artifact.content_digest == WeightsFolder.of(part).content
        binding = shard.artifact.derived_from
        assert binding.source_artifact_digest == WeightsFolder.of(halves.whole).content
        assert (binding.shard_start, binding.shard_end) == (shard.shard_start, shard.shard_end) == held
        assert shard.fingerprint.key == identity(halves.whole, FACTS.named(PARTED)).fingerprint.key
    assert route.shards[0].recipe.backend_id == "vllm/cpu pipeline_parallel=2"


def test_order_of_the_answers_does_not_count(halves):
    assert read(halves.reports()[::-1], halves) == read(halves.reports(), halves)


def test_host_may_hold_the_whole_model(halves):
    both = [report(halves.whole, rank, layers) for rank, layers in enumerate(((0, 1), (1, 2)))]
    route = read(both, halves)
    assert [shard.artifact.derived_from for shard in route.shards] == [None, None]
    mixed = read([both[0], halves.reports()[1]], halves)
    assert mixed.digest != route.digest
    assert mixed.shards[0].fingerprint.key == mixed.shards[1].fingerprint.key


@pytest.mark.parametrize(
    ("rank", "changes", "expected"),
    [
        (0, {"layers": [0, 0]}, [("range", "layers", 0)]),
        (0, {"layers": [0, 2], "absent": []}, [("range", "layers", 0)]),  # it does not hold the second
        (1, {"layers": [0, 1], "absent": [1]}, [("range", "layers", 1)]),
        (1, {"absent": [0, 1]}, [("range", "layers", 1)]),  # a stand-in in place of what it computes
        (1, {"layers": [1, 3]}, [("range", "layers", 1)]),
        (1, {"address": "10.211.0.1"}, [("repeated-node", "nodes", None), ("nodes", "nodes", None)]),
        (1, {"dtype": "bfloat16"}, [
            ("activation-recipe", "activation_dtype", 1), ("activation-recipe", "compute_dtype", 1),
            ("cache-layout", "kv_dtype", 1),
        ]),
        (1, {"cache_dtype": "fp8"}, [("cache-layout", "kv_dtype", 1)]),
        (1, {"block_size": "32"}, [("cache-layout", "kv_layout", 1)]),
        (1, {"enable_prefix_caching": "False"}, [("cache-layout", "kv_layout", 1)]),
        (1, {"version": "0.32.1"}, [("runtime", "runtime_version", 1)]),
        (1, {"device": "cuda"}, [("backend", "backend_id", 1)]),
        (1, {"architecture": "TransformersForCausalLM"}, [("architecture", "architecture_adapter", 1)]),
        (1, {"configs": [["config.json", "ab" * 32]]}, [("architecture", "architecture_digest", 1)]),
    ],
)  # fmt: skip
def test_each_thing_that_a_host_does_otherwise_has_its_reason(halves, rank, changes, expected):
    told = halves.reports()
    told[rank] |= changes
    assert refused(told, halves) == expected


def test_all_hosts_alike_are_still_held_to_the_model_that_is_asked_for(halves):
    told = [each | {"dtype": "float16"} for each in halves.reports()]
    assert {(reason, index) for reason, _, index in refused(told, halves)} == {
        ("activation-recipe", 0), ("cache-layout", 0),
    }  # fmt: skip


def test_missing_host_is_a_hole(halves):
    first, second = halves.reports()
    assert refused([first], halves) == [
        ("range", "layers", None), ("nodes", "nodes", None), ("artifact", "tensors", None),
    ]  # fmt: skip
    assert refused([second], halves)[0] == ("range", "layers", None)
    assert refused([], halves) == [("range", "shards", None), ("nodes", "nodes", None)]


def test_hosts_that_leave_a_layer_to_each_other_are_named_with_it(halves):
    whole = report(halves.whole, 0, (0, 1))
    with pytest.raises(RouteIncompatible, match="route: range: layers 1 to 2 are on no shard"):
        read([whole, {**whole, "address": "10.211.0.2"}], halves)


def test_matrix_that_is_not_the_sources_is_named(tmp_path):
    halves = write_halves(tmp_path, off=MATRIX)
    with pytest.raises(RouteIncompatible) as caught:
        read(halves.reports(), halves)
    assert str(caught.value) == f"route: shard 1: artifact: {MATRIX}: not the source's"


def test_weights_of_another_model_are_named_shortly(halves, tmp_path):
    told = halves.reports()
    told[1]["tensors"] = {f"model.layers.1.part{n}.weight": "ab" * 32 for n in range(9)}
    with pytest.raises(RouteIncompatible) as caught:
        read(told, halves)
    details = [each["detail"] for each in caught.value.reasons]
    assert details[0].endswith("model.layers.1.part2.weight and 6 more: not the source's")
    assert details[1] == f"{MATRIX}: missing, expected the source's"
    assert details[2] == "lm_head.weight: on no host"


def test_cut_without_a_layer_is_refused(halves):
    told = halves.reports()
    told[1]["tensors"] = {"lm_head.weight": told[1]["tensors"]["lm_head.weight"]}
    assert refused(told, halves) == [("range", "layers", 1)]


def test_server_that_splits_tensors_is_no_route_of_layers(halves):
    told = [each | {"tensor_parallel": 2} for each in halves.reports()]
    with pytest.raises(EngineUnsupported, match="it splits tensors 2 ways"):
        read(told, halves)


def test_more_hosts_than_a_document_holds_are_refused(halves):
    with pytest.raises(EngineUnsupported, match="129 ranks, expected at most 128"):
        read(halves.reports()[:1] * 129, halves)


def test_folder_that_a_host_cannot_read_is_told(halves):
    told = halves.reports()
    told[1] = {"rank": 1, "fault": "model.safetensors: its header is not JSON"}
    with pytest.raises(EngineUnsupported, match=r"vllm rank 1: its model folder: model\.safetensors: its header"):
        read(told, halves)


def test_fault_of_a_host_is_told_without_what_a_terminal_obeys():
    for rank, shown in ((1, "1"), ("\x1b", r"\?")):
        with pytest.raises(EngineUnsupported, match=rf"vllm rank {shown}: its model folder: a\\x1b\[31m"):
            RankReport.of({"rank": rank, "fault": "a\x1b[31m"})


def test_layers_beyond_any_model_are_refused_without_being_counted(halves):
    told = halves.reports()
    told[1] |= {"layers": [1, 2**50]}
    assert refused(told, halves) == [("range", "layers", 1)]


@pytest.mark.parametrize("field", [
    "address", "kernel", "rank", "ranks", "tensor_parallel", "layers", "absent", "architecture", "device",
    "dtype", "cache_dtype", "block_size", "enable_prefix_caching", "version", "files", "configs", "tensors",
])  # fmt: skip
def test_answer_that_is_no_report_is_refused(halves, field):
    told = halves.reports()[0]
    for value in (None, [None], [["a", 5]], [-1, 2], {"x": "y"}, 1.5, True, "a\x1b[31m", [["\ud800", "ab" * 32]]):
        with pytest.raises(EngineUnsupported, match="gave no report"):
            RankReport.of({**told, field: value})
    del told[field]
    with pytest.raises(EngineUnsupported, match="gave no report"):
        RankReport.of(told)


@pytest.mark.parametrize("told", [None, [], "x", 5])
def test_answer_that_is_no_map_is_refused(told):
    with pytest.raises(EngineUnsupported, match="gave no report"):
        RankReport.of(told)


# --- an engine on it


def on_route(halves: Halves, test: Callable[[FakeVllm, VllmEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            running(fingerprint=PARTED, ranks=halves.reports()) as fake,
            engine_on(fake, halves.whole, route=True) as engine,
        ):
            await test(fake, engine)

    asyncio.run(main())


def test_engine_on_a_route_names_it(halves):
    async def test(fake: FakeVllm, engine: VllmEngine) -> None:
        assert engine.identity is not None
        assert engine.identity.recipe.backend_id == "vllm/cpu pipeline_parallel=2"
        source = WeightsFolder.of(halves.whole)
        assert engine.shard_route == read_route(halves.reports(), engine.identity, source, source.tensors)
        await engine.look_again()
        fake.ranks = halves.reports()[::-1]
        await engine.look_again()
        fake.ranks = [report(halves.whole, rank, layers) for rank, layers in enumerate(((0, 1), (1, 2)))]
        with pytest.raises(IdentityChanged, match="compute or hold other than before"):
            await engine.look_again()

    on_route(halves, test)


def test_route_that_comes_back_otherwise_is_not_served(halves):
    async def test(fake: FakeVllm, engine: VllmEngine) -> None:
        await fake.restart()
        await engine.ready()  # as it was
        whole = [report(halves.whole, rank, layers) for rank, layers in enumerate(((0, 1), (1, 2)))]
        await fake.restart(ranks=whole)
        with pytest.raises(IdentityChanged, match="compute or hold other than before"):
            await engine.ready()
        await fake.restart(ranks=halves.reports()[:1])
        with pytest.raises(EngineUnavailable, match="not as the route that it was: route: range"):
            await engine.ready()
        await fake.restart(ranks=halves.reports())
        await engine.ready()

    on_route(halves, test)


def test_server_that_does_not_report_is_no_route(halves):
    async def main() -> None:
        async with running(fingerprint=PARTED) as fake:
            with pytest.raises(EngineUnsupported, match="VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls mesh"):
                async with engine_on(fake, halves.whole, route=True):
                    raise AssertionError

    asyncio.run(main())


def test_route_without_an_identity_is_refused(halves):
    async def main() -> None:
        async with running(fingerprint=PARTED, ranks=halves.reports()) as fake:
            with pytest.raises(EngineUnsupported, match=r"a route without an identity: recipe\.backend_id: not known"):
                async with engine_on(fake, halves.whole, route=True, device=None):
                    raise AssertionError

    asyncio.run(main())


def test_route_needs_the_whole_model():
    with pytest.raises(UsageError, match="held against the whole model"):
        VllmConfig("http://127.0.0.1:1", route=True)
