"""One model in one llama.cpp context, as far as a decode loop needs it. Lives in the child process only."""

from __future__ import annotations

import ctypes as c
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesh.engine import gguf_abi as abi
from mesh.engine.gguf_context import Context, Feed, Row
from mesh.engine.protocol import Scores
from mesh.errors import EngineFailed


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What the context is made of. `context_tokens` holds for each of `slots` sequences; `overrides` gives metadata
    fields values that the file lacks."""

    path: Path
    context_tokens: int
    slots: int
    kv_type: str
    flash_attention: bool
    n_batch: int
    n_ubatch: int
    threads: int
    batch_threads: int
    use_extra_bufts: bool
    overrides: tuple[tuple[str, str | int], ...] = ()


class Model:
    """Raises EngineFailed where the library does. Not thread-safe, but for `tokenize`."""

    def __init__(self, library: c.CDLL, settings: ModelSettings) -> None:
        self._library = library
        self.settings = settings
        library.llama_backend_init()
        params = library.llama_model_default_params()
        params.use_extra_bufts = settings.use_extra_bufts
        overrides = _overrides(settings.overrides)
        params.kv_overrides = c.addressof(overrides)
        self._model = library.llama_model_load_from_file(str(settings.path).encode(), params)
        if not self._model:
            raise EngineFailed("model: the library could not load it")
        self._vocab = library.llama_model_get_vocab(self._model)
        self.vocab_tokens: int = library.llama_vocab_n_tokens(self._vocab)
        self.bos: int = library.llama_vocab_bos(self._vocab)  # -1: none
        self.eos: int = library.llama_vocab_eos(self._vocab)
        self.add_bos: bool = library.llama_vocab_get_add_bos(self._vocab)
        self._context = self._main_context()

    def _main_context(self) -> Context:
        settings, params = self.settings, self._params()
        params.n_ctx = settings.context_tokens * settings.slots
        params.n_seq_max = settings.slots
        params.n_batch, params.n_ubatch = settings.n_batch, settings.n_ubatch
        # a batch may want the logits of all its tokens (the self-check does)
        params.n_outputs_max, params.n_outputs_max_per_seq = settings.n_batch, settings.n_batch
        context = self._make_context(params)
        granted = self._library.llama_n_ctx_seq(context.native)
        if granted < settings.context_tokens:
            raise EngineFailed(f"model: context of {granted} tokens a sequence, expected {settings.context_tokens}")
        return context

    def checking(self, width: int, threads: int) -> Context:
        """A context of its own, kept, of one sequence as long as a serve's, in batches of at most `width` tokens."""
        params = self._params()
        params.n_ctx, params.n_seq_max = self.settings.context_tokens, 1
        params.n_batch = params.n_ubatch = width
        params.n_outputs_max = params.n_outputs_max_per_seq = width
        params.n_threads = params.n_threads_batch = threads
        return self._make_context(params)

    def branching(self, sequences: int, tokens: int) -> Context:
        """A context of its own, to be closed, whose `sequences` share their cells: together they hold `tokens`. Its
        batches have at most n_ubatch tokens."""
        params, width = self._params(), self.settings.n_ubatch
        params.n_ctx, params.n_seq_max, params.kv_unified = tokens, sequences, True
        params.n_batch = params.n_ubatch = width
        # the library reserves a row for each sequence
        params.n_outputs_max = params.n_outputs_max_per_seq = max(width, sequences)
        return self._make_context(params)

    def _params(self) -> abi.ContextParams:
        settings = self.settings
        params: abi.ContextParams = self._library.llama_context_default_params()
        params.n_threads, params.n_threads_batch = settings.threads, settings.batch_threads
        params.flash_attn_type = abi.FLASH_ATTN_ENABLED if settings.flash_attention else abi.FLASH_ATTN_DISABLED
        params.type_k = params.type_v = abi.KV_TYPES[settings.kv_type]
        return params

    def _make_context(self, params: abi.ContextParams) -> Context:
        native = self._library.llama_init_from_model(self._model, params)
        if not native:
            kept = self.settings.kv_type
            raise EngineFailed(f"model: no context of {params.n_ctx} tokens with {kept} keys and values")
        return Context(
            self._library, native, vocab_tokens=self.vocab_tokens, n_batch=params.n_batch, sequences=params.n_seq_max
        )

    def decode(self, feeds: Sequence[Feed]) -> list[Row]:
        return self._context.decode(feeds)

    def forget(self, slot: int, from_pos: int = 0) -> bool:
        return self._context.forget(slot, from_pos)

    def forget_all(self) -> None:
        self._context.forget_all()

    def tokenize(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        """Ids of `text`, led by the beginning-of-sequence id where the model wants one and the text has none, but for a
        `bare` one. An end id is never added: a prompt goes on."""
        raw = text.encode()
        # no vocabulary makes more tokens than bytes, but for the space some put first
        room = len(raw) + 2
        ids = (c.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocab, raw, len(raw), ids, room, False, special)
        if not 0 <= count <= room:
            raise EngineFailed(f"tokenizer: {len(raw)} bytes need {abs(count)} ids, expected at most {room}")
        found = ids[:count]
        if self.add_bos and not bare and self.bos >= 0 and found[:1] != [self.bos]:
            found.insert(0, self.bos)
        return found

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token adds to the text; with `special`, those that spell a control token as well."""
        room = 64
        while True:
            buffer = c.create_string_buffer(room)
            count = self._library.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    def end_ids(self) -> frozenset[int]:
        """The ids that end an output: of a turn, of the text."""
        return frozenset(i for i in range(self.vocab_tokens) if self._library.llama_vocab_is_eog(self._vocab, i))

    def sampler(self, sampling: SamplingPlan, prompt: Sequence[int], context: Context | None = None) -> Sampler:
        """What chooses from the logits of `context`, None: of the one that serves run in. Raises EngineFailed for a
        grammar that the library does not read."""
        grammar = None
        if sampling.grammar:
            grammar = self._library.llama_sampler_init_grammar(self._vocab, sampling.grammar.encode(), b"root")
            if not grammar:
                raise EngineFailed("grammar: the library does not read it")
        window = self.settings.context_tokens
        native = (context or self._context).native
        return Sampler(self._library, native, self.vocab_tokens, window, sampling, prompt, grammar)

    def close(self) -> None:
        self._context.close()
        self._library.llama_model_free(self._model)


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The part of a request's sampling that changes which id is chosen. `_u` are millionths, as in the request;
    `grammar` is its text, empty where there is none."""

    temperature_u: int
    top_p_u: int
    top_k: int
    min_p_u: int
    frequency_penalty_u: int
    presence_penalty_u: int
    repetition_penalty_u: int
    logit_bias: tuple[tuple[int, int], ...]
    seed: int
    grammar: str = ""

    @property
    def raw(self) -> bool:
        """Whether the logits reach the choice as the model made them, so that the distance of the best two says how
        close the choice was."""
        return not self.logit_bias and not self.penalized and not self.grammar

    @property
    def follows_from_logits(self) -> bool:
        """Whether a choice depends on nothing but the logits of its own position and on how many came before."""
        return not self.penalized and not self.grammar

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty_u != 1_000_000 or self.frequency_penalty_u != 0 or self.presence_penalty_u != 0


SAMPLERS = ("logit_bias", "repetition", "frequency_presence", "top_k", "top_p", "min_p", "temperature", "dist")


class Sampler:
    """The explicit chain of one serve, in the order of `SAMPLERS`; at temperature 0 the best id is taken after the
    penalties. A stage that changes nothing is left out. A grammar comes before all of them and leaves only the ids that
    it allows next, so that what is drawn from is the model's distribution over those.

    The repetition penalty counts the prompt and the output, frequency and presence the output alone, both over the
    whole context.
    """

    def __init__(
        self, library: c.CDLL, context: Any, vocab: int, window: int, plan: SamplingPlan, prompt: Sequence[int],
        grammar: Any = None,
    ) -> None:  # fmt: skip
        self._library, self._context, self.plan = library, context, plan
        params = library.llama_sampler_chain_default_params()
        params.no_perf = True
        self._chain = library.llama_sampler_chain_init(params)
        for stage in [*([] if grammar is None else [grammar]), *self._stages(vocab, window, prompt)]:
            library.llama_sampler_chain_add(self._chain, stage)

    def _stages(self, vocab: int, window: int, prompt: Sequence[int]) -> list[Any]:
        library, plan = self._library, self.plan
        stages = []
        if plan.logit_bias:
            pairs = (abi.LogitBias * len(plan.logit_bias))(
                *(abi.LogitBias(i, bias_u / 1e6) for i, bias_u in plan.logit_bias)
            )
            stages.append(library.llama_sampler_init_logit_bias(vocab, len(pairs), pairs))
        if plan.repetition_penalty_u != 1_000_000:
            repetition = library.llama_sampler_init_penalties(vocab, window, plan.repetition_penalty_u / 1e6, 0.0, 0.0)
            for token in prompt:
                library.llama_sampler_accept(repetition, token)
            stages.append(repetition)
        if plan.frequency_penalty_u or plan.presence_penalty_u:
            frequency, presence = plan.frequency_penalty_u / 1e6, plan.presence_penalty_u / 1e6
            stages.append(library.llama_sampler_init_penalties(vocab, window, 1.0, frequency, presence))
        if plan.temperature_u == 0:
            return [*stages, library.llama_sampler_init_greedy()]
        if plan.top_k:
            stages.append(library.llama_sampler_init_top_k(min(plan.top_k, vocab)))
        if plan.top_p_u != 1_000_000:
            stages.append(library.llama_sampler_init_top_p(plan.top_p_u / 1e6, 1))
        if plan.min_p_u:
            stages.append(library.llama_sampler_init_min_p(plan.min_p_u / 1e6, 1))
        stages.append(library.llama_sampler_init_temp(plan.temperature_u / 1e6))
        stages.append(library.llama_sampler_init_dist(plan.seed))
        return stages

    def choose(self, row: Row, index: int) -> tuple[int, float | None]:
        """The next id from the logits at batch index `index`, of which `row` is the view, and its margin (see
        `margin`). Raises EngineFailed for logits that are no numbers."""
        best = _best(row)
        return self._pick(best, index), self.margin(row, best)

    def pick(self, row: Row, index: int) -> int:
        """The same without the margin."""
        return self._pick(_best(row), index)

    def _pick(self, best: int, index: int) -> int:
        if self.plan.raw and self.plan.temperature_u == 0:
            return best
        return int(self._library.llama_sampler_sample(self._chain, self._context, index))

    def margin(self, row: Row, best: int | None = None) -> float | None:
        """The distance between the best two logits, None where the request's own settings change them. `best` is the
        index of the first, where it is known."""
        if not self.plan.raw:
            return None
        best = _best(row) if best is None else best
        rest = max((float(part.max()) for part in (row[:best], row[best + 1 :]) if part.size), default=-math.inf)
        return float(row[best]) - rest

    def close(self) -> None:
        self._library.llama_sampler_free(self._chain)


def _best(row: Row) -> int:
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise EngineFailed(f"model: a logit is {row[best]}")
    return best


def scores_of(row: Row, token: int, count: int) -> Scores:
    """Scores of `token` and of the `count` likeliest ids; of two that are equal the lower id comes first."""
    logits = row.astype(np.float64)
    peak = logits.max()
    total = peak + math.log(np.exp(logits - peak).sum())
    count = min(count, logits.size)
    # every id that ties with the last place, so that the choice between them is by id and not by the partition
    least = np.partition(logits, -count)[-count] if count else math.inf
    places = np.flatnonzero(logits >= least)
    best = places[np.lexsort((places, -logits[places]))][:count]
    return Scores(float(logits[token] - total), tuple((int(i), float(logits[i] - total)) for i in best))


def _overrides(pairs: Sequence[tuple[str, str | int]]) -> Any:
    array = (abi.KvOverride * (len(pairs) + 1))()  # zeroed: the last one ends the list
    for entry, (key, value) in zip(array, pairs, strict=False):
        entry.key = key.encode()
        if isinstance(value, int):
            entry.tag, entry.value.as_int = abi.OVERRIDE_INT, value
        else:
            entry.tag, entry.value.as_str = abi.OVERRIDE_STR, value.encode()
    return array
