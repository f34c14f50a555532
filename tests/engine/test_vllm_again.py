"""A vLLM server that was restarted, replaced, reconfigured or taken away while the engine looked elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mesh.engine import vllm_own
from mesh.engine.server_port import KeptPort
from mesh.engine.vllm import VllmEngine, VllmTextEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.engine.vllm_managed import ManagedServer
from mesh.errors import EngineError, EngineFailed, EngineUnavailable, WeightsChanged
from tests.support.fake_vllm import FakeVllm, running, silence, status
from tests.support.serves import Sink, request_for, serve
from tests.support.vllm_engines import engine_on, on
from tests.support.vllm_folder import encode, write_model_folder

ROOT = Path(__file__).parent.parent.parent
PROMPT = tuple(encode("tell me"))


async def unready(engine: VllmEngine) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        await engine.ready()
    return str(caught.value)


def test_a_server_that_is_the_same_costs_a_look(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        process = engine.process
        fake.asked.clear()
        await engine.ready()
        assert sorted(fake.asked) == ["/health", "/v1/models"]  # at once
        assert engine.process == process

    on(tmp_path, test)


def test_a_restart_that_gives_the_same_numbers_goes_on_as_another_process(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        process, settings, backend = engine.process, engine.settings, engine.backend_id
        before = await serve(engine, PROMPT, 8, ignore_eos=True)
        await fake.restart(fingerprint="vllm-0.32.0-12345678")
        await engine.ready()
        assert engine.process != process
        assert (engine.settings, engine.backend_id) == (settings, backend)
        assert (await serve(engine, PROMPT, 8, ignore_eos=True)).tokens == before.tokens
        assert engine.deterministic(request_for(PROMPT, 4))

    on(tmp_path, test)


def test_a_connection_that_was_merely_closed_is_no_restart(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        process = engine.process
        await fake.stop()
        await fake.start()
        completions = len(fake.bodies)
        await engine.ready()
        assert engine.process == process
        assert len(fake.bodies) == completions  # nothing was measured again

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"numbers": "bfloat16"}, "was started again and gives other numbers than before"),
        ({"version": "0.33.0"}, "its version was '0.32.0' and is '0.33.0'"),
        ({"version": "0.33.0"}, "runtime: runtime_version is 'vllm/0.33.0', expected 'vllm/0.32.0'"),
        ({"name": "other"}, "its model was 'tiny' and is 'other'"),
        ({"root": "elsewhere"}, "its root was 'tiny' and is 'elsewhere'"),
        ({"context": 1024}, "its context_tokens was 2048 and is 1024"),
        ({"cache_dtype": "fp8"}, "its cache_dtype was 'auto' and is 'fp8'"),
        ({"cache_dtype": "fp8"}, "cache-layout: kv_dtype is 'fp8', expected 'float32'"),
        ({"others": ("lora",)}, "serves 'tiny', 'lora': say which one"),
        (
            {"fingerprint": "vllm-0.32.0-tp2-0a1b2c3d"},
            "backend: backend_id is 'vllm/cpu tensor_parallel=2', expected 'vllm/cpu'",
        ),
        ({"ignored": frozenset({"return_token_ids"})}, "does not answer as it should: vllm server at "),
        ({"ignored": frozenset({"logprobs"})}, "gives no log-probabilities"),
        ({"clip": 100}, "clipped a prompt or an answer"),
        ({"instead": {"/v1/completions": status(500)}}, "/v1/completions answered 500"),
        ({"instead": {"/version": status(404)}}, "/version answered 404"),
        ({"instead": {"/v1/models": status(503)}}, "/v1/models answered 503"),
        ({"instead": {"/health": status(503)}}, "not well (503)"),
        ({"key": "k"}, "/v1/models answered 401"),
    ],
)
def test_a_restart_as_another_server_is_refused_until_it_is_as_before(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        before = {name: getattr(fake, name) for name in changes}
        said = (engine.process, engine.settings, engine.context_tokens, engine.recipe_id)
        await fake.restart(**changes)
        # asked again, it is no better: the connection to it is open by then
        for _ in range(3):
            assert words in await unready(engine)
        assert said == (engine.process, engine.settings, engine.context_tokens, engine.recipe_id)
        await fake.restart(**before)
        await engine.ready()
        assert engine.process != said[0]
        assert len((await serve(engine, PROMPT, 8, ignore_eos=True)).tokens) == 8

    on(tmp_path, test)


def test_a_restart_that_repeats_less_well_claims_less(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.deterministic(request_for(PROMPT, 4))
        await fake.restart(crowd=True)
        await engine.ready()
        assert not engine.deterministic(request_for(PROMPT, 4))

    on(tmp_path, test, {"slots": 4})


def test_a_server_without_metrics_is_measured_at_each_new_connection(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        process = engine.process
        await fake.restart(numbers="float16")
        assert "gives other numbers" in await unready(engine)
        await fake.restart(numbers="float32")
        await engine.ready()
        assert engine.process != process

    on(tmp_path, test, instead={"/metrics": status(404)})


def test_a_server_replaced_between_the_look_and_the_serve_is_told_by_its_name(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await engine.ready()
        await fake.restart(fingerprint="vllm-0.32.0-12345678", numbers="bfloat16")
        with pytest.raises(EngineFailed, match=r"an answer as vllm-0\.32\.0-12345678, it was"):
            await serve(engine, PROMPT, 4, ignore_eos=True)

    on(tmp_path, test)


def test_a_server_that_is_gone_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await fake.stop()
        assert "cannot be reached" in await unready(engine)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await serve(engine, PROMPT, 4)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await engine.encode("x", special=True)
        await fake.restart()
        await engine.ready()
        assert len((await serve(engine, PROMPT, 8, ignore_eos=True)).tokens) == 8

    on(tmp_path, test)


def test_a_server_that_goes_in_mid_stream_fails_the_serve_and_not_the_next(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.hold_at = 3
        sink = Sink()
        serving = asyncio.create_task(engine.serve(request_for(PROMPT, 8, ignore_eos=True), PROMPT, sink))
        await sink.first.wait()
        await fake.held.wait()
        await fake.stop()
        with pytest.raises(EngineFailed, match="the connection broke"):
            await serving
        assert 1 <= len(sink.tokens) <= 3
        await fake.restart(hold_at=None)
        await engine.ready()
        told = await serve(engine, PROMPT, 8, ignore_eos=True)
        assert told.tokens[: len(sink.tokens)] == tuple(sink.tokens)

    on(tmp_path, test)


def test_a_server_that_answers_no_question_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.engine.vllm_http.PROBE_S", 1)

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.instead["/v1/models"] = silence
        assert "nothing came for too long" in await unready(engine)

    on(tmp_path, test)


def test_callers_that_come_at_once_share_one_look_and_one_measurement(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await fake.restart()
        fake.asked.clear()
        await asyncio.gather(*(engine.ready() for _ in range(20)))
        assert fake.asked.count("/version") == 1
        await fake.restart(numbers="bfloat16")
        told = await asyncio.gather(*(engine.ready() for _ in range(20)), return_exceptions=True)
        assert {type(error) for error in told} == {EngineUnavailable}
        assert fake.asked.count("/version") == 2

    on(tmp_path, test)


def test_a_caller_that_leaves_does_not_end_the_others_look(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await fake.restart()
        first, second = (asyncio.create_task(engine.ready()) for _ in range(2))
        while not fake.asked[-1].startswith("/v1/completions"):
            await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()

    on(tmp_path, test)


# --- the folder


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_file_that_was_swapped_is_noticed_before_the_next_serve(tmp_path: Path, name: str) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await engine.ready()
        other = write_model_folder(tmp_path / "other", weights=1)
        (other / name).replace(tmp_path / "model" / name)
        for _ in range(2):
            with pytest.raises(WeightsChanged, match=name):
                await engine.ready()

    on(tmp_path, test)


def test_a_file_that_is_gone_is_noticed(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        (tmp_path / "model" / "model.safetensors").unlink()
        with pytest.raises(WeightsChanged, match=r"model\.safetensors"):
            await engine.ready()

    on(tmp_path, test)


def test_a_file_that_is_swapped_while_the_engine_starts_is_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        model = write_model_folder(tmp_path / "model")
        async with running() as fake:

            async def swap(request: web.Request) -> web.StreamResponse:
                (model / "model.safetensors").write_bytes(b"other")
                return await fake._completions(request)

            fake.instead["/v1/completions"] = swap
            with pytest.raises(WeightsChanged, match=r"model\.safetensors"):
                async with engine_on(fake, model):
                    pass

    asyncio.run(main())


# --- a server of our own


class Ours:
    """In place of a managed server's handle: what runs is the fake one, and what it says of its end is played."""

    pid = 4242

    def __init__(self, on_end: Callable[[EngineError], None]) -> None:
        self.end = on_end
        self.stopped = False

    async def stop(self) -> None:
        self.stopped = True


ENDED = EngineFailed("vllm server: killed by signal 9")


def test_a_server_of_our_own_that_ends_while_it_is_measured_is_no_start(tmp_path: Path) -> None:
    async def main() -> None:
        starts: list[Ours] = []

        async def launch(on_end: Callable[[EngineError], None]) -> Any:
            starts.append(Ours(on_end))
            return starts[-1]

        async with running() as fake:

            async def last_answer(request: web.Request) -> web.StreamResponse:
                starts[0].end(ENDED)
                return await fake._completions(request)

            fake.instead["/v1/completions"] = last_answer
            with pytest.raises(EngineFailed, match="killed by signal 9"):
                await VllmEngine.start(VllmConfig(fake.url), launch=launch)
            assert starts[0].stopped

    asyncio.run(main())


def test_a_server_of_our_own_is_started_until_it_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_own, "_RESTART_FIRST_S", 0.0)

    async def main() -> None:
        starts: list[Ours] = []
        async with running() as fake:

            async def launch(on_end: Callable[[EngineError], None]) -> Any:
                starts.append(Ours(on_end))
                match len(starts):
                    case 2:
                        raise EngineFailed("vllm server: cannot be run")
                    case 3:
                        await fake.restart(name="other")
                    case 4:
                        await fake.restart(name="tiny", others=("lora",))
                    case 5:
                        await fake.restart(others=(), numbers="bfloat16")
                    case 6:
                        await fake.restart(numbers="float32")
                return starts[-1]

            config = VllmConfig(fake.url, dtype="float32", device="cpu", slots=2)
            engine = await VllmEngine.start(config, launch=launch)
            process = engine.process
            starts[0].end(ENDED)
            assert "is started again" in await unready(engine)
            assert engine._restarting is not None
            await engine._restarting
            assert len(starts) == 6
            await engine.ready()
            assert engine.process != process
            assert [server.stopped for server in starts] == [True, False, True, True, True, False]
            await engine.close()
            assert starts[-1].stopped

    asyncio.run(main())


def test_closing_ends_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        starts: list[Ours] = []

        async def launch(on_end: Callable[[EngineError], None]) -> Any:
            starts.append(Ours(on_end))
            return starts[-1]

        async with running() as fake:
            engine = await VllmEngine.start(VllmConfig(fake.url, slots=2), launch=launch)
            starts[0].end(ENDED)
            await engine.close()
            starts[0].end(ENDED)  # said once more, it starts nothing
            assert len(starts) == 1
            with pytest.raises(EngineUnavailable, match="closed"):
                await engine.ready()

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="managed servers need Linux")
def test_a_server_of_our_own_is_started_again_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_own, "_RESTART_FIRST_S", 0.01)
    monkeypatch.setattr(vllm_own, "_POLL_S", 0.02)

    async def main() -> None:
        port = KeptPort("127.0.0.1")
        model = write_model_folder(tmp_path / "model")
        starts: list[ManagedServer] = []

        async def launch(on_end: Any) -> ManagedServer:
            told = ("--port", str(port.number), "--starts", str(len(starts)))
            command = (sys.executable, "-m", "tests.support.fake_vllm", *told)
            starts.append(await ManagedServer.start(command, env={"PYTHONPATH": str(ROOT)}, on_end=on_end))
            return starts[-1]

        config = VllmConfig(f"http://127.0.0.1:{port.number}", weights=model, dtype="float32", device="cpu", slots=2)
        engine = await VllmEngine.start(config, launch=launch, port=port)
        try:
            process, before = engine.process, await serve(engine, PROMPT, 8, ignore_eos=True)
            assert engine.pid == starts[0].pid
            os.kill(starts[0].pid, signal.SIGKILL)
            await starts[0].ended.wait()
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.bind(("127.0.0.1", port.number))  # nobody listens there now, and it is not free
            while engine._restarting is None:
                await asyncio.sleep(0)
            assert "is started again" in await unready(engine)
            with pytest.raises(EngineUnavailable):
                await serve(engine, PROMPT, 8)
            await engine._restarting
            await engine.ready()
            assert (engine.pid, len(starts), engine.process != process) == (starts[1].pid, 2, True)
            assert (await serve(engine, PROMPT, 8, ignore_eos=True)).tokens == before.tokens
        finally:
            await engine.close()
        assert all(server.ended.is_set() for server in starts)

    asyncio.run(main())
