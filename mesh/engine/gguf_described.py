"""What a GGUF engine is configured with, and everything it says about itself before it serves."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from mesh.engine.excess import Excess
from mesh.errors import ModelFileError, UsageError, WeightsChanged
from mesh.identity.metadata import GgufArray, Metadata
from mesh.identity.model import GgufModel
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity

DEFAULT_CONTEXT_TOKENS: Final = 4096
LOADING_S: Final = 120.0  # that a child which loads its model may leave a ping unanswered
_SLOWER: Final = 4  # times that a token may take longer in a late batch, or in company, than when it was measured
_MEASURED_TOKENS: Final = 512  # more than a self-check runs through without a word
_PRE, _EOS = "tokenizer.ggml.pre", "tokenizer.ggml.eos_token_id"
# The wheel's kernels are compiled for one instruction set and do not look at the machine.
_ISA: Final = {"x86_64": "x86_64-avx2", "amd64": "x86_64-avx2", "aarch64": "aarch64-neon", "arm64": "aarch64-neon"}
_KV_TYPES: Final = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


Guard = Callable[[int | None], str | None]


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """The defaults are the settings under which llama.cpp was measured to give the same bits in every arrangement.

    `context_tokens` holds prompt and output of one serve (None: the model's own, up to 4096). `chat_template` is used
    instead of the file's; `tokenizer_pre` and `eos_id` fill fields that an old file lacks. `together_always` runs
    `slots` serves at once even where that changes the numbers; then no serve is claimed to repeat. `check_threads` and
    `check_width` (tokens) are for passes over known outputs and are used where they are measured to change no bit; None
    is what serves are computed with. `watts_u` is what
    the processor is taken to draw per busy core, in microwatts. `fidelity` replaces the rating by bits per weight. A
    child that has work and gives no sign of it for `silent_s` seconds is killed and started again. `candidate` is what
    the settings hold of the runtime candidate that is served; `guard` is given the child's pid before each serve and
    says why none may start, `excess` every second and says why it has to end; `processors` are those that it
    may use.
    """

    path: Path
    recipe_id: str
    slots: int = 2
    context_tokens: int | None = None
    kv_type: str = "q8_0"
    flash_attention: bool = True
    n_batch: int = 512
    n_ubatch: int = 64
    threads: int = 1
    batch_threads: int = 1
    use_extra_bufts: bool = True
    together_always: bool = False
    check_threads: int | None = None
    check_width: int | None = None
    chat_template: str | None = None
    tokenizer_pre: str | None = None
    eos_id: int | None = None
    fidelity: Fidelity | None = None
    watts_u: int | None = None
    silent_s: float = 120.0
    blueprint_id: bytes | None = None  # of the blueprint that all this comes from
    environment: Mapping[str, str] | None = None  # the child's, whole; None: what this process has
    candidate: Mapping[str, Any] | None = None
    guard: Guard | None = None
    excess: Excess | None = None
    processors: frozenset[int] | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("slots", 1, 64), ("n_batch", 1, 65_536), ("n_ubatch", 1, 65_536), ("threads", 1, 1024),
            ("batch_threads", 1, 1024), ("check_threads", 1, 1024), ("check_width", 1, 65_536),
            ("context_tokens", 16, 2**24), ("watts_u", 0, 10**12), ("eos_id", 0, 2**31 - 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"gguf engine: {name} is {value}, expected {least} to {most}")
        if not 0.1 <= self.silent_s <= 86_400:
            raise UsageError(f"gguf engine: silent_s is {self.silent_s}, expected 0.1 to 86400")
        if self.n_batch < self.n_ubatch + self.slots:
            raise UsageError(f"gguf engine: n_batch is {self.n_batch}, expected at least n_ubatch + slots")
        if self.kv_type not in _KV_TYPES:
            raise UsageError(f"gguf engine: kv_type is {self.kv_type!r}, expected one of {', '.join(_KV_TYPES)}")
        if self.tokenizer_pre is not None and not 0 < len(self.tokenizer_pre.encode()) < 128:
            raise UsageError("gguf engine: tokenizer_pre is empty or over 127 bytes")

    @property
    def overrides(self) -> tuple[tuple[str, str | int], ...]:
        """Metadata fields that are given from outside, by name."""
        given: tuple[tuple[str, str | int | None], ...] = ((_EOS, self.eos_id), (_PRE, self.tokenizer_pre))
        return tuple((name, value) for name, value in given if value is not None)

    def silence_of(self, token_cpu_ns: int) -> float:
        """Seconds that a child may give no sign of its work: `silent_s`, or longer where one batch takes longer, or
        what measures another width."""
        tokens = self.n_ubatch + self.slots
        if self.check_threads is not None or self.check_width is not None:
            tokens = max(tokens, _MEASURED_TOKENS, self.check_width or 0)
        return max(self.silent_s, _SLOWER * tokens * token_cpu_ns / 1e9)

    def context_of(self, model: GgufModel) -> int:
        """Tokens for each serve. Raises ModelFileError where more is asked for than the model was made for."""
        trained = model.header.context_length
        if self.context_tokens is None:
            return min(trained or DEFAULT_CONTEXT_TOKENS, DEFAULT_CONTEXT_TOKENS)
        if trained is not None and self.context_tokens > trained:
            raise ModelFileError(
                f"{model.header.label}: context_length is {trained}, expected at least {self.context_tokens}",
                field=f"{model.header.architecture}.context_length",
            )
        return self.context_tokens

    def load_message(self, model: GgufModel) -> dict[str, Any]:
        return {
            "op": "load",
            "path": str(model.files[0]),
            "overrides": [list(pair) for pair in self.overrides],
            "together_always": self.together_always,
            "checks": {
                "threads": self.check_threads or self.batch_threads,
                "width": self.check_width or self.n_ubatch,
            },
            "settings": {"context_tokens": self.context_of(model), "slots": self.slots, **self._numbers()},
        }

    def _numbers(self) -> dict[str, Any]:
        names = ("kv_type", "flash_attention", "n_batch", "n_ubatch", "threads", "batch_threads", "use_extra_bufts")
        return {name: getattr(self, name) for name in names}

    def settings(self, model: GgufModel, *, template: ContentId | None, add_bos: bool) -> dict[str, Any]:
        """The closed list of what moves this engine's numbers, beside the weights and the library's build."""
        source = "none" if template is None else "file" if self.chat_template is None else "config"
        document: dict[str, Any] = {
            "engine": "gguf",
            "context_tokens": self.context_of(model),
            # a stage that changes nothing is left out; temperature 0 takes the best id after the penalties
            "samplers": ["logit_bias", "repetition", "frequency_presence", "top_k", "top_p", "min_p", "temperature",
                         "dist"],
            "tokenizer": tokenizer_digest(model.header.metadata),
            "add_bos": add_bos,
            "overrides": [list(pair) for pair in self.overrides],
            "template_source": source,
            **self._numbers(),
            **({} if self.candidate is None else {"candidate": dict(self.candidate)}),
        }  # fmt: skip
        return document if template is None else {**document, "template": bytes(template)}


def check_tokenizer(model: GgufModel, config: GgufConfig) -> None:
    """Refuse a file whose gaps the library would fill with a guess. Raises ModelFileError naming the field."""
    header = model.header
    if header.token_count is None:
        raise _missing(model, "tokenizer.ggml.tokens", "a vocabulary")
    if header.tokenizer_model == "gpt2" and header.tokenizer_pre is None and config.tokenizer_pre is None:
        raise _missing(model, _PRE, "the name of a pre-tokenizer (or tokenizer_pre in the configuration)")
    if header.eos_token_id is None and config.eos_id is None:
        raise _missing(model, _EOS, "the id that ends an output (or eos_id in the configuration)")
    if config.eos_id is not None and config.eos_id >= header.token_count:
        raise UsageError(f"gguf engine: eos_id is {config.eos_id}, expected less than {header.token_count}")


def _missing(model: GgufModel, field: str, expected: str) -> ModelFileError:
    return ModelFileError(f"{model.header.label}: {field} is missing, expected {expected}", field=field)


def weights_changed(how: str) -> WeightsChanged:
    return WeightsChanged(f"model files: {how}: restart the gateway to digest them again and serve them as they are")


def tokenizer_digest(metadata: Metadata) -> bytes:
    """32 bytes: BLAKE3 over all `tokenizer.*` fields but templates, each as name, kind and value with their lengths, in
    the order of their names."""
    hasher = blake3()
    for key in sorted(key for key in metadata if key.startswith("tokenizer.")):
        if key.startswith("tokenizer.chat_template"):
            continue
        value, kind = metadata[key], metadata.kind(key) or ""
        if isinstance(value, GgufArray):
            kind, data = f"{kind} {value.kind} {value.count}", value.data
        else:
            data = (value.hex() if isinstance(value, float) else str(value)).encode()
        for part in (key.encode(), kind.encode(), data):
            hasher.update(len(part).to_bytes(8, "little")).update(part)
    return hasher.digest()


def backend_id(version: str, library: bytes) -> str:
    machine = platform.machine().lower() or "unknown"
    return f"gguf/{version}/{library.hex()[:16]}/{_ISA.get(machine, machine + '-unknown')}/cpu/none"


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What was measured at load. `results` by name of the comparison: None where all bits agreed, else the first
    position that differed. `together`: whether serves run side by side. `width`: of how many tokens a batch of a known
    output may be to give the bits of decoding, 0 where none does."""

    results: Mapping[str, int | None]
    together: bool
    width: int = 0

    @property
    def identical(self) -> bool:
        return all(at is None for name, at in self.results.items() if name != "repeat")

    @property
    def deterministic(self) -> bool:
        """Whether a serve gives the same ids again: in any company where all agrees, else alone, where it repeats."""
        return self.identical or (not self.together and self.results.get("repeat", 0) is None)

    @property
    def reason(self) -> str:
        """One line for operators and clients."""
        if self.identical:
            return "self-check: bit-identical " + ", ".join(self.results)
        differ = ", ".join(f"{name} (position {at})" for name, at in self.results.items() if at is not None)
        if self.together:
            then = "serves run together as configured and are not claimed to repeat"
        elif self.deterministic:
            then = "serves run one at a time, where they repeat"
        else:
            then = "serves run one at a time and are not claimed to repeat"
        return f"self-check: logits differ in {differ}: {then}"
