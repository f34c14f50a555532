"""What a vLLM engine says of itself: what its server answers, what the model's folder holds, and what was measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mesh.engine.hf_model import HfModel, read_hf_model
from mesh.engine.hf_tokenizer import HfTokenizer, read_hf_tokenizer
from mesh.engine.protocol import MAX_SCORES
from mesh.engine.template_process import TemplateProcess
from mesh.engine.vllm_described import ServerFacts, VllmConfig, backend_id, choose_model, settings
from mesh.engine.vllm_http import VllmServer
from mesh.engine.vllm_identity import WeightsFolder, identified
from mesh.engine.vllm_known import known
from mesh.engine.vllm_selfcheck import RAW, Numbers, SelfCheck, ask_kind, ask_numbers, measure
from mesh.engine.vllm_text import VllmText
from mesh.errors import EngineFailed
from mesh.identity.shard import ShardIdentity
from mesh.identity.shard_route import ShardRoute
from mesh.identity.weights import Weights
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity

_PROBES: Final = 4  # connections beside those of the serves: texts to tokenize
# Ids that every tokenizer has, for a server whose vocabulary nobody told.
_SMALL_VOCABULARY: Final = 256


class VllmSelf:
    """Asks, reads and measures, and holds what came of it. Serves nothing."""

    backend_id: str
    recipe_id: str
    fidelity: Fidelity
    est_uj_per_token: int | None = None
    weights_digest: ContentId | None
    template_digest: ContentId | None
    precision: str | None
    settings: Mapping[str, Any]
    identity: ShardIdentity | None
    identity_gap: str | None  # why there is none
    shard_route: ShardRoute | None = None
    process: bytes
    context_tokens: int
    slots: int
    max_scores: int  # -1 where what the server gives are no scores
    self_check: SelfCheck

    def __init__(self, config: VllmConfig, random: Callable[[int], bytes]) -> None:
        self.slots = config.slots
        self._config, self._random = config, random
        self._server = VllmServer(config.url, key=config.key, connections=config.slots + _PROBES, idle_s=config.idle_s)
        self._weights: Weights | None = None
        self._folder: WeightsFolder | None = None
        self._model: HfModel | None = None
        self._tokenizer: HfTokenizer | None = None
        self._vocabulary: int | None = None  # how many ids there are; None where nobody told
        self._template: TemplateProcess | None = None
        self._text: VllmText
        self._facts: ServerFacts

    async def _identify(self) -> ServerFacts:
        version = await self._server.version()
        card = choose_model(await self._server.models(), self._config.model, self._server.url)
        return ServerFacts.of(version, card, await self._server.metrics())

    async def _read_text(self) -> None:
        folder, config = self._config.text_folder, self._config
        if folder is None:
            return
        self._model = await asyncio.to_thread(read_hf_model, folder)
        tokenizer = await asyncio.to_thread(read_hf_tokenizer, folder)
        source = config.chat_template or tokenizer.template
        if source is not None:
            self._template = await TemplateProcess.start(source, bos=tokenizer.bos, eos=tokenizer.eos)
        self._tokenizer, self._vocabulary = tokenizer, len(tokenizer.pieces)
        self._text = VllmText(self._server, self._facts.model, tokenizer, self._template)
        await self._text.check()

    async def _measure(self) -> SelfCheck:
        facts, config = self._facts, self._config
        row = known(facts.version, config.device, config.dtype)
        check = await measure(
            self._numbers, slots=self.slots, vocabulary=self._vocabulary or _SMALL_VOCABULARY,
            context_tokens=facts.context_tokens,
            salt=lambda: self._random(16).hex(), known=None if row is None else row.evidence,
        )  # fmt: skip
        kind = await ask_kind(self._server, facts.model, (1, 2, 3), lambda: self._random(16).hex())
        return replace(check, logprobs=kind)

    async def _numbers(self, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any]) -> Numbers:
        """One request of the self-check; the first one also says what the server calls itself."""
        numbers, fingerprint = await ask_numbers(self._server, self._facts.model, prompt, salt, sampling)
        if self._facts.fingerprint is None:
            self._facts = self._facts.named(fingerprint)
        return numbers

    def _describe(self, check: SelfCheck) -> None:
        facts, config, model = self._facts, self._config, self._model
        self.identity, self.identity_gap = self._identified(facts)
        self.settings = self._settings(check)
        self.self_check, self._repeats = check, check.deterministic
        self.backend_id = backend_id(facts, config)
        self.context_tokens = facts.context_tokens
        self.weights_digest = None if self._weights is None else self._weights.digest
        self.template_digest = None if self._template is None else self._template.digest
        self.fidelity, self.precision = Fidelity.F0, None
        if not config.requantized:
            self.precision = config.dtype if model is None else model.precision(config.dtype)
            if config.weights is not None and model is not None:
                self.fidelity = model.fidelity(config.dtype)
        if config.fidelity is not None:
            self.fidelity = config.fidelity
        self.max_scores = MAX_SCORES if check.logprobs == RAW else -1
        self.process = self._random(16)

    def _settings(self, check: SelfCheck) -> dict[str, Any]:
        told = settings(
            self._facts, self._config,
            quantization=None if self._model is None else self._model.quantization or "none",
            tokenizer=None if self._tokenizer is None else self._tokenizer.digest,
            template=None if self._template is None else self._template.digest, probe=check.probe,
            logprobs=check.logprobs,
        )  # fmt: skip
        identity, _ = self._identified(self._facts)
        return told if identity is None else {**told, "recipe": identity.recipe.axes}

    def _identified(self, facts: ServerFacts) -> tuple[ShardIdentity | None, str | None]:
        """What a server of these facts computes, or why nobody can say."""
        return identified(
            facts, self._config, self._folder,
            tokenizer=None if self._tokenizer is None else self._tokenizer.digest,
            template=None if self._template is None else self._template.digest,
        )  # fmt: skip

    def _bytes_of(self, token: int) -> bytes:
        if self._tokenizer is None:
            return b""
        pieces = self._tokenizer.pieces
        if token >= len(pieces):
            raise EngineFailed(f"vllm server: sent id {token}, outside the vocabulary of {len(pieces)}")
        return pieces[token]
