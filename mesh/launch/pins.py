"""Pins: the commit behind a model's name with its files, and the digest behind an image's tag, found and written back.

Found in a folder, in the model cache of this machine, at a model hub or at a registry. What needs the network says so.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mesh.errors import LaunchError, NotFound, UsageError
from mesh.identity.files import open_regular
from mesh.launch.image_names import image_tag

HUB = "https://huggingface.co"
MAX_ANSWER_BYTES = 16 << 20
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class ModelPin:
    """`revision` is a commit, None where the model is a folder or file; `files` map names to their hashes."""

    revision: str | None
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Web:
    """How the network is asked. `insecure` are the hosts that may be asked over plain http."""

    timeout_s: float = _TIMEOUT_S
    insecure: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(
        self, url: str, what: str, *, accept: str = "application/json", method: str = "GET", token: str | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body. Raises LaunchError where nobody answers."""
        headers = {"Accept": accept, "User-Agent": "servemesh", **self.headers}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{what}: {url[:80]!r} is no http or https address")
        request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - the scheme was looked at
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310
                body = answer.read(MAX_ANSWER_BYTES + 1)
                status, given = answer.status, dict(answer.headers.items())
        except urllib.error.HTTPError as e:
            with e:
                return e.code, {key.lower(): value for key, value in e.headers.items()}, e.read(4096)
        except (urllib.error.URLError, TimeoutError, OSError) as e:
            reason = getattr(e, "reason", e)
            host = urllib.parse.urlsplit(url).netloc
            raise LaunchError(f"{what}: {host} could not be asked: {reason}; this needs the network") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise LaunchError(f"{what}: an answer over {MAX_ANSWER_BYTES} bytes")
        return status, {key.lower(): value for key, value in given.items()}, body


def folder_pin(path: Path) -> ModelPin:
    """Of a model's folder or file: every byte of every file is read. Raises OSError, ModelFileError."""
    files = (
        {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
        if path.is_dir()
        else {path.name: path}
    )
    return ModelPin(None, {name: "sha256:" + _sha256(file) for name, file in files.items() if not name.startswith(".")})


def _sha256(path: Path) -> str:
    hasher = sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def cached_pin(repo: str, revision: str, cache: Path) -> ModelPin | None:
    """Of a repository in a model cache (`hub/models--org--name`); None where it does not have that revision."""
    root = cache / "hub" / ("models--" + repo.replace("/", "--"))
    commit = revision
    if not _COMMIT.match(revision):
        ref = root / "refs" / revision
        if not ref.is_file():
            return None
        commit = ref.read_text(encoding="ascii", errors="replace").strip()
    folder = root / "snapshots" / commit
    if not _COMMIT.match(commit) or not folder.is_dir():
        return None
    return ModelPin(commit, folder_pin(folder).files)


def hub_pin(repo: str, revision: str, *, hub: str = HUB, web: Web = Web()) -> ModelPin:
    """Of a repository at a hub. A file in large storage has a SHA-256 there, any other git's SHA-1 of its blob. Raises
    NotFound, LaunchError."""
    what = f"model {repo}"
    url = f"{hub}/api/models/{urllib.parse.quote(repo)}/revision/{urllib.parse.quote(revision, safe='')}?blobs=true"
    status, _, body = web.get(url, what)
    if status in (401, 403, 404):
        raise NotFound(f"{what}: the hub has no revision {revision!r} that it shows without a key (status {status})")
    info = _object(body, what) if status == 200 else {}
    commit = info.get("sha")
    if not isinstance(commit, str) or not _COMMIT.match(commit):
        raise LaunchError(f"{what}: the hub answered status {status} without a commit")
    files = {}
    for entry in info.get("siblings", []):
        name, large, blob = entry.get("rfilename"), entry.get("lfs") or {}, entry.get("blobId")
        if isinstance(large.get("sha256"), str):
            files[name] = "sha256:" + large["sha256"]
        elif isinstance(blob, str):
            files[name] = "git-sha1:" + blob
    return ModelPin(commit, files)


def image_digest(image: str, *, web: Web = Web()) -> str:
    """The digest that a registry has behind an image's tag: of the index, where the image is for several platforms.
    Raises NotFound where the tag is gone, LaunchError where the registry cannot be asked or wants a login."""
    what = f"image {image}"
    if (said := image.partition("@")[2]) != "":
        if not _DIGEST.match(said):
            raise UsageError(f"{what}: {said!r} is no sha256 digest")
        return said
    host, path = registry_of(image)
    tag = image_tag(image) or "latest"
    scheme = "http" if host.rpartition(":")[0] in web.insecure or host in web.insecure else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{tag}"
    accept = ", ".join(_MANIFESTS)
    status, headers, body = web.get(url, what, accept=accept, method="HEAD")
    if status == 401:
        token = _anonymous(headers.get("www-authenticate", ""), what, web)
        status, headers, body = web.get(url, what, accept=accept, method="HEAD", token=token)
    if status == 404:
        raise NotFound(f"{what}: image gone: {host} has no tag {tag}")
    if status in (401, 403):
        raise LaunchError(f"{what}: {host} wants a login (status {status}); name the digest yourself")
    digest = headers.get("docker-content-digest", "")
    if status == 200 and not digest:
        _, _, body = web.get(url, what, accept=accept)
        digest = "sha256:" + sha256(body).hexdigest()
    if status != 200 or not _DIGEST.match(digest):
        raise LaunchError(f"{what}: {host} answered status {status} without a digest")
    return digest


def image_there(image: str, digest: str, *, web: Web = Web()) -> None:
    """Raises NotFound naming the digest where the registry no longer has it."""
    host, path = registry_of(image)
    scheme = "http" if host.rpartition(":")[0] in web.insecure else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{digest}"
    status, headers, _ = web.get(url, f"image {image}", accept=", ".join(_MANIFESTS), method="HEAD")
    if status == 401:
        token = _anonymous(headers.get("www-authenticate", ""), f"image {image}", web)
        status, _, _ = web.get(url, f"image {image}", accept=", ".join(_MANIFESTS), method="HEAD", token=token)
    if status == 404:
        raise NotFound(f"image {image}: image gone: {digest}, {host} has it no more")


def tag_words(image: str, digest: str, *, web: Web = Web()) -> str | None:
    """What the registry has behind the tag now, where that is another image than the one that is run; None where it is
    the same, or there is no tag. Raises LaunchError where the registry cannot be asked."""
    tagged = image.partition("@")[0]
    if image_tag(tagged) is None:
        return None
    try:
        now = image_digest(tagged, web=web)
    except NotFound as e:
        return f"{e}; what runs is {digest}"
    return None if now == digest else f"{tagged} is {now} now; what runs is {digest}"


def registry_of(image: str) -> tuple[str, str]:
    """Its host, and the repository there. A name without a host is of the public registry."""
    name = image.partition("@")[0]
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, path = first, rest
    else:
        host, path = "registry-1.docker.io", name if slash else f"library/{name}"
    return ("registry-1.docker.io" if host == "docker.io" else host), path.rpartition("/")[0] + (
        "/" if "/" in path else ""
    ) + path.rpartition("/")[2].partition(":")[0]


def _anonymous(challenge: str, what: str, web: Web) -> str:
    """The token that a registry gives to whoever asks."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if "realm" not in fields:
        raise LaunchError(f"{what}: the registry wants a login of a kind that is not known: {challenge[:80]!r}")
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    status, _, body = web.get(f"{fields['realm']}?{query}", what)
    answer = _object(body, what) if status == 200 else {}
    token = answer.get("token") or answer.get("access_token")
    if not isinstance(token, str):
        raise LaunchError(f"{what}: the registry gives no token without a login (status {status})")
    return token


def _object(body: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise LaunchError(f"{what}: answered with no JSON object")
    return value


def write_pins(text: str, *, model: ModelPin | None, image: str | None) -> str:
    """The recipe's text with its [pins] table made anew, every comment elsewhere kept. Raises UsageError where the
    extra that edits TOML is missing."""
    try:
        import tomlkit
    except ImportError:
        raise UsageError("pins are written with the extra: pip install 'servemesh[launch]'") from None
    document = tomlkit.parse(text)
    table = document.get("pins")
    if table is None:
        table = tomlkit.table()
        document["pins"] = table
    if image is not None:
        table["image"] = image
    if model is not None:
        if model.revision is not None:
            table["model_revision"] = model.revision
        files = tomlkit.table()
        for name in sorted(model.files):
            files[name] = model.files[name]
        if "model_files" in table:
            del table["model_files"]
        if model.files:
            table["model_files"] = files
    return tomlkit.dumps(document)
