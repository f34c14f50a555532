"""What a vLLM engine is configured with, and everything it says about its server before it serves.

What the server can be asked is asked; what only the operator knows is marked `told:`. Neither is trusted further than
it goes: the numbers themselves are measured at load, and their digest is one of the settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mesh.engine.excess import Excess
from mesh.engine.vllm_http import Metrics, ModelCard
from mesh.errors import EngineUnsupported, UsageError
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity

DTYPES: Final = ("float32", "bfloat16", "float16")
START_S: Final = 1800  # the largest models take minutes to load, and as long again to be compiled
DEVICES: Final = ("cpu", "cuda", "rocm", "xpu", "tpu", "hpu")
# The last part of a fingerprint is a hash over the server's whole configuration, its paths included: it tells one
# server from another and is nothing that two machines could agree on. The degrees before it are.
_DEGREES = re.compile(r"-(tp|pp|dp)(\d{1,4})(?=-)")
_NAMES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "dp": "data_parallel"}


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """`url` is the server's root. `model` is which of its models is served (None: its only one), `recipe_id` under
    which name (None: the same). `weights` is the model's folder: digested, and read for the tokenizer; `tokenizer` is
    a folder for the latter alone. `dtype` and `device` are told, not asked. `slots` serves run at once. With `margins`
    the distance between the best two logits comes with every id, which an auditor wants and costs the server some.
    With `route` the server computes over several hosts, each of which has to say what it computes and hold what the
    folder holds.
    `idle_s` is how long a running serve may be silent, in seconds, `start_s` how long a server of our own may take
    until it answers."""

    url: str
    recipe_id: str | None = None
    model: str | None = None
    weights: Path | None = None
    tokenizer: Path | None = None
    chat_template: str | None = None
    dtype: str | None = None
    device: str | None = None
    fidelity: Fidelity | None = None
    requantized: bool = False  # the server was told to quantize what it loads: nobody here knows how closely
    slots: int = 8
    margins: bool = False
    route: bool = False
    idle_s: int = 300
    start_s: int = START_S
    key: str | None = field(default=None, repr=False)
    blueprint_id: bytes | None = None  # of the blueprint that all this comes from
    candidate: Mapping[str, Any] | None = None  # what the settings hold of the runtime candidate that is served
    guard: Callable[[int | None], str | None] | None = None  # given our server's pid, why no serve may start now
    excess: Excess | None = None  # given our server's pid every second, why it has to end

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 1024:
            raise UsageError(f"vllm engine: slots is {self.slots}, expected 1 to 1024")
        if not 1 <= self.idle_s <= 86_400:
            raise UsageError(f"vllm engine: idle_s is {self.idle_s}, expected 1 to 86400")
        if not 1 <= self.start_s <= 86_400:
            raise UsageError(f"vllm engine: start_s is {self.start_s}, expected 1 to 86400")
        for name, value, known in (("dtype", self.dtype, DTYPES), ("device", self.device, DEVICES)):
            if value is not None and value not in known:
                raise UsageError(f"vllm engine: {name} is {value!r}, expected one of {', '.join(known)}")
        if self.route and self.weights is None:
            raise UsageError("vllm engine: a route is held against the whole model: name its folder (weights)")

    @property
    def text_folder(self) -> Path | None:
        return self.tokenizer or self.weights


def told_dtype(flags: Sequence[str]) -> str | None:
    """What a server's own flags say of its dtype; None where they leave it to the server."""
    told = None
    for flag, following in zip(flags, [*flags, ""][1:], strict=True):
        name, _, value = flag.partition("=")
        if name == "--dtype":
            told = value or following
    return {"float": "float32", "half": "float16"}.get(told or "", told if told in DTYPES else None)


def quantizes(flags: Sequence[str]) -> bool:
    """Whether a server's own flags make it quantize weights as it loads them, which their folder does not show. vLLM
    takes abbreviations."""
    names = [flag.partition("=")[0].replace("_", "-") for flag in flags]
    return any(name.startswith(("--quanti", "-q")) for name in names)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says it is. `started_s` and `fingerprint` tell one start of one server from another."""

    version: str
    model: str
    root: str | None
    context_tokens: int
    cache: Mapping[str, str]
    started_s: str | None
    fingerprint: str | None = None

    @classmethod
    def of(cls, version: str, card: ModelCard, metrics: Metrics) -> ServerFacts:
        if card.context_tokens is None:
            raise EngineUnsupported(f"vllm server: model {card.name!r} has no max_model_len: too old, or no vLLM")
        return cls(version, card.name, card.root, card.context_tokens, metrics.cache, metrics.started_s)

    def named(self, fingerprint: str | None) -> ServerFacts:
        return replace(self, fingerprint=fingerprint)

    def difference(self, other: ServerFacts) -> str | None:
        """Why `other` is not the same server on the same model, its start aside; None where it is."""
        for name in ("version", "model", "root", "context_tokens"):
            was, now = getattr(self, name), getattr(other, name)
            if was != now:
                return f"its {name} was {was!r} and is {now!r}"
        for name in _CACHE_LABELS:
            if self.cache.get(name) != other.cache.get(name):
                return f"its {name} was {self.cache.get(name)!r} and is {other.cache.get(name)!r}"
        return None


# Of its cache configuration, what moves numbers: the rest is sizes of memory.
_CACHE_LABELS: Final = ("block_size", "cache_dtype", "enable_prefix_caching")


def choose_model(cards: list[ModelCard], wanted: str | None, url: str) -> ModelCard:
    """Raises UsageError naming the models that there are."""
    names = ", ".join(repr(card.name) for card in cards) or "none"
    if wanted is None:
        if len(cards) != 1:
            raise UsageError(f"vllm server at {url}: serves {names}: say which one")
        return cards[0]
    for card in cards:
        if card.name == wanted:
            return card
    raise UsageError(f"vllm server at {url}: does not serve {wanted!r}, but {names}")


def check_folder(facts: ServerFacts, weights: Path) -> None:
    """Refuse a folder that is not the one the server says it loaded, where that is a folder of this machine."""
    if facts.root is None:
        return
    root = Path(facts.root)
    if root.is_absolute() and root.exists() and root.resolve() != weights.resolve():
        raise UsageError(f"vllm server: it loaded another folder than {weights}, by its own account")


def backend_id(facts: ServerFacts, config: VllmConfig) -> str:
    device = "none" if config.device is None else f"told:{config.device}"
    return f"vllm/{facts.version}/none/none/{device}/none"


def settings(
    facts: ServerFacts,
    config: VllmConfig,
    *,
    quantization: str | None,
    tokenizer: bytes | None,
    template: ContentId | None,
    probe: bytes | None,
    logprobs: str,
) -> dict[str, Any]:
    """The closed list of what moves this engine's numbers, beside the weights. `probe` is what was measured: the digest
    of a few fixed greedy outputs and their log-probabilities to the last bit; None where the server does not give
    the same ones again. `logprobs` is which kind of them it gives."""
    document: dict[str, Any] = {
        "engine": "vllm",
        "context_tokens": facts.context_tokens,
        # nothing is left to the server's or the model's defaults
        "sampling": "all-sent",
        "logprobs": logprobs,
        "template_source": "none" if template is None else "folder" if config.chat_template is None else "config",
        **{name: facts.cache[name] for name in _CACHE_LABELS if name in facts.cache},
        **degrees(facts),
    }
    given = {
        "dtype": None if config.dtype is None else f"told:{config.dtype}",
        "quantization": quantization,
        "tokenizer": tokenizer,
        "template": None if template is None else bytes(template),
        "probe": probe,
        "candidate": None if config.candidate is None else dict(config.candidate),
    }
    return {**document, **{name: value for name, value in given.items() if value is not None}}


def degrees(facts: ServerFacts) -> dict[str, int]:
    """How many ways the server splits a model, by the names of its settings; those that it does not are absent."""
    return {_NAMES[degree]: int(n) for degree, n in _DEGREES.findall(facts.fingerprint or "")}
