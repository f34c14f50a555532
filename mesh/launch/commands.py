"""The exact commands that touch a node, each made once: a dry run prints what a launch runs."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mesh.launch.config import LaunchConfig, Node
from mesh.launch.ranks import CACHE_IN_CONTAINER, Rank
from mesh.launch.recipe import RUN_MARKER, ComposedModel, Hook, Mount, Recipe
from mesh.launch.scripts import script

LABEL = "mesh.run"
SESSION = "engine"
INHERITED = ("HOME", "PATH", "USER", "LOGNAME")


@dataclass(frozen=True, slots=True)
class Step:
    """One shell command on one node. `on_failure` is what its failure does to the launch."""

    node: str
    what: str
    command: str
    on_failure: str = "abort"

    def to_map(self) -> dict[str, str]:
        return {"node": self.node, "what": self.what, "command": self.command, "on_failure": self.on_failure}


def at_home(path: str) -> str:
    """A path as the node's shell takes it: `~` is the SSH user's home, all else is literal."""
    if path == "~":
        return '"$HOME"'
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}' if path[2:] else '"$HOME"'
    return shlex.quote(path)


def hook_steps(node: Node, what: str, hooks: Iterable[Hook]) -> list[Step]:
    steps = []
    for hook in hooks:
        command = hook.command if hook.command is not None else f"sh -c {shlex.quote(script(hook.script or ''))}"
        steps.append(Step(node.name, what, command, hook.on_failure))
    return steps


def gid_step(node: Node, hca: str | None = None, *, sysfs: str = "/sys") -> Step:
    """Prints the first index whose entry is RoCE v2 with an address that maps an IPv4 one, of the adapters that NCCL is
    told to use (`hca`, as NCCL_IB_HCA has it: beginnings of names), else of any."""
    root = f"{sysfs}/class/infiniband"
    names = [] if hca is None or hca.startswith("^") else [one.partition(":")[0] for one in hca.lstrip("=").split(",")]
    devices = " ".join(f"{shlex.quote(f'{root}/{name}')}*" for name in names if name) or f"{root}/*"
    command = (
        f'for d in {devices}; do for p in "$d"/ports/*; do '
        'for i in $(ls "$p/gid_attrs/types" 2>/dev/null | sort -n); do '
        'grep -q "RoCE v2" "$p/gid_attrs/types/$i" 2>/dev/null && '
        'grep -qi "^0000:0000:0000:0000:0000:ffff:" "$p/gids/$i" && echo "$i" && exit 0; done; done; done; '
        "echo no RoCE v2 entry with an IPv4 address >&2; exit 1"
    )
    return Step(node.name, "find the GID index", command)


def venv_steps(node: Node, recipe: Recipe, script: str | None) -> list[Step]:
    """Make the virtual environment where it is not there, and look again."""
    if recipe.venv is None:
        return []
    there = f"test -f {at_home(recipe.venv.rstrip('/') + '/bin/activate')}"
    lines = [script] if script is not None else recipe.venv_setup
    if not lines:
        return [Step(node.name, "virtual environment", there)]
    body = "set -e\n" + "\n".join(lines)
    return [Step(node.name, "virtual environment", f"{there} || {{ sh -c {shlex.quote(body)} && {there}; }}")]


def clear_steps(node: Node, config: LaunchConfig, recipe: Recipe) -> list[Step]:
    """Delete the host folders of extra mounts: caches, which the container's root owns. Models are never touched."""
    folders = [mount_source(config, mount) for mount in recipe.extra_mounts if mount.repo is None]
    return [Step(node.name, "clear", f"sudo rm -rf {at_home(folder)}") for folder in folders]


def free_space_step(node: Node, folder: str, minimum: str) -> Step:
    """Fails with what is free where it is under `minimum`: a number with G, T (of 1024^3 and ^4 bytes) or %."""
    number, unit = int(minimum[:-1]), minimum[-1]
    near = f'd={at_home(folder)}; while [ ! -d "$d" ]; do d=$(dirname "$d"); done; '
    if unit == "%":
        look = "df -Pk \"$d\" | awk 'NR==2 {print int($4*100/$2)}'"
        return Step(
            node.name,
            "free space",
            f'{near}f=$({look}); [ "$f" -ge {number} ] || {{ echo "$f % free, {number} % wanted" >&2; exit 1; }}',
        )
    kib = number * 1024**2 * (1024 if unit == "T" else 1)
    look = "df -Pk \"$d\" | awk 'NR==2 {print $4}'"
    return Step(
        node.name,
        "free space",
        f'{near}f=$({look}); [ "$f" -ge {kib} ] || {{ echo "$f KiB free, {kib} wanted" >&2; exit 1; }}',
    )


def mount_source(config: LaunchConfig, mount: Mount) -> str:
    if mount.alias is not None and mount.alias in config.mount_aliases:
        return config.mount_aliases[mount.alias]
    return mount.host or ""


def composed_folder(run: str) -> str:
    """On the node, and on the same file system as hard links need: /tmp, under a name that no other run has."""
    return f"/tmp/mesh-composed-{run}"  # noqa: S108


def compose_steps(node: Node, composed: ComposedModel, run: str, cache: str) -> list[Step]:
    """One folder of links into the model cache, as the container sees it, and of generated files; later sources win."""
    folder = composed_folder(run)
    lines = ["set -e", f"d={shlex.quote(folder)}", 'rm -rf "$d"', 'mkdir -p "$d"', f"c={at_home(cache)}"]
    for source in composed.sources:
        slug = "models--" + source.repo.replace("/", "--")
        lines += [
            f'r="$c/hub/{slug}"',
            f'[ -f "$r/refs/main" ] || {{ echo "{source.repo}: not in $c; "'
            f'"huggingface-cli download {source.repo}" >&2; exit 1; }}',
            's="$r/snapshots/$(cat "$r/refs/main")"',
        ]
        chosen = f"-path ./{shlex.quote(source.glob)}" if source.glob is not None else ""
        depth = "" if source.glob is None else f"-maxdepth {source.glob.count('/') + 1} "
        left = "".join(f" ! -path ./{shlex.quote(pattern)}" for pattern in source.exclude)
        found = f'(cd "$s" && find . {depth}\\( -type f -o -type l \\) {chosen}{left} -print)'
        if source.glob is not None:
            hint = shlex.quote(f"{source.repo}: nothing matches {source.glob}")
            lines.append(f'[ -n "$( {found} )" ] || {{ echo {hint} >&2; exit 1; }}')
        lines.append(
            f"{found} | while read -r f; do "
            f'f=${{f#./}}; mkdir -p "$d/$(dirname "$f")"; '
            f'ln -sfn "{CACHE_IN_CONTAINER}${{s#"$c"}}/$f" "$d/$f"; done'
        )
    for file in composed.files:
        to = f'"$d"/{shlex.quote(file.name)}'
        lines.append(f'mkdir -p "$(dirname {to})"; rm -f {to}; printf %s {shlex.quote(file.content)} >{to}')
    for local in composed.local_files:
        to = f'"$d"/{shlex.quote(local.name or local.host.rpartition("/")[2])}'
        lines.append(f'mkdir -p "$(dirname {to})"; ln -f {at_home(local.host)} {to}')
    return [Step(node.name, "composed model", "\n".join(lines))]


def mods_argv(recipe: Recipe, argv: Sequence[str]) -> list[str]:
    """The container's command where commands run in it first: each as its `on_failure` says, then the engine."""
    parts = []
    for hook in recipe.mods.commands:
        command = hook.command if hook.command is not None else script(hook.script or "")
        # in braces of its own: `a && b || c && d` would go on to d where a failed
        parts.append(
            f"{{ {command}\n}}" if hook.on_failure == "abort" else f"{{ {{ {command}\n}} || echo mods: failed >&2; }}"
        )
    return ["-c", " && ".join([*parts, f"exec {shlex.join(argv)}"])]


def container_name(recipe: str, rank: int) -> str:
    return f"mesh-{recipe}-{rank}"


def model_mount(recipe: Recipe) -> list[str]:
    """A model that is a path of the node, at the same path in the container, unless an extra mount has it."""
    if not recipe.local_model or not recipe.model.startswith("/"):
        return []
    for mount in recipe.extra_mounts:
        if mount.repo is None and f"{recipe.model}/".startswith(mount.container.rstrip("/") + "/"):
            return []
    return [f"-v {shlex.quote(f'{recipe.model}:{recipe.model}:ro')}"]


def docker_run(
    config: LaunchConfig, recipe: Recipe, rank: Rank, *, run: str, image: str, nodes: int, cache: str, name: str,
    fabric: bool = True,
) -> Step:  # fmt: skip
    """Start a rank's container. Several nodes share the host's network, which their fabric is on. A node that is said
    to have no accelerator is not asked for one."""
    port = str(recipe.port or config.default_port)
    words = [
        "docker",
        "run",
        "-d",
        "--name",
        container_name(name, rank.rank),
        "--label",
        f"{LABEL}={run}",
        "--label",
        f"mesh.recipe={name}",
        "--label",
        f"mesh.rank={rank.rank}",
        *(["--gpus", "all"] if rank.node.gpus != 0 else []),
        "--ipc",
        "host",
        "--ulimit",
        "memlock=-1",
    ]
    if nodes > 1:
        words += ["--network", "host", *(["--device", "/dev/infiniband"] if fabric else [])]
    elif rank.head:
        words += ["-p", f"{port}:{port}"]
    if recipe.shm_size is not None:
        words += ["--shm-size", recipe.shm_size]
    for word in ("-e", f"{RUN_MARKER}={run}"):
        words.append(word)
    for key, value in rank.environment.items():
        words += ["-e", f"{key}={value}"]
    line = [shlex.join(words), f"-v {at_home(cache)}:{CACHE_IN_CONTAINER}", *model_mount(recipe)]
    for mount in recipe.extra_mounts:
        if mount.repo is None:
            ro = ":ro" if mount.read_only else ""
            line.append(f"-v {at_home(mount_source(config, mount))}:{shlex.quote(mount.container + ro)}")
    if recipe.composed_model is not None:
        line.append(f"-v {composed_folder(run)}:{shlex.quote(recipe.composed_model.mount)}:ro")
    if recipe.mods.commands:
        line.append(f"--entrypoint sh {shlex.quote(image)} {shlex.join(mods_argv(recipe, rank.argv))}")
    else:
        line.append(f"--entrypoint {shlex.quote(rank.argv[0])} {shlex.quote(image)} {shlex.join(rank.argv[1:])}")
    return Step(rank.node.name, "start", " ".join(line))


def socket_name(run: str) -> str:
    return f"mesh-{run}"


def log_path(run: str, rank: int) -> str:
    return f"~/.mesh/{run}/rank-{rank}.log"


def stopped_path(run: str) -> str:
    """Made by the first step of a stop. A start that was under way when its launcher died, and comes late, finds it."""
    return f"~/.mesh/{run}/stopped"


def tmux_start(recipe: Recipe, rank: Rank, *, run: str) -> Step:
    """Start a rank in a tmux server of the run's own. sshd drops what a client sends as environment, so it stands in
    the command; tmux passes it words, which no other shell reads again."""
    env = {**rank.environment, RUN_MARKER: run}
    activate = "" if recipe.venv is None else f". {at_home(recipe.venv.rstrip('/') + '/bin/activate')} && "
    # Its input stays the pane's: where nothing holds the terminal any more, tmux takes the pane for dead.
    # Of the node's own environment these alone: what a profile there exports would be a lever that nobody recorded
    kept = " ".join(f'{name}="${name}"' for name in INHERITED if name not in env)
    words = " ".join([*([kept] if kept else []), *(shlex.quote(f"{key}={value}") for key, value in env.items())])
    argv = " ".join(at_home(word) if word.startswith("~/") else shlex.quote(word) for word in rank.argv)
    body = f"{activate}exec env -i {words} {argv} >{at_home(log_path(run, rank.rank))} 2>&1"
    # A stop may come between the look and the start, or be over by then: who looks again afterwards ends what is late.
    tmux, stopped = f"tmux -L {shlex.quote(socket_name(run))}", at_home(stopped_path(run))
    command = (
        f"mkdir -p {at_home(f'~/.mesh/{run}')} || exit; late() {{ [ -e {stopped} ] && echo the run is stopped >&2; }}; "
        f"late && exit 1; {tmux} -f /dev/null new-session -d -s {SESSION} sh -c {shlex.quote(body)} "
        f"\\; set-option -t {SESSION} remain-on-exit on || exit; late && {{ {tmux} kill-server; exit 1; }}; true"
    )
    return Step(rank.node.name, "start", command)


def inherited_step(node: Node, recipe: Recipe) -> Step:
    """Prints what an engine gets of the node's own environment, its home folder written as ~."""
    activate = "" if recipe.venv is None else f". {at_home(recipe.venv.rstrip('/') + '/bin/activate')} && "
    shown = "; ".join(f'printf "%s\\n" "{name}=${name}"' for name in INHERITED if name not in recipe.env)
    return Step(node.name, "inherited environment", f'{activate}{{ {shown or ":"}; }} | sed "s|$HOME|~|g"')


def program_step(node: Node, recipe: Recipe, argv: Sequence[str]) -> Step:
    """Prints the SHA-256 of the program, and of the names and versions of what is installed beside it: what an image's
    digest is to a container."""
    activate = "" if recipe.venv is None else f". {at_home(recipe.venv.rstrip('/') + '/bin/activate')} && "
    program = at_home(argv[0]) if argv[0].startswith("~/") else shlex.quote(argv[0])
    command = (
        f"{activate}p=$(command -v {program}) || {{ echo {shlex.quote(argv[0] + ': not there')} >&2; exit 1; }}; "
        'p=$(readlink -f "$p"); sha256sum <"$p" | cut -d" " -f1; v=${VIRTUAL_ENV:-$(dirname "$(dirname "$p")")}; '
        'ls -d "$v"/lib/python*/site-packages/*.dist-info 2>/dev/null | sed "s|.*/||" | sort | sha256sum | '
        'cut -d" " -f1'
    )
    return Step(node.name, "program", command)


def placeholder_step(node: Node, mount: Mount, cache: str, inside: str) -> Step:
    """Prints the folder that a `{{name}}` stands for, as the engine sees it: `inside` is where it sees the cache."""
    slug = "models--" + (mount.repo or "").replace("/", "--")
    below = "" if mount.subfolder is None else f"/{shlex.quote(mount.subfolder)}"
    hint = shlex.quote(
        f"{mount.repo}{'/' + mount.subfolder if mount.subfolder else ''}: not in the model cache; "
        f"huggingface-cli download {mount.repo}"
    )
    command = (
        f'c={at_home(cache)}; r="$c/hub/{slug}"; s="$r/snapshots/$(cat "$r/refs/main" 2>/dev/null)"{below}; '
        f'[ -d "$s" ] || {{ echo {hint} >&2; exit 1; }}; echo {shlex.quote(inside)}"${{s#"$c"}}"'
    )
    return Step(node.name, f"placeholder {mount.container}", command)


def record_path(run: str) -> str:
    return f"~/.mesh/{run}/launch.record"


def record_step(node: Node, run: str, data: bytes) -> Step:
    """Put the signed launch record where the run's logs are."""
    text = base64.b64encode(data).decode("ascii")
    folder = at_home(f"~/.mesh/{run}")
    return Step(
        node.name, "launch record", f"mkdir -p {folder} && printf %s {text} | base64 -d >{at_home(record_path(run))}"
    )


def image_step(node: Node, image: str) -> Step:
    """Prints the image's id and its digests; fails where the node does not have it."""
    return Step(
        node.name,
        "image",
        f"docker image inspect --format '{{{{.Id}}}} {{{{json .RepoDigests}}}}' {shlex.quote(image)}",
    )


def pull_step(node: Node, image: str) -> Step:
    inspect = f"docker image inspect {shlex.quote(image)} >/dev/null 2>&1"
    return Step(node.name, "pull", f"{inspect} || docker pull -q {shlex.quote(image)}")


def built_step(node: Node, image: str, checksum: str, *, pull: bool) -> Step:
    """Prints the checksum that the image is labelled with; fails where it is not that of its sources. An image of ours
    is pulled only where its name says from which registry."""
    look = f"docker image inspect --format '{{{{index .Config.Labels \"mesh.checksum\"}}}}' {shlex.quote(image)}"
    shown = shlex.quote(image)
    fetch = f"docker pull -q {shlex.quote(image)} >/dev/null 2>&1; " if pull else ""
    return Step(
        node.name,
        "image content",
        f"c=$({look} 2>/dev/null) || {{ {fetch}c=$({look} 2>/dev/null); }} || {{ echo {shown}: not on this "
        f'node: mesh launch image build, or copy >&2; exit 1; }}; echo "$c"; [ "$c" = {checksum} ] || '
        f'{{ echo {shown}: built from checksum "${{c:-none}}", its folder is {checksum}: '
        "mesh launch image build, or copy >&2; exit 1; }",
    )


def shown_env(environment: Mapping[str, str]) -> str:
    return " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())
