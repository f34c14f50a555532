"""Images made on a node, copied to others, pushed: skipped where the content is there, checked afterwards."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from mesh.errors import LaunchError
from mesh.launch.commands import Step
from mesh.launch.config import Node
from mesh.launch.image_commands import (
    MISSING,
    addresses,
    build_command,
    copy_command,
    digest_step,
    look_step,
    published_step,
    push_command,
    upload_step,
)
from mesh.launch.images import VERSION_CHARS, Context, pushed_ref
from mesh.launch.jobs import JOB_S, run_job, start_step
from mesh.launch.ssh import Host, Login, pinned_keys

Note = Callable[[str], None]
UPLOAD_S = 3600.0
PUBLISHED_FILE = "published.json"


@dataclass(frozen=True, slots=True)
class Image:
    """Of one node: `id` is docker's, `checksum` the label of what it was built from, "" where it has none."""

    id: str
    checksum: str

    @property
    def version(self) -> str:
        return (self.checksum or self.id.removeprefix("sha256:"))[:VERSION_CHARS]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done, or why nothing was."""

    node: str
    done: bool
    why: str
    image: Image

    def to_map(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "done": self.done,
            "why": self.why,
            "id": self.image.id,
            "checksum": self.image.checksum,
        }


async def look(host: Host, ref: str) -> Image | None:
    """None where the node does not have it. Raises LaunchError where docker cannot be asked, NodeUnreachable."""
    done = await host.run(look_step(host.node.name, ref).command)
    if done.status == MISSING:
        return None
    words = done.out.split()
    if done.status != 0 or not words:
        raise LaunchError(f"node {host.node.name}: docker could not be asked for {ref}: {done.last}")
    checksum = words[1] if len(words) > 1 and words[1] != "<no" else ""
    return Image(words[0], checksum)


async def build(
    host: Host, context: Context, *, job: str, note: Note, force: bool = False, within_s: float = JOB_S
) -> Outcome:
    """Build it, unless an image of this very content has its name already. Raises LaunchError, NodeUnreachable."""
    node = host.node.name
    there = await look(host, context.ref)
    if there is not None and there.checksum == context.checksum and not force:
        return Outcome(node, False, f"{context.ref} is of this content already", there)
    data = context.tar()
    note(f"{node}: {len(data)} bytes of {context.folder} for {context.ref}, checksum {context.checksum}")
    sent = await host.feed(
        upload_step(node, context, sha256(data).hexdigest()).command, data, timeout_s=UPLOAD_S
    )  # fmt: skip
    if sent.status != 0:
        raise LaunchError(f"node {node}: upload of {context.folder}: {sent.last}")
    ended = await run_job(host, "build", job, build_command(context), note=note, within_s=within_s)
    if ended.fault is not None:
        raise LaunchError(f"node {node}: build of {context.ref}: {ended.fault}")
    made = await look(host, context.ref)
    if made is None or made.checksum != context.checksum:
        raise LaunchError(
            f"node {node}: {context.ref} is not there with the checksum {context.checksum} after its build"
        )
    return Outcome(node, True, f"built {context.ref}", made)


async def copy(
    source: Host, peer: Host, ref: str, login: Login, *, job: str, note: Note, within_s: float = JOB_S
) -> Outcome:
    """From node to node, unless it is there. Raises LaunchError where the peer has another image under that name
    afterwards, or none, HostKeyError where no key of the peer is pinned."""
    image = await look(source, ref)
    if image is None:
        raise LaunchError(f"node {source.node.name}: {ref} is not there, so it cannot be copied from it")
    name = peer.node.name
    if (there := await look(peer, ref)) is not None and there.id == image.id:
        return Outcome(name, False, f"{ref} is there already", there)
    keys = pinned_keys(peer.node, login.known_hosts)
    faults = []
    for number, address in enumerate(addresses(peer.node)):
        command = copy_command(ref, login.user, peer.node, keys, address)
        ended = await run_job(
            source, f"copy to {name}", f"{job}-{name}-{number}", command, note=note, within_s=within_s
        )
        made = await look(peer, ref)
        if made is not None and made.id == image.id:
            return Outcome(name, True, f"copied by {address}", made)
        fault = ended.fault or f"{name} has {'no' if made is None else 'another'} image of that name afterwards"
        faults.append(f"by {address}: {fault}")
        note(f"{source.node.name}: copy of {ref} to {name} {faults[-1]}")
    raise LaunchError(f"node {name}: {ref} could not be copied from {source.node.name}: " + "; ".join(faults))


async def push(
    host: Host, ref: str, base: str, ledger: Published, *, job: str, note: Note, now_ns: int, force: bool = False,
    within_s: float = JOB_S,
) -> tuple[Outcome, str, str | None]:  # fmt: skip
    """Push it under the tag of its content. The outcome, the name at the registry, and the digest where it is known.
    Raises LaunchError where that tag was another image before: a tag of a content never moves."""
    node = host.node.name
    image = await look(host, ref)
    if image is None:
        raise LaunchError(f"node {node}: {ref} is not there")
    target = pushed_ref(base, ref, image.version)
    known = ledger.read().get(target)
    if known is not None and not force:
        if known.get("id") == image.id:
            return Outcome(node, False, "published already", image), target, known.get("digest")
        raise LaunchError(
            f"{target} was published as image {known.get('id')}, {node} has {image.id} of the same content: --force "
            "moves the tag"
        )
    if known is None and not force and (await host.run(published_step(node, target).command)).out.strip() == "there":
        return Outcome(node, False, "the registry has it already, published by somebody else", image), target, None
    ended = await run_job(host, "push", job, push_command(ref, target), note=note, within_s=within_s)
    if ended.fault is not None:
        login = any(word in ended.log.lower() for word in ("denied", "unauthorized", "authentication required"))
        hint = f"; log the node in once: ssh {node} docker login {target.partition('/')[0]}" if login else ""
        raise LaunchError(f"node {node}: push of {target}: {ended.fault}{hint}")
    digest = _digest((await host.run(digest_step(node, target).command)).out, target)
    ledger.add(target, {"id": image.id, "checksum": image.checksum, "digest": digest, "at_ns": now_ns, "node": node})
    return Outcome(node, True, f"pushed {target}", image), target, digest


def _digest(printed: str, target: str) -> str | None:
    try:
        digests = json.loads(printed)
    except ValueError:
        return None
    name = target.rpartition(":")[0] + "@"
    return next((one.removeprefix(name) for one in digests or [] if str(one).startswith(name)), None)


@dataclass(frozen=True, slots=True)
class Published:
    """What was pushed from here: the guard against pushing one content twice."""

    path: Path

    def read(self) -> dict[str, dict[str, Any]]:
        """Raises LaunchError for a file that is no such ledger: without it the guard would be blind."""
        try:
            known = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as e:
            raise LaunchError(f"{self.path}: no ledger of what was published: {e}") from None
        if not isinstance(known, dict) or any(not isinstance(one, dict) for one in known.values()):
            raise LaunchError(f"{self.path}: no ledger of what was published")
        return known

    def add(self, target: str, entry: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = {key: value for key, value in entry.items() if value not in (None, "")}
            text = json.dumps({**self.read(), target: kept}, indent=1, sort_keys=True) + "\n"
            part = self.path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            os.replace(part, self.path)


def build_steps(node: str, context: Context) -> list[Step]:
    """What a build runs, on paper."""
    digest = sha256(context.tar()).hexdigest()
    return [
        look_step(node, context.ref),
        upload_step(node, context, digest),
        start_step(node, "build", "DRY-RUN", build_command(context)),
        look_step(node, context.ref),
    ]


def copy_steps(node: str, peer: Node, ref: str, login: Login) -> list[Step]:
    """What a copy runs, on paper; a second address is only tried where the first fails."""
    keys = pinned_keys(peer, login.known_hosts)
    jobs = [
        start_step(node, f"copy to {peer.name} by {one}", "DRY-RUN", copy_command(ref, login.user, peer, keys, one))
        for one in addresses(peer)
    ]
    return [look_step(node, ref), look_step(peer.name, ref), *jobs, look_step(peer.name, ref)]


def push_steps(node: str, ref: str, target: str) -> list[Step]:
    return [
        look_step(node, ref),
        published_step(node, target),
        start_step(node, "push", "DRY-RUN", push_command(ref, target)),
        digest_step(node, target),
    ]
