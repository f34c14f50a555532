"""Deployments of other systems, held against themselves: ports, hosts, ranks, images and probes that do not agree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh.launch.finding import Finding, error, note, warning
from mesh.launch.foreign import dotted, leaves
from mesh.launch.image_names import image_tag
from mesh.launch.views import View, command_settings, compose_views, engine_words

# Where an engine listens when it is not told.
_DEFAULTS = {"vllm": ("0.0.0.0", 8000), "sglang": ("127.0.0.1", 30_000), "llama.cpp": ("127.0.0.1", 8080)}  # noqa: S104
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PLACEHOLDER = re.compile(r"\A<[^<>]+>\Z")
_IMAGE = re.compile(
    r"\A(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9._-]+(?:/[a-z0-9._-]+)+(?::[\w.-]{1,128})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_PROBE = re.compile(r"https?://([A-Za-z0-9.\[\]:-]*?)(?::([0-9]+))?(/[^\s\"'|]*)?(?=[\s\"'|]|\Z)")


def is_kubernetes(documents: Sequence[Any]) -> bool:
    return bool(documents) and all(isinstance(one, dict) and "apiVersion" in one and "kind" in one for one in documents)


def kubernetes_findings(documents: Sequence[Any]) -> list[Finding]:
    """Of all documents of one file together."""
    findings: list[Finding] = []
    listeners: dict[int, str] = {}
    for document in documents:
        for where, container, replicas in _containers(document):
            findings += _container(where, container, replicas, listeners)
    serving = dict(listeners)
    for document in documents:
        if document.get("kind") != "Service" or not listeners:
            continue
        name = (document.get("metadata") or {}).get("name", "")
        for port in (document.get("spec") or {}).get("ports") or []:
            target = port.get("targetPort", port.get("port"))
            where = f"Service {name}"
            if target not in serving:
                near = ", ".join(f"{host}:{port}" for port, host in serving.items())
                findings.append(error("port", where, f"port {target} has no listener: the engine is at {near}"))
            elif serving[target] in _LOOPBACK:
                findings.append(error("host", where, f"port {target}: the engine listens on {serving[target]} alone"))
    return findings


def _containers(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], int | None]]:
    """Of every pod, wherever its kind has pods: the container, whose pod it is in, and how many pods there are."""
    name = f"{document.get('kind')} {(document.get('metadata') or {}).get('name', '')}".strip()
    yield from _pods(document.get("spec"), name, None, set())


def _pods(
    value: Any, where: str, replicas: int | None, seen: set[int]
) -> Iterator[tuple[str, Mapping[str, Any], int | None]]:
    if not isinstance(value, (Mapping, list)) or id(value) in seen:  # an alias may lead back to where it stands
        return
    seen.add(id(value))
    if isinstance(value, list):
        for item in value:
            named = item.get("name") if isinstance(item, Mapping) else None
            yield from _pods(item, f"{where} {named}" if isinstance(named, str) else where, replicas, seen)
        return
    for key in ("replicas", "size"):  # a group's size is that of each of its replicas
        replicas = value[key] if isinstance(value.get(key), int) else replicas
    for key in ("initContainers", "containers"):
        for container in value[key] if isinstance(value.get(key), list) else ():
            if isinstance(container, Mapping):
                yield where, container, replicas
    for key, item in value.items():
        if key not in ("initContainers", "containers"):
            yield from _pods(item, f"{where} {key}" if key in ("leaderTemplate", "workerTemplate") else where, replicas,
                             seen)  # fmt: skip


def _container(
    where: str, container: Mapping[str, Any], replicas: int | None, listeners: dict[int, str]
) -> list[Finding]:
    findings = [*_image(where, container.get("image")), *_placeholders(where, container.get("env"))]
    resources = container.get("resources")
    if isinstance(resources, Mapping):
        findings += [
            warning("empty", where, f"resources.{key} is null") for key, value in resources.items() if value is None
        ]
    text = "\n".join(str(word) for key in ("command", "args") for word in container.get(key) or [])
    try:
        engine, words = engine_words(text)
    except ValueError as e:
        return [*findings, error("command", where, f"not the shell's: {e}")]
    if engine is None:
        return findings
    settings = command_settings(engine, words)
    findings += _listens(where, engine, settings, listeners)
    gpus = ((resources or {}).get("limits") or {}).get("nvidia.com/gpu")
    findings += _ranks(where, settings, replicas, int(str(gpus)) if str(gpus).isdigit() else None)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        port = ((container.get(probe) or {}).get("httpGet") or {}).get("port")
        if isinstance(port, int) and port not in listeners:
            findings.append(error("port", f"{where} {probe}", f"port {port} has no listener"))
    return findings


def _listens(where: str, engine: str, settings: Mapping[str, str], listeners: dict[int, str]) -> list[Finding]:
    """Note the engine's port, and that of its ranks' meeting."""
    host, port = _DEFAULTS[engine]
    findings = []
    if "port" not in settings or "host" not in settings:
        said = [name for name in ("host", "port") if name not in settings]
        findings.append(
            warning("default", where, f"--{' and --'.join(said)} not given: {engine} listens on {host}:{port}")
        )
    listeners[int(settings["port"]) if settings.get("port", "").isdigit() else port] = settings.get("host", host)
    meeting = settings.get("dist_init_addr", settings.get("nccl_init_addr", "")).rpartition(":")[2]
    if meeting.isdigit():
        listeners[int(meeting)] = "the head"
    return findings


def _ranks(where: str, settings: Mapping[str, str], replicas: int | None, gpus: int | None) -> list[Finding]:
    tp = settings.get("tp_size", settings.get("tensor_parallel_size", ""))
    pp = settings.get("pp_size", settings.get("pipeline_parallel_size", "1"))
    nodes = settings.get("nnodes", "")
    if not (tp.isdigit() and pp.isdigit()) or gpus is None or replicas is None:
        return []
    ranks = int(tp) * int(pp)
    shown = f"TP {tp}" + ("" if pp == "1" else f" x PP {pp}")
    if (nodes.isdigit() and int(nodes) != replicas) or (ranks != replicas * gpus and (nodes or replicas == 1)):
        also = f" and nnodes {nodes}" if nodes else ""
        return [error("ranks-clash", where, f"{shown}{also} disagree with {replicas} x {gpus} GPUs")]
    return [note("ranks", where, f"ranks {replicas} x {gpus} GPUs = {shown}: consistent")]


def _image(where: str, image: object) -> list[Finding]:
    if not isinstance(image, str):
        return []
    tag, digest = image_tag(image), image.partition("@")[2]
    if digest:
        shown = f"{image}: the digest decides, the tag {tag} is not looked at"
        return [] if tag is None else [note("image-tag", where, shown)]
    if tag in (None, "latest", "nightly"):
        return [error("image-unpinned", where, f"{image}: floating image tag")]
    return [error("image-unpinned", where, f"{image}: the tag can be pushed again, or deleted; no digest")]


def images_of(documents: Sequence[Any]) -> list[str]:
    """The images that pods or services of these run, each once, as they stand there."""
    found: list[Any] = []
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        found += [container.get("image") for _, container, _ in _containers(document)]
        services = document.get("services")
        found += [one.get("image") for one in services.values() if isinstance(one, Mapping)] if isinstance(
            services, Mapping
        ) else []  # fmt: skip
    return list(dict.fromkeys(image for image in found if isinstance(image, str)))


def loose_images(documents: Sequence[Any]) -> list[tuple[str, str]]:
    """Values that are the name of an image with its tag or digest, in a file of no form that is known, and where."""
    return [
        (dotted(path), value)
        for document in documents
        for path, value in leaves(document)
        if isinstance(value, str) and _IMAGE.match(value) and (image_tag(value) or "@" in value)
    ]


def loose_findings(documents: Sequence[Any], known: str) -> list[Finding]:
    """Of a file of no form that is known; none where it names no image either. Nothing else of it is read."""
    images = loose_images(documents)
    if not images:
        return []
    told = f"of no form that is known: {known}: its images alone are looked at"
    return [error("form", "file", told), *(one for where, image in images for one in _image(where, image))]


def _placeholders(where: str, environment: object) -> list[Finding]:
    pairs: list[tuple[str, object]] = []
    if isinstance(environment, Mapping):
        pairs = [(str(name), value) for name, value in environment.items()]
    elif isinstance(environment, list):
        pairs = [(str(one.get("name")), one.get("value")) for one in environment if isinstance(one, Mapping)]
    return [
        error("placeholder", f"{where} {name}", f"{value} stands for a value that was never filled in")
        for name, value in pairs
        if isinstance(value, str) and _PLACEHOLDER.match(value)
    ]


def compose_findings(
    document: Mapping[str, Any], source: str, env: Mapping[str, str] | None = None, env_source: str | None = None
) -> tuple[list[Finding], list[View]]:
    """Of a Compose file with what its env file says, and the views of its engines."""
    views = compose_views(document, source, env or {}, env_source)
    findings = [one for view in views for one in view.findings]
    for name, service in (document.get("services") or {}).items():
        where = f"services.{name}"
        if not isinstance(service, Mapping):
            continue
        own = compose_views({"services": {name: service}}, source, env or {}, None)
        image = own[0].settings.get("image") if own else service.get("image")
        findings += [*_image(where, image), *_placeholders(where, service.get("environment"))]
        if own and own[0].engine is not None:
            findings += _health(where, service, own[0])
    return findings, views


def _health(where: str, service: Mapping[str, Any], view: View) -> list[Finding]:
    test = (service.get("healthcheck") or {}).get("test")
    text = " ".join(map(str, test)) if isinstance(test, list) else str(test or "")
    default = _DEFAULTS[view.engine or "vllm"][1]
    port = int(view.settings["port"]) if view.settings.get("port", "").isdigit() else default
    findings = []
    for found in _PROBE.finditer(text):
        asked = int(found[2]) if found[2] else 80
        if asked == port:
            findings.append(note("port", f"{where}.healthcheck", f"port {asked} equals the engine's"))
        else:
            findings.append(error("port", f"{where}.healthcheck", f"port {asked}, the engine listens on {port}"))
        if found[3] == "/health":
            findings.append(
                note("health", f"{where}.healthcheck", "says that a server is there, not which model it serves")
            )
    return findings
