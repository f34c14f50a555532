"""Recipes of the eugr form (`recipe_version: "1"`) and the sparkrun form (`"2"`): YAML around one shell command."""

from __future__ import annotations

from typing import Any

from mesh.errors import UsageError
from mesh.launch.foreign import Draft, as_text, dotted, short, take_env
from mesh.launch.foreign_command import fill, read_command, split

_PEOPLE = "for people, and moves nothing"


def convert(source: Any, form: str) -> Draft:
    """`form` is "eugr" or "sparkrun". Raises UsageError for a source that is no recipe at all."""
    draft = Draft(form, source)
    for key in ("model", "container", "command"):
        if not isinstance(source.get(key), str):
            raise UsageError(f"{form} recipe: {key}: {short(source.get(key))}, expected text")
    draft.take("recipe_version", to="form")
    for key in ("name", "description", "metadata"):
        draft.drop(key, why=_PEOPLE)
    draft.drop("benchmark", why="how it is measured, not how it is launched")
    model = draft.values["model"] = draft.take("model", to="model")
    draft.values["docker_image"] = draft.take("container", to="docker_image")
    if draft.look("model_revision") is not None:
        draft.values["model_revision"] = as_text(draft.take("model_revision", to="model_revision"))
    env = take_env(draft, "env")
    _command(draft, form, model, env)
    _nodes(draft)
    _mods(draft)
    size = draft.look("executor_config", "shm_size")
    if size is not None:
        draft.values["shm_size"] = as_text(draft.take("executor_config", "shm_size", to="shm_size"))
    if env:
        draft.values["env"] = env
    for key in ("build_args",):
        draft.drop(key, why=f"{short(draft.look(key))}: of the source project's image builder", level="warning")
    draft.finish()
    return draft


def _command(draft: Draft, form: str, model: str, env: dict[str, str]) -> None:
    given = draft.look("defaults")
    defaults = {str(key): as_text(value) for key, value in given.items()} if isinstance(given, dict) else {}
    known = {**defaults, "model": model} if form == "sparkrun" else defaults
    text, used, missing = fill(draft.take("command", to="entrypoint, args"), known)
    for name in sorted(missing):
        draft.find("error", "placeholder", "command", f"{{{name}}}: no default fills it")
    for name in defaults:
        if name in used:
            draft.mark(("defaults", name), "args")
        else:
            draft.drop("defaults", name, why=f"{defaults[name]!r}: nothing in the command reads it", level="warning",
                       code="dead")  # fmt: skip
    try:
        command = read_command(split(text))
    except ValueError as e:
        draft.values |= {"engine": _runtime(draft, None), "entrypoint": ["bash", "-c", text]}
        draft.find("error", "command", "command", f"not the shell's: {e}")
        return
    draft.values["engine"] = _runtime(draft, command.engine)
    for fault in command.faults:
        draft.find("error", "command", "command", fault)
    if command.engine is None or (not command.args and command.faults):
        draft.values["entrypoint"] = ["bash", "-c", text]
        draft.find("warning", "command", "command", "kept whole, as one word of a shell")
        return
    for name, value in command.env.items():
        if env.setdefault(name, value) != value:
            draft.find("error", "contradictory", f"env.{name}", f"{env[name]!r}, the command sets {value!r}")
    draft.values["entrypoint"] = command.entrypoint
    fields = dict(command.fields)
    if (named := fields.pop("model", None)) not in (None, model):
        draft.find("error", "contradictory", "model", f"{model}, the command names {named}")
    elif form == "eugr" and named is not None:
        draft.find("note", "twice", "model", f"{model}: written in the command again, to the same")
    port = fields.pop("port", None)
    if port is not None:
        draft.find("note", "changed", "port", f"{port}: the port of every recipe here is the cluster's")
    for word in command.dropped:
        draft.find("note", "changed", "command", f"{word}: the launcher makes it from the cluster")
    draft.values |= fields
    draft.values["args"] = command.args


def _runtime(draft: Draft, found: str | None) -> str:
    said = draft.take("runtime", to="engine")
    engine = {"vllm": "vllm", "sglang": "sglang", "llama-cpp": "llama.cpp"}.get(as_text(said).partition("-ray")[0])
    if said is not None and found is not None and engine != found:
        draft.find("error", "contradictory", "runtime", f"{said}, the command starts {found}")
    return found or engine or "vllm"


def _nodes(draft: Draft) -> None:
    values = draft.values
    least, most = draft.look("min_nodes"), draft.look("max_nodes")
    if isinstance(least, int):
        values["required_nodes"] = draft.take("min_nodes", to="required_nodes")
        if most == least:
            draft.mark(("max_nodes",), "required_nodes")
    if most is not None:
        draft.drop("max_nodes", why=f"{most}: a launch takes required_nodes, or --fit")
    solo, cluster = draft.look("solo_only"), draft.look("cluster_only")
    if solo is True and cluster is True:
        draft.find("error", "contradictory", "solo_only", "true, and so is cluster_only")
    if solo is not None:
        values["solo"] = bool(draft.take("solo_only", to="solo")) and cluster is not True
    if cluster is not None:
        draft.mark(("cluster_only",), "required_nodes")
        ranks = values.get("tensor_parallel_size", 1) * max(values.get("pipeline_parallel_size", 1), 1)
        if cluster is True and "required_nodes" not in values:
            if ranks > 1:
                values["required_nodes"] = min(ranks, 8)
                draft.find("note", "derived", "cluster_only", f"its {ranks} ranks, one a node")
            else:
                draft.find("error", "contradictory", "cluster_only", "true, and one rank")
    if values.get("solo") and values.get("tensor_parallel_size", 1) > 1:
        draft.find("warning", "contradictory", "solo_only", f"true, and {values['tensor_parallel_size']} ranks")


def _mods(draft: Draft) -> None:
    mods = draft.look("mods")
    if mods == [] or mods is None:
        draft.mark(("mods",), "mods")
    else:
        draft.drop("mods", why=f"{short(mods)}: folders of the source project, which are not in the recipe",
                   level="warning", code="unpinned")  # fmt: skip
    before = draft.look("pre_exec")
    if isinstance(before, list) and all(isinstance(one, str) for one in before):
        draft.values["mods"] = {"commands": draft.take("pre_exec", to="mods.commands")}
    for key in ("post_exec", "post_commands", "stop_after_post", "builder", "builder_config"):
        draft.drop(key, why=f"{dotted((key,))}: of the source project's runner", level="warning")
