"""The exact commands by which images are looked at, built, copied from node to node and pushed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from mesh.launch.commands import Step, at_home
from mesh.launch.config import Node
from mesh.launch.images import CHECKSUM_LABEL, Context

ALIAS = "mesh-node"
MISSING = 3  # of `look`: docker is there, the image is not


def look_step(node: str, ref: str) -> Step:
    """Prints the image's id and its checksum label; status 3 where the node does not have it."""
    form = f'{{{{.Id}}}} {{{{index .Config.Labels "{CHECKSUM_LABEL}"}}}}'
    return Step(
        node,
        "image",
        "command -v docker >/dev/null || exit 127; docker info >/dev/null || exit 1; "
        f"docker image inspect --format {shlex.quote(form)} {shlex.quote(ref)} 2>/dev/null || exit {MISSING}",
    )


def build_folder(context: Context) -> str:
    return f"~/.mesh/images/{context.checksum}"


def upload_step(node: str, context: Context, digest: str) -> Step:
    """Reads the folder as a tar file of that SHA-256, and unpacks it where it has arrived whole."""
    folder = at_home(build_folder(context))
    return Step(
        node,
        "upload",
        f'd={folder}; rm -rf "$d" "$d.tar" && mkdir -p "$d" && cat >"$d.tar" && '
        f'echo "{digest}  $d.tar" | sha256sum -c - >/dev/null && tar -xf "$d.tar" -C "$d" && rm -f "$d.tar"',
    )


def build_command(context: Context) -> str:
    words = ["docker", "build", "-t", context.ref, "--label", f"{CHECKSUM_LABEL}={context.checksum}"]
    for key, value in context.pins.items():
        words += ["--build-arg", f"{key}={value}"]
    folder = at_home(build_folder(context))
    return f"{shlex.join(words)} {folder} && rm -rf {folder}"


def copy_command(ref: str, user: str, peer: Node, keys: Sequence[str], address: str) -> str:
    """Send an image to another node, which must show one of the keys that are pinned for it, whatever address it is
    reached by. The sender's own settings have no say in whom it trusts."""
    lines = "".join(f"{ALIAS} {key}\n" for key in keys)
    ssh = [
        "ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"HostKeyAlias={ALIAS}",
        "-o", "GlobalKnownHostsFile=/dev/null", "-o", "ConnectTimeout=15",
    ]  # fmt: skip
    return (
        f'k=$(mktemp) && trap \'rm -f "$k"\' EXIT && printf %s {shlex.quote(lines)} >"$k" && '
        f'docker save {shlex.quote(ref)} | {shlex.join(ssh)} -o UserKnownHostsFile="$k" -p {peer.ssh_port} '
        f"{shlex.quote(f'{user}@{address}')} docker load"
    )


def addresses(peer: Node) -> list[str]:
    """Of the fast network first."""
    return list(dict.fromkeys((peer.fabric_ip, peer.ssh_ip)))


def published_step(node: str, target: str) -> Step:
    """Prints `there` where the registry has the tag. A registry that cannot be asked has it not: the push will say."""
    return Step(
        node,
        "registry",
        f"docker manifest inspect {shlex.quote(target)} >/dev/null 2>&1 && echo there || echo absent",
    )


def push_command(ref: str, target: str) -> str:
    """The node's own login is used: no user name and no password of a registry passes through here."""
    return f"docker tag {shlex.quote(ref)} {shlex.quote(target)} && docker push {shlex.quote(target)}"


def digest_step(node: str, target: str) -> Step:
    return Step(
        node, "digest", f"docker image inspect --format '{{{{json .RepoDigests}}}}' {shlex.quote(target)}"
    )  # fmt: skip
