"""Pins, from a folder, a cache, a hub and a registry that answer as theirs do. RC-02: before and after a push."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mesh.errors import LaunchError, NotFound, UsageError
from mesh.launch.pins import (
    ModelPin,
    Web,
    cached_pin,
    folder_pin,
    hub_pin,
    image_digest,
    image_there,
    registry_of,
    write_pins,
)
from tests.launch.recipes import COMMIT, DIGEST, PINNED, recipe_file

OTHER = "sha256:" + "b" * 64
Answers = dict[str, tuple[int, dict[str, str], bytes]]


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """A real server on a free port; its host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.get(self.path.partition("?")[0], (404, {}, b"{}"))
            if status == 401 and self.headers.get("Authorization") == "Bearer anonymous":
                status, headers, body = answers[self.path + "#token"]
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value.replace("HOST", self.headers["Host"]))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def manifest(digest: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Docker-Content-Digest": digest}, b""


def test_rc_02_a_tag_that_is_pushed_again_has_another_digest_and_the_pinned_one_stays() -> None:
    answers: Answers = {"/v2/img/manifests/glm53-flash": manifest(DIGEST)}
    with answering(answers) as host:
        image = f"{host}/img:glm53-flash"
        before = image_digest(image)
        answers["/v2/img/manifests/glm53-flash"] = manifest(OTHER)
        assert (before, image_digest(image)) == (DIGEST, OTHER)
        assert image_digest(f"{image}@{DIGEST}") == DIGEST


def test_rc_02_an_image_that_is_gone_says_which() -> None:
    with answering({}) as host:
        with pytest.raises(NotFound, match=r"image gone: .* has no tag nightly-01d4"):
            image_digest(f"{host}/img:nightly-01d4")
        with pytest.raises(NotFound, match=f"image gone: {DIGEST}"):
            image_there(f"{host}/img:x", DIGEST)


def test_registry_that_gives_tokens_to_anybody_is_asked_for_one() -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://HOST/token",service="s",scope="repository:a/b:pull"'}
    answers: Answers = {
        "/v2/a/b/manifests/v1": (401, challenge, b""),
        "/v2/a/b/manifests/v1#token": manifest(DIGEST),
        "/token": (200, {}, b'{"token": "anonymous"}'),
    }
    with answering(answers) as host:
        assert image_digest(f"{host}/a/b:v1") == DIGEST


@pytest.mark.parametrize(
    ("image", "where"),
    [
        ("img", ("registry-1.docker.io", "library/img")),
        ("org/img:tag", ("registry-1.docker.io", "org/img")),
        ("docker.io/org/img:tag", ("registry-1.docker.io", "org/img")),
        ("ghcr.io/a/b/c:t", ("ghcr.io", "a/b/c")),
        ("localhost:5000/img:t", ("localhost:5000", "img")),
    ],
)
def test_registry_of_an_image(image: str, where: tuple[str, str]) -> None:
    assert registry_of(image) == where


def test_hub_answers_with_a_commit_and_its_files() -> None:
    body = json.dumps(
        {
            "sha": COMMIT,
            "siblings": [
                {"rfilename": "config.json", "blobId": "3" * 40},
                {"rfilename": "model.safetensors", "blobId": "4" * 40, "lfs": {"sha256": "5" * 64}},
            ],
        }
    ).encode()
    with answering({"/api/models/org/model/revision/main": (200, {}, body)}) as host:
        pin = hub_pin("org/model", "main", hub=f"http://{host}")
        assert pin.revision == COMMIT
        assert pin.files == {"config.json": "git-sha1:" + "3" * 40, "model.safetensors": "sha256:" + "5" * 64}
        with pytest.raises(NotFound, match="no revision 'v9'"):
            hub_pin("org/model", "v9", hub=f"http://{host}")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"sha": "short"}'])
def test_hub_that_answers_with_nothing_of_use_is_an_error(body: bytes) -> None:
    with (
        answering({"/api/models/org/model/revision/main": (200, {}, body)}) as host,
        pytest.raises(LaunchError, match="model org/model"),
    ):
        hub_pin("org/model", "main", hub=f"http://{host}")


def test_without_a_network_the_error_says_so() -> None:
    with pytest.raises(LaunchError, match=r"could not be asked: .*; this needs the network"):
        hub_pin("org/model", "main", hub="http://127.0.0.1:1", web=Web(timeout_s=5))
    with pytest.raises(UsageError, match="no http or https address"):
        hub_pin("org/model", "main", hub="file:///etc")


def test_folder_is_pinned_by_every_byte(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "sub" / "x").write_bytes(b"x")
    digest = "sha256:" + sha256(b"{}").hexdigest()
    assert folder_pin(tmp_path).files == {"config.json": digest, "sub/x": "sha256:" + sha256(b"x").hexdigest()}
    assert folder_pin(tmp_path / "config.json") == ModelPin(None, {"config.json": digest})


def test_cache_resolves_main_to_its_commit(tmp_path: Path) -> None:
    root = tmp_path / "hub" / "models--org--model"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    (root / "snapshots" / COMMIT).mkdir(parents=True)
    (root / "snapshots" / COMMIT / "config.json").write_bytes(b"{}")
    pin = cached_pin("org/model", "main", tmp_path)
    assert pin is not None
    assert pin.revision == COMMIT
    assert list(pin.files) == ["config.json"]
    assert cached_pin("org/model", "other", tmp_path) is None
    assert cached_pin("org/none", "main", tmp_path) is None


def test_pins_are_written_beside_comments_that_stay_and_again_over_themselves() -> None:
    text = "# why this model\n" + PINNED + "\n[env]\nA = '1' # one\n"
    once = write_pins(text, model=ModelPin(COMMIT, {"a b.json": "sha256:" + "c" * 64}), image=DIGEST)
    assert once.startswith(text)
    recipe = recipe_file(once).recipe
    assert (recipe.pins.image, recipe.pins.model_revision) == (DIGEST, COMMIT)
    again = write_pins(once, model=ModelPin(COMMIT, {"b": "sha256:" + "d" * 64}), image=None)
    assert recipe_file(again).recipe.pins.model_files == {"b": "sha256:" + "d" * 64}
    assert recipe_file(again).recipe.pins.image == DIGEST
