"""GGUF models on a CPU: llama.cpp in a child process, seen from the gateway's side.

This side checks the files, owns the vocabulary's pieces, and keeps a child alive; the child (`gguf_child`) decodes, and
another (`template_process`) runs the file's chat template. A child that dies takes the serves in flight with it and is
started again, later each time; one that hangs is killed first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mesh.engine import gguf_frames as frames
from mesh.engine.excess import ExcessWatch
from mesh.engine.gguf_described import LOADING_S, GgufConfig, SelfCheck, backend_id, check_tokenizer
from mesh.engine.gguf_files import ModelFiles
from mesh.engine.gguf_identity import gguf_identity
from mesh.engine.gguf_process import ChildProcess, Message, restart_delay_s
from mesh.engine.gguf_running import (
    Nobody,
    Running,
    Serves,
    check_message,
    decide_message,
    fault_of,
    refusal_of,
    serve_message,
    unchecked_of,
)
from mesh.engine.gguf_texts import Texts
from mesh.engine.gguf_watch import PING, SERVES, TEXTS, Watch
from mesh.engine.grammars import Grammars
from mesh.engine.protocol import MAX_SCORES, CheckResult, Served, TokenSink, scores_wanted
from mesh.engine.same import check_same
from mesh.engine.template_process import TemplateProcess, render_chat
from mesh.errors import BadRequest, EngineError, EngineFailed, EngineUnavailable, IdentityChanged
from mesh.identity.model import GgufModel, read_model
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity
from mesh.schema.request import ServeRequest

log = logging.getLogger(__name__)


class GgufEngine:
    """Made by `start`. Everything it says about itself is constant while `process` is.

    `self_check` holds what was measured at load and `self_check.reason` says it in a line; `pid` is the child's, None
    while there is none.
    """

    backend_id: str
    fidelity: Fidelity
    est_uj_per_token: int | None
    weights_digest: ContentId | None
    template_digest: ContentId | None
    precision: str | None
    settings: Mapping[str, Any]
    identity: ShardIdentity
    process: bytes
    context_tokens: int
    slots: int
    tool_form: str | None
    max_scores = MAX_SCORES
    self_check: SelfCheck

    def __init__(self, config: GgufConfig, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self.recipe_id, self.blueprint_id = config.recipe_id, config.blueprint_id
        self._config, self._random = config, random
        self._model: GgufModel
        self._files: ModelFiles
        self._template: TemplateProcess | None = None
        self._pieces: tuple[bytes, ...] = ()
        self._child: ChildProcess | None = None
        self._watch: Watch  # of this child
        self._excess = ExcessWatch(config.excess, self._exceeded)
        self._loaded: asyncio.Future[Message] | None = None
        self._up = asyncio.Event()
        self._closed = False
        self._trouble: EngineUnavailable | None = None  # why there is no child, where it is not a restart
        self._restarting: asyncio.Task[None] | None = None
        self._restart_at = 0.0  # monotonic seconds
        self._failures = 0  # since a serve last ended well
        self._serves = Serves()
        self._texts = Texts()
        self._numbered = 0
        self._grammars = Grammars()
        self.learn = self._grammars.learn

    @classmethod
    async def start(cls, config: GgufConfig) -> GgufEngine:
        """Check the files, digest them, load the model and measure it.

        Raises ModelFileError for a file that is unsound or lacks what cannot be guessed, EngineUnsupported where this
        machine or library cannot run it, EngineFailed where the library does not load it, OSError where a file cannot
        be read.
        """
        engine = cls(config)
        try:
            await engine._open()
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._up.is_set() else None

    def deterministic(self, request: ServeRequest) -> bool:
        # how options are scored side by side is not what was measured
        return request.decision is None and self.self_check.deterministic

    def refusal(self, request: ServeRequest) -> str | None:
        reason = self._grammars.refusal(request.sampling)
        return reason or refusal_of(request, len(self._pieces), self.context_tokens)

    async def ready(self) -> None:
        if not self._up.is_set():
            raise self._unavailable()
        if self._config.guard is not None and (why := self._config.guard(self.pid)) is not None:
            raise EngineUnavailable(f"gguf engine: {why}")
        if (changed := await self._files.changed()) is not None:
            raise changed

    async def until_up(self) -> None:
        """Wait for a child that is being started again. Raises EngineUnavailable where none will be."""
        while not self._up.is_set():
            if self._restarting is None or self._closed:
                raise self._unavailable()
            await asyncio.wait({self._restarting})

    async def redigest(self) -> None:
        """Take the files as they are now: check, digest and load them again. Serves in flight fail; `process` is a new
        one. Raises as `start` does, and the engine then stays down until it is called again."""
        if self._closed:
            raise self._unavailable()
        await self._stop(EngineFailed("gguf engine: the model files are digested again"))
        self._trouble = EngineUnavailable("gguf engine: the model files could not be loaded again")
        await self._open()
        self._trouble = None

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self._check(request, prompt, decision=False)
        message = serve_message(request, prompt, scores_wanted(sink), self._grammars.text(request.sampling.grammar))
        running = self._new(sink)
        return running.served(await self._run(message, running), len(prompt), self)

    async def decide(
        self, request: ServeRequest, prompt: Sequence[int], options: Sequence[Sequence[int]], sink: TokenSink
    ) -> Served:
        payload = [*prompt, *(token for option in options for token in option)]
        self._check(request, payload, decision=True)
        if not prompt or not options or not all(options):
            raise EngineFailed("gguf engine: a decision needs a prompt and options, none of them empty")
        running = self._new(sink, options=len(options))
        finish = await self._run(decide_message(request, prompt, options), running)
        return running.served(finish, len(payload), self)

    def undecidable(self, request: ServeRequest) -> str | None:
        if request.decision is not None:
            return "a typed decision commits to no output"
        return None if self.self_check.width else "no batch of an output gives the bits of decoding it"

    async def check(
        self, request: ServeRequest, prompt: Sequence[int], output: Sequence[int], *, cut: bool = False
    ) -> CheckResult:
        self._check(request, prompt, decision=False)
        unfit = unchecked_of(prompt, output, len(self._pieces), self.context_tokens)
        if unfit is not None:
            return CheckResult("undecided", reason=unfit)
        if cut and not output:
            return CheckResult("agreed")
        grammar = self._grammars.text(request.sampling.grammar)
        running = self._new(Nobody(), known=len(output))
        await self._run(check_message(request, prompt, output, grammar, cut=cut), running)
        return running.result(self.undecidable(request))

    def _new(self, sink: TokenSink, *, options: int = 0, known: int = 0) -> Running:
        return Running(sink, len(self._pieces), asyncio.get_running_loop().create_future(), options, known)

    async def _run(self, message: Message, running: Running) -> str:
        child = self._child
        if child is None or not self._up.is_set():
            raise self._unavailable()
        finish = await self._serves.run(child, self._watch, self._number(), message, running)
        self._failures = 0
        return finish

    async def close(self) -> None:
        self._closed = True
        await self._stop(EngineFailed("gguf engine: closed"))
        await self._close_template()

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        return await render_chat(self._template, messages, tools, where="the model file")

    async def encode(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        child = self._child
        if child is None or not self._up.is_set():
            raise self._unavailable()
        return await self._texts.ask(child, self._watch, self._number(), text, special=special, bare=bare)

    def piece(self, token: int) -> bytes:
        if not 0 <= token < len(self._pieces):
            raise BadRequest(f"token {token}: the vocabulary has ids 0..{len(self._pieces) - 1}")
        return self._pieces[token]

    # --- the child's life

    async def _open(self) -> None:
        config = self._config
        self._model = await asyncio.to_thread(read_model, config.path)
        check_tokenizer(self._model, config)
        self._files, loaded = await ModelFiles.loaded(self._model, self._load)
        await self._close_template()
        source = config.chat_template if config.chat_template is not None else self._model.header.chat_template
        if source is not None:
            spelled = {name: loaded[name].decode(errors="replace") for name in ("bos", "eos")}
            self._template = await TemplateProcess.start(source, **spelled)
        self._describe(loaded)

    async def _close_template(self) -> None:
        template, self._template = self._template, None
        if template is not None:
            await template.close()

    async def _load(self) -> Message:
        """Start a child and wait until it measured its model."""
        self._loaded = asyncio.get_running_loop().create_future()
        try:
            child = self._child = await ChildProcess.start(
                self._on_message, self._on_end, env=self._config.environment, processors=self._config.processors
            )
            self._excess.start(child.pid)
            self._watch = Watch(
                max(LOADING_S, self._config.silent_s),
                hung=lambda how: child.kill(EngineFailed(f"engine process: {how}")),
                ping=lambda: child.send({"op": "ping"}),
            )
            self._watch.start()
            child.send(self._config.load_message(self._model))
            loaded = await self._loaded
            if self._child is child:  # it may have ended since
                self._watch.start(self._config.silence_of(loaded["token_cpu_ns"]))
            return loaded
        finally:
            self._loaded = None

    def _exceeded(self, why: str) -> None:
        if self._child is not None:
            self._child.kill(EngineFailed(f"engine process: {why}"))

    def _describe(self, loaded: Message, *, held_to: ShardIdentity | None = None) -> None:
        """Raises IdentityChanged, and changes nothing, where it is another than it is `held_to`."""
        if self._child is None:
            raise EngineFailed("gguf engine: its process ended as soon as it had loaded")
        config, model, add_bos = self._config, self._model, loaded["add_bos"]
        template = None if self._template is None else self._template.digest
        backend = backend_id(loaded["version"], loaded["library"])
        identity = gguf_identity(
            model, self._files.content, config, backend_id=backend, template=template, add_bos=add_bos
        )  # fmt: skip
        check_same("gguf engine", held_to, identity)
        slots, results = loaded["slots"], loaded["check"]
        self.self_check = SelfCheck(
            {name: None if at == -1 else at for name, at in results.items()}, slots > 1, loaded["width"]
        )
        self._pieces = tuple(loaded["pieces"])
        self.template_digest, self.backend_id, self.identity = template, backend, identity
        self.tool_form = None if self._template is None else self._template.tool_form
        self.settings = {**config.settings(model, template=template, add_bos=add_bos), "recipe": identity.recipe.axes}
        bits = model.bits_per_weight
        rated = Fidelity.F0 if bits is None else Fidelity.of_bits_per_weight(bits)
        self.fidelity = config.fidelity if config.fidelity is not None else rated
        self.precision = model.precision
        self.weights_digest = self._files.weights.digest
        self.context_tokens, self.slots = config.context_of(model), slots
        watts = config.watts_u
        self.est_uj_per_token = None if watts is None else loaded["token_cpu_ns"] * watts // 10**9
        self.process = self._random(16)
        self._up.set()

    async def _stop(self, reason: EngineError) -> None:
        self._up.clear()
        restarting, self._restarting = self._restarting, None
        if restarting is not None:
            restarting.cancel()
            await asyncio.wait({restarting})
        self._fail_all(reason)
        await self._end_child()

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        self._excess.stop()
        if child is not None:
            self._watch.stop()
            await child.close()

    def _on_end(self, reason: EngineError) -> None:
        was_up = self._up.is_set()
        self._up.clear()
        self._watch.stop()
        self._excess.stop()
        child, self._child = self._child, None
        said = "" if child is None else child.said  # for the operator, who starts the engine or reads the log
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(type(reason)(f"{reason}{said}"))
        else:
            log.warning("%s%s", reason, said)
        self._fail_all(reason)
        if was_up and not self._closed:
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        while True:
            delay = restart_delay_s(self._failures)
            self._failures += 1
            self._restart_at = time.monotonic() + delay
            await asyncio.sleep(delay)
            if (changed := await self._files.changed()) is not None:
                self._trouble = changed
                break
            try:
                self._describe(await self._load(), held_to=self.identity)
            except IdentityChanged as e:  # nobody serves with what came in the place of what was measured
                log.error("%s", e)
                self._trouble = e
                await self._end_child()
                break
            except EngineError as e:
                log.warning("gguf engine: not started again: %s", e)
                continue
            break
        self._restarting = None

    def _unavailable(self) -> EngineUnavailable:
        if self._closed:
            return EngineUnavailable("gguf engine: closed")
        if self._trouble is not None:
            return self._trouble
        seconds = max(1, round(self._restart_at - time.monotonic() + 0.5))
        return EngineUnavailable(
            f"gguf engine: its process ended and is started again, try in {seconds} s", retry_after_s=seconds
        )

    # --- what the child says

    def _on_message(self, message: Message) -> None:
        match message["op"]:
            case "step" | "alive" | "decided" | "checked" | "done" | "failed":
                self._watch.sign(SERVES)
                self._serves.take(message)
            case "pong":
                self._watch.settle(PING)
            case "encoded":
                self._answer(message["call"], frames.unpack_encoded(message["ids"]))
            case "refused":
                self._answer(message["call"], EngineFailed(message["reason"]))
            case "loaded":
                frames.check_loaded(message)
                if self._loaded is None or self._loaded.done():
                    raise EngineFailed("engine pipe: loaded twice")
                self._loaded.set_result(message)

    def _answer(self, call: int, answer: list[int] | EngineError) -> None:
        self._watch.sign(TEXTS)
        self._texts.answer(call, answer)

    def _fail_all(self, reason: EngineError) -> None:
        self._serves.fail(reason)
        self._texts.fail(reason)

    # --- one serve

    def _check(self, request: ServeRequest, payload: Sequence[int], *, decision: bool) -> None:
        """The gateway refuses all of this with better words; nothing is clipped here if it does not."""
        fault = self.refusal(request) or fault_of(request, payload, len(self._pieces))
        if fault is None and (request.decision is not None) != decision:
            fault = "decision: a decision is asked for by its options, and an answer has none"
        if fault is not None:
            raise EngineFailed(f"gguf engine: {fault}")

    def _number(self) -> int:
        self._numbered += 1
        return self._numbered
