"""One server as several files describe it: each one's settings, where each comes from, and where the files differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mesh.launch.finding import Finding, warning
from mesh.launch.foreign import Draft
from mesh.launch.foreign_command import split
from mesh.launch.levers import read_levers

COMPUTED = "computed"
_ARITHMETIC = re.compile(r"\$\(\((?:[^()]|\([^()]*\))*\)\)")
_VARIABLE = re.compile(
    r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])((?:[^{}]|\{[^{}]*\})*))?\}|([A-Za-z_][A-Za-z0-9_]*))"
)
_STARTS = (("vllm", "serve"), ("sglang", "serve"), ("llama-server",))
_MODULES = {"vllm.entrypoints.openai.api_server": "vllm", "sglang.launch_server": "sglang"}


@dataclass(slots=True)
class View:
    """`settings` are levers without their dashes, and `image`, `model`; `environment` is what the engine is started
    with. `origins` says where each came from. A switch's value is ""."""

    source: str
    engine: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def interpolated(text: str, env: Mapping[str, str], used: set[str] | None = None, *, deep: int = 4) -> str:
    """`${NAME}`, `${NAME:-default}` and `${NAME:+other}` as Compose reads them; `$$` is a dollar."""

    def put(found: re.Match[str]) -> str:
        name, how, other = found[1] or found[4], found[2] or "", found[3] or ""
        if name is None:
            return "\0"  # so that what it begins is not taken for a variable
        if used is not None:
            used.add(name)
        value = env.get(name)
        there = value is not None and (value != "" or ":" not in how)
        if "+" in how:
            return interpolated(other, env, used, deep=deep - 1) if there and deep else ""
        if there:
            return value or ""
        return interpolated(other, env, used, deep=deep - 1) if "-" in how and deep else ""

    return _VARIABLE.sub(put, text)


def read_env_file(text: str) -> dict[str, str]:
    """NAME=value lines, as Compose's env files have them."""
    env = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            env[name] = value.strip().strip("'\"")
    return env


def engine_words(text: str) -> tuple[str | None, list[str]]:
    """The engine that a shell text starts, and the words after, up to the shell's next operator. Raises ValueError."""
    words = split(_ARITHMETIC.sub(COMPUTED, text))
    for at, word in enumerate(words):
        engine, after = _MODULES.get(word), at + 1
        for start in _STARTS:
            if (word.rpartition("/")[2], *words[at + 1 : at + len(start)]) == start:
                engine, after = start[0] if start[0] != "llama-server" else "llama.cpp", at + len(start)
        if engine is not None:
            end = next((n for n in range(after, len(words)) if words[n] in (";", "&&", "||", "|", "&")), len(words))
            return engine, words[after:end]
    return None, []


def command_settings(engine: str, words: Sequence[str]) -> dict[str, str]:
    levers, loose = read_levers(words, engine, None)
    settings = {lever.name.lstrip("-").replace("-", "_"): " ".join(lever.values) for lever in levers}
    for name in ("model_path", "model"):
        if name in settings:
            settings["model"] = settings.pop(name)
    if loose:
        settings["model"] = loose[0]
    return settings


def compose_views(
    document: Mapping[str, object], source: str, env: Mapping[str, str], env_source: str | None
) -> list[View]:
    """A view for each service that starts an engine. A variable that `env` sets and no service takes is dead."""
    views, used = [], set[str]()
    services = document.get("services")
    for name, service in services.items() if isinstance(services, Mapping) else ():
        if isinstance(service, Mapping):
            view = _service(str(name), service, source, env, env_source, used)
            if view is not None:
                views.append(view)
    for name in env:
        if name not in used and views:
            views[0].findings.append(warning("dead", f"{env_source}: {name}", f"{env[name]!r}: set but unused"))
    return views


def _service(
    name: str,
    service: Mapping[str, object],
    source: str,
    env: Mapping[str, str],
    env_source: str | None,
    used: set[str],
) -> View | None:
    texts = [_words(service.get("entrypoint")), _words(service.get("command"))]
    raw = " ".join(text for text in texts if text)
    plain = interpolated(raw, env, used).replace("\0", "$")
    view = View(source)
    try:
        view.engine, words = engine_words(plain)
    except ValueError as e:
        view.findings.append(warning("command", f"services.{name}.command", f"not the shell's: {e}"))
        return view
    if view.engine is None:
        return None
    view.settings = command_settings(view.engine, words)
    if isinstance(image := service.get("image"), str):
        view.settings["image"] = interpolated(image, env, used)
    given = service.get("environment")
    pairs = (
        dict(item.partition("=")[::2] for item in given if isinstance(item, str)) if isinstance(given, list) else given
    )
    for key, value in pairs.items() if isinstance(pairs, Mapping) else ():
        view.environment[str(key)] = interpolated("" if value is None else str(value), env, used).replace("\0", "$")
    for volume in _list(service.get("volumes")):
        interpolated(str(volume), env, used)
    _origins(view, raw, str(service.get("image", "")), pairs, env, env_source)
    return view


def _origins(
    view: View, raw: str, image: str, environment: object, env: Mapping[str, str], env_source: str | None
) -> None:
    """Which of a file's own text, its default and the env file gave each value."""

    def origin(text: str) -> str:
        names = {found[1] or found[4] for found in _VARIABLE.finditer(text)} - {None}
        if not names:
            return view.source
        return (
            f"{env_source}: {', '.join(sorted(n for n in names if n in env))}"
            if names & env.keys()
            else f"{view.source}, default"
        )

    bare = _VARIABLE.sub(
        lambda found: found[0].replace(" ", "\1"), _ARITHMETIC.sub(COMPUTED, raw.replace("$$((", "$(("))
    )
    try:
        words = [word.replace("\1", " ") for word in split(bare)]
    except ValueError:
        words = []
    for lever, _ in view.settings.items():
        flag = "--" + lever.replace("_", "-")
        at = words.index(flag) if flag in words else -1
        view.origins[lever] = origin(words[at + 1]) if 0 <= at < len(words) - 1 else view.source
    view.origins["image"] = origin(image)
    model = next((word for word in words if view.settings.get("model") and
                  interpolated(word, env).replace("\0", "$") == view.settings["model"]), "")  # fmt: skip
    view.origins["model"] = origin(model)
    for key, value in environment.items() if isinstance(environment, Mapping) else ():
        view.origins[f"env.{key}"] = origin(str(value))


def env_view(document: Mapping[str, object], env: Mapping[str, str], env_source: str) -> View:
    """What an env file says of the server that a Compose file describes: of the settings that it reaches."""
    with_env = compose_views(document, "", env, env_source)
    view = View(env_source)
    if not with_env:
        return view
    view.engine = with_env[0].engine
    for name, value in with_env[0].settings.items():
        if with_env[0].origins.get(name, "").startswith(f"{env_source}:"):
            view.settings[name] = value
    view.environment = {name: value for name, value in env.items() if name.isupper()}
    return view


def recipe_view(draft: Draft, source: str) -> View:
    """Of a recipe that was converted."""
    values = draft.values
    engine = str(values["engine"])
    view = View(source, engine, command_settings(engine, [str(word) for word in values.get("args", [])]))
    for name in ("model", "host", "served_model_name", "tensor_parallel_size", "pipeline_parallel_size",
                 "distributed_backend"):  # fmt: skip
        if name in values:
            view.settings[name if name != "distributed_backend" else "distributed_executor_backend"] = str(values[name])
    if "docker_image" in values:
        view.settings["image"] = str(values["docker_image"])
    view.environment = dict(values.get("env", {}))
    return view


def differences(views: Sequence[View]) -> dict[str, list[str | None]]:
    """Each setting that two views have with other values, and each variable that one sets and another does not: its
    value in each view, None where it has none."""
    found: dict[str, list[str | None]] = {}
    for name in sorted({name for view in views for name in view.settings}):
        values = [view.settings.get(name) for view in views]
        if len({_same(value) for value in values if value is not None}) > 1 or (None in values and _asked(name, views)):
            found[name] = values
    for name in sorted({name for view in views for name in view.environment}):
        values = [view.environment.get(name) for view in views]
        there = [value for value in values if value is not None]
        if len(set(there)) > 1 or (None in values and len(there) > 1):
            found[f"env.{name}"] = values
    return found


def _asked(name: str, views: Sequence[View]) -> bool:
    """Whether a setting that a view lacks is worth a row: where some view computes it, its absence is a statement."""
    return any(view.settings.get(name) == COMPUTED for view in views)


def _same(value: str) -> str:
    """0.80 and 0.8 are one number."""
    return re.sub(r"(\.[0-9]*?)0+\Z", r"\1", value).rstrip(".") if re.fullmatch(r"[0-9]+\.[0-9]+", value) else value


def _words(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(str(item) for item in value)
    return "" if value is None else str(value)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
