"""Recipes of the vllm-project form: one model with variants, features, hardware and strategies to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh.errors import UsageError
from mesh.launch.foreign import Draft, as_text, dotted, short, take_env


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the source's alternatives the recipe is made of. `features` None takes all but the opt-in ones."""

    variant: str = "default"
    hardware: str | None = None
    strategy: str = "single_node_tp"
    features: tuple[str, ...] | None = None


def convert(source: Any, choice: Choice = Choice()) -> Draft:
    """Raises UsageError for a choice that the source does not have."""
    draft = Draft("vllm-recipes", source)
    model = source.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("model_id"), str):
        raise UsageError("vllm-recipes recipe: model.model_id: missing")
    draft.values |= {"engine": "vllm", "entrypoint": ["vllm", "serve"]}
    variant = _variant(draft, choice)
    draft.values["model"] = draft.take("model", "model_id", to="model")
    if isinstance(draft.look("variants", variant, "model_id"), str):
        named = draft.take("variants", variant, "model_id", to="model")
        if named != draft.values["model"]:
            draft.find(
                "note", "derived", "model.model_id", f"{draft.values['model']}: the variant {variant} has {named}"
            )
        draft.values["model"] = named
    args = _args(draft, "model", "base_args")
    env = take_env(draft, "model", "base_env")
    for name in _features(draft, choice):
        args += _args(draft, "features", name, "args")
        env |= take_env(draft, "features", name, "env") if draft.look("features", name, "env") is not None else {}
    for path in (("variants", variant), *_hardware(draft, choice)):
        for key in ("extra_args", "args"):
            args += _args(draft, *path, key)
        for key in ("extra_env", "env"):
            if draft.look(*path, key) is not None:
                env |= _over(draft, env, path, take_env(draft, *path, key))
    _image(draft, choice, variant)
    _strategy(draft, choice, args, env)
    draft.values["args"] = args
    if env:
        draft.values["env"] = env
    _rest(draft, variant)
    draft.finish()
    return draft


def _variant(draft: Draft, choice: Choice) -> str:
    variants = draft.look("variants")
    names = list(variants) if isinstance(variants, dict) else []
    if names and choice.variant not in names:
        if choice.variant != "default":
            raise UsageError(f"vllm-recipes recipe: variant {choice.variant!r}: there are {', '.join(names)}")
        return str(names[0])
    return choice.variant


def _args(draft: Draft, *path: str) -> list[str]:
    given = draft.look(*path)
    if given is None:
        return []
    if not isinstance(given, list) or any(isinstance(one, (dict, list)) for one in given):
        draft.drop(*path, why=f"{short(given)}: no list of words", level="error")
        return []
    return [as_text(one) for one in draft.take(*path, to="args")]


def _over(draft: Draft, env: dict[str, str], path: tuple[str, ...], more: dict[str, str]) -> dict[str, str]:
    for name, value in more.items():
        if env.get(name, value) != value:
            draft.find("warning", "contradictory", dotted((*path, name)), f"{value!r} in place of {env[name]!r}")
    return more


def _features(draft: Draft, choice: Choice) -> list[str]:
    features = draft.look("features")
    names = list(features) if isinstance(features, dict) else []
    opt_in = draft.look("opt_in_features") or []
    if not names:
        draft.mark(("features",), "args")
    draft.mark(("opt_in_features",), "args")
    for name in opt_in:
        if name not in names:
            draft.find("error", "contradictory", "opt_in_features", f"{name!r} is no feature")
    if choice.features is not None:
        if missing := [name for name in choice.features if name not in names]:
            raise UsageError(f"vllm-recipes recipe: feature {missing[0]!r}: there are {', '.join(names) or 'none'}")
        chosen = list(choice.features)
    else:
        chosen = [name for name in names if name not in opt_in]
    for name in names:
        for key in ("description", "label"):
            draft.drop("features", name, key, why="for people, and moves nothing")
        if name not in chosen:
            draft.drop("features", name, why="not chosen: another feature's")
    return chosen


def _hardware(draft: Draft, choice: Choice) -> list[tuple[str, ...]]:
    given = draft.look("hardware_overrides")
    names = list(given) if isinstance(given, dict) else []
    if given in (None, {}):
        draft.mark(("hardware_overrides",), "args")
    if choice.hardware is not None and choice.hardware not in names:
        draft.find("note", "not-there", "hardware_overrides", f"nothing is said of {choice.hardware}")
    for name in names:
        if name != choice.hardware:
            draft.drop("hardware_overrides", str(name), why="not chosen: other hardware's")
    return [("hardware_overrides", choice.hardware)] if choice.hardware in names and choice.hardware else []


def _image(draft: Draft, choice: Choice, variant: str) -> None:
    for path in (("hardware_overrides", choice.hardware or ""), ("variants", variant), ("model",)):
        image = draft.look(*path, "docker_image")
        if isinstance(image, dict) and image:
            key = choice.hardware if choice.hardware in image else "nvidia" if "nvidia" in image else next(iter(image))
            if isinstance(image[key], str):
                draft.values["docker_image"] = draft.take(*path, "docker_image", str(key), to="docker_image")
            draft.drop(*path, "docker_image", why="not chosen: other hardware's")
        elif isinstance(image, str):
            draft.values["docker_image"] = draft.take(*path, "docker_image", to="docker_image")
        if "docker_image" in draft.values:
            return
    least = draft.look("model", "min_vllm_version")
    draft.values["docker_image"] = f"vllm/vllm-openai:v{least}" if least else "vllm/vllm-openai:latest"
    draft.mark(("model", "min_vllm_version"), "docker_image")
    draft.find("warning", "derived", "docker_image", f"none is named: {draft.values['docker_image']}")


def _strategy(draft: Draft, choice: Choice, args: list[str], env: dict[str, str]) -> None:
    given = draft.look("strategy_overrides")
    if given in (None, {}):
        draft.mark(("strategy_overrides",), "args")
    for name in list(given) if isinstance(given, dict) else []:
        if name != choice.strategy:
            draft.drop("strategy_overrides", str(name), why="not chosen: another strategy's")
    path = ("strategy_overrides", choice.strategy)
    tp = draft.look(*path, "tp")
    if isinstance(tp, dict) and choice.hardware in tp:
        draft.values["tensor_parallel_size"] = draft.take(*path, "tp", str(choice.hardware), to="tensor_parallel_size")
    if isinstance(tp, dict):
        draft.drop(*path, "tp", why="not chosen: other hardware's")
    if isinstance(tp, int):
        draft.values["tensor_parallel_size"] = draft.take(*path, "tp", to="tensor_parallel_size")
    args += [*_args(draft, *path, "extra_args"), *_args(draft, *path, "args")]
    for key in ("extra_env", "env"):
        if draft.look(*path, key) is not None:
            env |= _over(draft, env, path, take_env(draft, *path, key))
    for name in draft.look(*path, "hardware_overrides") or {}:
        if name == choice.hardware:
            args += _args(draft, *path, "hardware_overrides", name, "extra_args")
        draft.drop(*path, "hardware_overrides", str(name), why="not chosen: other hardware's")
    able = draft.look("compatible_strategies")
    if isinstance(able, list) and able and choice.strategy not in able:
        draft.find(
            "error", "contradictory", "compatible_strategies", f"{choice.strategy} is not one of {', '.join(able)}"
        )
    draft.drop("compatible_strategies", why="which ways of splitting it has been tried with")


def _rest(draft: Draft, variant: str) -> None:
    draft.drop("meta", why="for people, and moves nothing")
    draft.drop("guide", why="prose: commands in it are not read")
    for name in draft.look("variants") or {}:
        for key in ("description", "label", "precision", "precision_hardware", "vram_minimum_gb"):
            draft.drop("variants", str(name), key, why="for people, and moves nothing")
        draft.drop("variants", str(name), "hardware_overrides", why="not chosen: hardware's of one variant")
        if name != variant:
            draft.drop("variants", str(name), why="not chosen: another variant's")
    draft.drop("model", "min_vllm_version", why=f"{draft.look('model', 'min_vllm_version')}: the least version, which "
               "the image decides", level="warning", code="unpinned")  # fmt: skip
    for key in ("architecture", "parameter_count", "active_parameters", "context_length"):
        draft.drop("model", key, why="what the model is, not how it is launched")
    for key in ("supports_dcp", "flashinfer_autotune", "docker_source", "nightly_required"):
        draft.drop("model", key, why=f"{short(draft.look('model', key))}: said of the model or its image")
    draft.drop(
        "model",
        "install",
        why="commands that make an image; build them into one, and pin that",
        level="warning",
        code="unpinned",
    )
    for key in (
        "kv_offload_support",
        "omni",
        "default_strategy",
        "strategy_min_gpus",
        "strategy_hardware",
        "hardware_opt_in_features",
        "hardware_notes",
    ):
        draft.drop(key, why="what was tried with it, or asks other choices")
    draft.drop("dependencies", why="commands that change the image; build them into one, and pin that", level="warning",
               code="unpinned")  # fmt: skip
