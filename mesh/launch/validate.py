"""The contract of a recipe, checked offline: no host is asked, and each fault is one finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mesh.errors import MovingReference, UsageError
from mesh.identity.fields import check_pin
from mesh.launch.config import DEFAULT_PORT
from mesh.launch.finding import Finding, advisory, error, note, warning
from mesh.launch.image_names import IMAGES_DIR, image_name, image_tag
from mesh.launch.images import context_of, images_root, is_built
from mesh.launch.levers import lever_findings
from mesh.launch.recipe import Hook, Recipe, RecipeFile
from mesh.launch.scripts import SCRIPTS

_EXEMPT_IMAGES = ("alpine",)  # of tests: serves nothing
_IMAGE_IN_TEXT = re.compile(
    r"(?<![\w./@-])((?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9._/-]+)"
    r"(?::([A-Za-z0-9_](?:[\w.-]{0,126}\w)?))?(?:@(sha256:[0-9a-f]{64}))?(?![\w:@/])"
)
_PLACEHOLDER = re.compile(r"\A<[^<>]+>\Z|\A(your|changeme|replace)[-_ ]", re.IGNORECASE)
_ALLOWED_MOUNT = re.compile(r"\{\{([A-Za-z0-9_]+)\}\}")


@dataclass(frozen=True, slots=True)
class Rules:
    """`default_port` is the one port of all recipes; `models_float` turns the rule for model pins round, as launchers
    do whose recipes follow a model's newest revision. `staging` are the kinds that plug-ins make."""

    default_port: int = DEFAULT_PORT
    models_float: bool = False
    staging: frozenset[str] = frozenset()


def validate(file: RecipeFile, rules: Rules = Rules()) -> list[Finding]:
    """Every finding; of an archived recipe none is an error."""
    recipe = file.recipe
    findings = [
        *_image(file),
        *_comments(file),
        *_model(recipe, rules),
        *_nodes(recipe),
        *_deploy(recipe, rules),
        *_scripts(recipe),
        *_mounts(recipe),
        *_secrets(recipe),
        *lever_findings(
            recipe.engine,
            recipe.engine_version,
            recipe.args,
            plain_env(recipe, rules.default_port),
            recipe.allowed_levers,
            derived_levers(recipe, rules.default_port),
        ),
    ]
    if recipe.port is not None and recipe.port != rules.default_port:
        findings.append(error("port", "port", f"{recipe.port}, expected the one of every recipe, {rules.default_port}"))
    return advisory(findings) if recipe.archived else findings


def plain_env(recipe: Recipe, port: int) -> dict[str, str]:
    """The recipe's environment, values taken from fields put in."""
    port = recipe.port or port
    return {name: value if isinstance(value, str) else str(port) for name, value in recipe.env.items()}


def derived_levers(recipe: Recipe, default_port: int) -> Mapping[str, str]:
    """The flags that the launcher makes of this recipe on whichever node, with their values."""
    port = str(recipe.port or default_port)
    derived = {"--host": recipe.host, "--port": port}
    revision = recipe.revision
    if recipe.engine in ("vllm", "sglang"):
        tp = {"vllm": "--tensor-parallel-size", "sglang": "--tp-size"}[recipe.engine]
        if recipe.tensor_parallel_size is not None:
            derived[tp] = str(recipe.tensor_parallel_size)
        if revision is not None and not recipe.local_model:
            derived["--revision"] = revision
        if recipe.served_model_name is not None:
            derived["--served-model-name"] = recipe.served_model_name
    if recipe.engine == "vllm":
        if recipe.pipeline_parallel_size > 1:
            derived["--pipeline-parallel-size"] = str(recipe.pipeline_parallel_size)
        if recipe.distributed_backend == "ray":
            derived["--distributed-executor-backend"] = "ray"
    return derived


def _image(file: RecipeFile) -> list[Finding]:
    recipe = file.recipe
    if recipe.deploy == "tmux":
        if recipe.docker_image is not None:
            return [warning("unused", "docker_image", "deploy is tmux, which runs no image")]
        return []
    image = recipe.docker_image
    if image is None:
        return [error("image-missing", "docker_image", "missing, and deploy is docker")]
    if is_built(file):
        return _built(file)
    findings = []
    if image_name(image) not in _EXEMPT_IMAGES:
        tag, digest = image_tag(image), image.partition("@")[2] or None
        if digest is None and recipe.pins.image is None:
            kind = "floats" if tag in (None, "latest", "nightly") else "can be pushed again, or deleted"
            named = "no tag" if tag is None else f"the tag {tag}"
            findings.append(
                error("image-unpinned", "docker_image", f"{image}: {named} {kind}; `mesh launch pin` writes the digest")
            )
        elif digest is not None and tag is not None:
            findings.append(
                note("image-tag", "docker_image", f"the digest {digest} decides; the tag {tag} is not looked at")
            )
        if digest is not None and recipe.pins.image not in (None, digest):
            findings.append(
                warning("image-drift", "pins.image", f"{recipe.pins.image}, docker_image says {digest}, which wins")
            )
    if recipe.docker_image_dir is not None and not (images_root(file) / recipe.docker_image_dir).is_dir():
        findings.append(
            error("image-dir", "docker_image_dir", f"{recipe.docker_image_dir}: no such folder in {IMAGES_DIR}")
        )
    return findings


def _built(file: RecipeFile) -> list[Finding]:
    """An image of our own is pinned by what it is built from: each node's is held to the checksum at launch."""
    try:
        context = context_of(file)
    except UsageError as e:
        return [error("image-build", "docker_image", str(e))]
    return [note("image-built", "docker_image", f"{context.ref}: built from {context.folder.name}, checksum "
                 f"{context.checksum}")]  # fmt: skip


def _comments(file: RecipeFile) -> list[Finding]:
    return comment_findings(file.data.decode("utf-8"), file.recipe.docker_image)


def comment_findings(text: str, image: str | None) -> list[Finding]:
    """Comments that name another tag or digest of the image than the one that is run. Where a digest is run, a tag
    alone names whatever was pushed under it last."""
    if image is None:
        return []
    tag, digest = image_tag(image), image.partition("@")[2]
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, comment = line.partition("#")
        if not mark or line.count('"', 0, len(line) - len(comment) - 1) % 2:
            continue
        for found in _IMAGE_IN_TEXT.finditer(comment):
            name, named_tag, named_digest = found.groups()
            if not (named_tag or named_digest) or name.rpartition("/")[2] != image_name(image):
                continue
            same = named_digest == digest if named_digest and digest else named_tag == tag and not digest
            if not same:
                findings.append(
                    warning("comment-drift", f"line {number}", f"a comment names {found[0]}, what runs is {image}")
                )
    return findings


def _model(recipe: Recipe, rules: Rules) -> list[Finding]:
    findings = []
    said = [
        ("model", recipe.model.partition("@")[2] or None),
        ("model_revision", recipe.model_revision),
        ("pins.model_revision", recipe.pins.model_revision),
    ]
    values = {where: value for where, value in said if value is not None}
    if rules.models_float:
        return [error("model-pinned", where, f"{value!r}: models float here") for where, value in values.items()]
    for where, value in values.items():
        try:
            check_pin(value, where)
        except MovingReference as e:
            findings.append(error("model-moves", where, str(e).partition(": ")[2]))
    if len(set(values.values())) > 1:
        shown = ", ".join(f"{where} {value}" for where, value in values.items())
        findings.append(error("model-clash", "model_revision", f"more than one: {shown}"))
    if not values and not recipe.local_model:
        findings.append(
            warning(
                "model-unpinned",
                "model",
                f"{recipe.model}: no revision, so its files may change; `mesh launch pin` writes the commit",
            )
        )
    return findings


def _nodes(recipe: Recipe) -> list[Finding]:
    findings = []
    nodes, tp, pp = recipe.required_nodes, recipe.tensor_parallel_size, recipe.pipeline_parallel_size
    if recipe.solo and (nodes or 1) > 1:
        findings.append(error("nodes-clash", "solo", f"with required_nodes = {nodes}"))
    if nodes is not None and tp is not None and (tp * max(pp, 1)) % nodes and pp:
        findings.append(
            error(
                "ranks-clash", "tensor_parallel_size", f"{tp} x {pp} ranks cannot be spread evenly over {nodes} nodes"
            )
        )
    if recipe.engine in ("llama.cpp", "mesh") and (nodes or 1) > 1:
        findings.append(error("nodes-clash", "required_nodes", f"{nodes}, and {recipe.engine} serves from one"))
    if recipe.engine != "vllm":
        if pp > 1:
            findings.append(error("unused", "pipeline_parallel_size", f"{recipe.engine} is not given it"))
        if recipe.distributed_backend == "ray":
            findings.append(error("unused", "distributed_backend", f"{recipe.engine} is not given it"))
    return findings


def _deploy(recipe: Recipe, rules: Rules) -> list[Finding]:
    findings = []
    if recipe.deploy == "tmux":
        for name, there in (
            ("mods", recipe.mods.commands),
            ("composed_model", recipe.composed_model),
            ("build.versions", recipe.build.versions),
            ("build_profile", recipe.build_profile),
        ):
            if there:
                findings.append(error("docker-only", name, 'needs deploy = "docker"'))
        if recipe.shm_size is not None:
            findings.append(warning("unused", "shm_size", "deploy is tmux"))
        if recipe.venv is None and (recipe.venv_setup or recipe.venv_setup_script):
            findings.append(error("venv-missing", "venv", "missing, and there is a set-up for it"))
    else:
        if recipe.local_model and recipe.engine != "mesh" and not recipe.model.startswith("/"):
            findings.append(
                error(
                    "model-path", "model", f"{recipe.model}: is mounted where it is, so it has to be an absolute path"
                )
            )
        for name in ("venv", "venv_setup", "venv_setup_script"):
            if getattr(recipe, name):
                findings.append(warning("unused", name, "deploy is docker, whose image has its own Python"))
    if recipe.venv_setup and recipe.venv_setup_script:
        findings.append(warning("unused", "venv_setup", "venv_setup_script wins"))
    if recipe.mods.commands and not recipe.entrypoint:
        findings.append(error("entrypoint-missing", "entrypoint", "missing, and [mods] runs before it"))
    for block in recipe.staging:
        if block.kind != "hub-mirror" and block.kind not in rules.staging:
            findings.append(error("plug-in", "staging", f"{block.kind} is a plug-in's, and none is there"))
    return findings


def _scripts(recipe: Recipe) -> list[Finding]:
    findings = []
    for where, hooks in (
        ("before_serve", recipe.before_serve),
        ("after_stop", recipe.after_stop),
        ("mods.commands", recipe.mods.commands),
    ):
        findings += [_unknown_script(hook, where) for hook in hooks if hook.script not in (None, *SCRIPTS)]
    return findings


def _unknown_script(hook: Hook, where: str) -> Finding:
    return error("script-unknown", where, f"no script {hook.script!r}; there are {', '.join(sorted(SCRIPTS))}")


def _mounts(recipe: Recipe) -> list[Finding]:
    """Placeholders that nothing fills, and repositories that nobody names."""
    named = {mount.container for mount in recipe.extra_mounts if mount.repo is not None}
    texts = [*recipe.args, *(value for value in recipe.env.values() if isinstance(value, str))]
    used = {name for text in texts for name in _ALLOWED_MOUNT.findall(text)}
    findings = [
        error("placeholder", f"{{{{{name}}}}}", "no extra_mounts entry fills it") for name in sorted(used - named)
    ]
    return findings + [
        warning("unused", f"extra_mounts.{name}", "no argument or variable names it") for name in sorted(named - used)
    ]


def _secrets(recipe: Recipe) -> list[Finding]:
    return [
        error("placeholder", f"env.{name}", f"{value!r} stands for a value that was never filled in")
        for name, value in recipe.env.items()
        if isinstance(value, str) and _PLACEHOLDER.search(value)
    ]
