"""The one place where concrete engines are made."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.governed import check_governed, config_under, held, server_environment_under
from mesh.cli.progress import following
from mesh.cli.specs import CandidateSpec, EngineSpec, GgufSpec, ReferenceSpec, VllmSpec
from mesh.errors import EngineFailed, EngineUnavailable, EngineUnsupported, ModelFileError, UsageError

if TYPE_CHECKING:
    from mesh.engine.gguf_described import GgufConfig
    from mesh.engine.protocol import ServingEngine
    from mesh.engine.vllm_managed import ManagedServer
    from mesh.errors import EngineError

_MAX_KEY_BYTES = 4096
LOOPBACK = "127.0.0.1"
_AGAIN_S = 0.5


def check_files(spec: EngineSpec) -> None:
    """Look at the names and files in `spec`, without loading one. Raises ModelFileError, UsageError or OSError."""
    check_words(spec)
    if isinstance(spec, ReferenceSpec):
        return
    if spec.blueprint is not None:
        check_governed(spec, os.environ)
    if isinstance(spec, GgufSpec):
        config = gguf_config(spec, None)
        from mesh.engine.gguf_described import check_tokenizer
        from mesh.identity.model import read_model

        model = read_model(spec.path)
        check_tokenizer(model, config)
        config.context_of(model)
        return
    _template(spec.chat_template)
    _key(spec.key_file)
    for folder in (spec.weights, spec.tokenizer):
        if folder is not None:
            os.listdir(folder)


def check_words(spec: EngineSpec) -> None:
    """Look at what `spec` says in words: every answer names the model, so a name that no receipt can hold is found
    here and not by each request. Raises UsageError."""
    name, of = spec.name, "--name"
    if isinstance(spec, GgufSpec) and name is None:
        name, of = spec.path.stem, "model"  # `--name` gives another
    if isinstance(spec, VllmSpec):
        if spec.url is not None:
            from mesh.engine.vllm_http import server_url

            server_url(spec.url)
        elif name is None and spec.weights is not None:
            name, of = spec.weights.resolve().name, "model"
    if name is not None:
        from mesh.schema.value import check_name

        check_name(name, of)


async def start_engine(
    spec: EngineSpec, *, cpu_watts_u: int | None = None, environment: Mapping[str, str] | None = None
) -> ServingEngine:
    """Start what `spec` says. `cpu_watts_u` microwatts of a busy core, for the estimate that a GGUF engine gives.
    `environment` is what a server of our own inherits, by default all of this process's. Raises ModelFileError,
    EngineError, UsageError or OSError."""
    match spec:
        case ReferenceSpec():
            from mesh.engine.reference import ReferenceEngine

            return ReferenceEngine(spec.name or "reference", **_given(context_tokens=spec.context, slots=spec.slots))
        case GgufSpec():
            await _admit(spec.candidate)
            inherited = os.environ if environment is None else environment
            if spec.blueprint is not None:
                check_governed(spec, inherited)
            config = gguf_config(spec, cpu_watts_u, inherited)
            from mesh.engine.gguf import GgufEngine

            engine = await _within(spec.candidate, GgufEngine.start(config))
            return engine if spec.blueprint is None else await held(engine, spec.blueprint)
        case VllmSpec():
            await _admit(spec.candidate)
            inherited = os.environ if environment is None else environment
            inherited = {**inherited, **dict(spec.environment)}
            if spec.blueprint is not None:
                check_governed(spec, inherited)
                inherited = server_environment_under(spec, inherited)
            server = await _within(spec.candidate, _start_vllm(spec, inherited))
            return server if spec.blueprint is None else await held(server, spec.blueprint)


async def _admit(candidate: CandidateSpec | None) -> None:
    """Look whether this machine holds what a candidate needs, and its models their pins. Raises EngineUnsupported,
    ModelFileError, OSError."""
    if candidate is None:
        return
    candidate.envelope.check_start(candidate.id)
    with following(f"{candidate.id}: models") as progress:
        await asyncio.to_thread(candidate.check, progress)


async def _within(candidate: CandidateSpec | None, starting: Coroutine[Any, Any, ServingEngine]) -> ServingEngine:
    """The engine, within the time and with the context that its candidate was measured with."""
    from mesh.engine.protocol import identity_of

    if candidate is None:
        return await starting
    seconds = candidate.envelope.startup_s
    try:
        async with asyncio.timeout(seconds) as limit:
            engine = await starting
    except TimeoutError:
        if not limit.expired():
            raise
        raise EngineFailed(f"{candidate.id}: container.startup_timeout_seconds: not ready in {seconds} s") from None
    identity = identity_of(engine)
    if candidate.content_sha256 is not None and identity is not None:
        loaded = identity.artifact.content_digest
        if loaded != candidate.content_sha256:
            await engine.close()
            raise ModelFileError(f"{candidate.id}: its model changed: sha256 is {loaded} now")
    if engine.context_tokens < candidate.max_context_tokens:
        await engine.close()
        raise EngineUnsupported(
            f"{candidate.id}: serving.max_context_tokens: {candidate.max_context_tokens}, "
            f"its engine has {engine.context_tokens}"
        )
    return engine


def gguf_config(spec: GgufSpec, cpu_watts_u: int | None, environment: Mapping[str, str] | None = None) -> GgufConfig:
    """What `spec` says, in full; under a blueprint the engine inherits `environment` and what that states."""
    try:
        from mesh.engine.gguf_described import GgufConfig
    except ImportError as e:
        raise UsageError(f"GGUF models need the extra: pip install 'servemesh[gguf]' ({e.name} is missing)") from None
    if spec.blueprint is not None:
        return config_under(spec, cpu_watts_u, os.environ if environment is None else environment)
    options = _given(
        slots=spec.slots,
        context_tokens=spec.context,
        kv_type=spec.kv_type,
        threads=spec.threads,
        check_threads=spec.check_threads,
        n_ubatch=spec.ubatch,
        chat_template=_template(spec.chat_template),
        tokenizer_pre=spec.tokenizer_pre,
        eos_id=spec.eos_id,
        silent_s=spec.silent_s,
        watts_u=cpu_watts_u,
        processors=None if spec.candidate is None else spec.candidate.processors,
        **_of_candidate(spec.candidate),
    )
    return GgufConfig(spec.path, recipe_id=spec.name or spec.path.stem, flash_attention=spec.flash_attention, **options)


async def _start_vllm(spec: VllmSpec, environment: Mapping[str, str]) -> ServingEngine:
    from mesh.engine.server_port import KeptPort
    from mesh.engine.vllm import VllmEngine
    from mesh.engine.vllm_described import VllmConfig, quantizes, told_dtype
    from mesh.engine.vllm_managed import ManagedServer, server_command

    url, launch, port = spec.url, None, None
    with contextlib.ExitStack() as until_started:
        if url is None:
            assert spec.weights is not None
            port = until_started.enter_context(KeptPort(LOOPBACK))
            name = spec.name or spec.weights.resolve().name
            command = server_command(
                spec.executable, spec.weights, host=LOOPBACK, port=port.number, name=name, flags=spec.flags
            )
            url = f"http://{LOOPBACK}:{port.number}"
            processors = None if spec.candidate is None else spec.candidate.processors

            def launch(on_end: Callable[[EngineError], None]) -> Awaitable[ManagedServer]:
                return ManagedServer.start(command, env=environment, on_end=on_end, processors=processors)

        config = VllmConfig(
            url, recipe_id=spec.name, model=spec.model, weights=spec.weights, tokenizer=spec.tokenizer,
            chat_template=_template(spec.chat_template), device=spec.device, margins=spec.margins, route=spec.route,
            dtype=spec.dtype or told_dtype(spec.flags), key=_key(spec.key_file),
            requantized=quantizes(spec.flags), **_given(slots=spec.slots, start_s=spec.start_s),
            blueprint_id=None if spec.blueprint is None else spec.blueprint.id, **_of_candidate(spec.candidate),
        )  # fmt: skip
        engine = await VllmEngine.start(config, launch=launch, port=port)
        until_started.pop_all()
    return engine


async def answering(spec: VllmSpec, start_s: int) -> None:
    """Wait for a server that answers nobody before all its hosts are there. Raises EngineUnavailable where it does not
    within `start_s` seconds, and EngineUnsupported where something else answers."""
    from mesh.engine.vllm_http import VllmServer

    assert spec.url is not None
    server = VllmServer(spec.url, key=_key(spec.key_file), connections=1, idle_s=start_s)
    said = f"vllm server at {server.url}: no answer"
    try:
        async with asyncio.timeout(start_s) as limit:
            while True:
                try:
                    await server.version()
                    return
                except (EngineUnavailable, EngineFailed) as e:
                    said = str(e)
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        if not limit.expired():
            raise
        raise EngineUnavailable(f"{said}: its hosts were not all there within {start_s} s") from None
    finally:
        await server.close()


def _of_candidate(candidate: CandidateSpec | None) -> dict[str, Any]:
    """What an engine's configuration holds of the candidate that it runs for."""
    if candidate is None:
        return {}
    envelope = candidate.envelope
    return {"candidate": candidate.settings, "guard": envelope.refusal, "excess": envelope.excess}


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; the engine has defaults for the rest."""
    return {name: value for name, value in options.items() if value is not None}


def _template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"chat template {path}: not valid utf-8") from None


def _key(path: Path | None) -> str | None:
    """The bearer token in a file: its one line."""
    if path is None:
        return None
    with path.open("rb") as file:
        data = file.read(_MAX_KEY_BYTES + 1)
    lines = data.split()
    if len(data) > _MAX_KEY_BYTES or len(lines) != 1 or not lines[0].isascii():
        raise UsageError(f"key file {path}: expected one line with a token")
    return lines[0].decode()


def engine_pid(engine: ServingEngine) -> Callable[[], int | None]:
    """The process whose CPU time an engine's serves cost: its child, or this one."""
    return lambda: getattr(engine, "pid", os.getpid())
