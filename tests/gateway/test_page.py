"""The web page's files: who gets them, what a browser is told of them, and what turns them off."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from blake3 import blake3

from mesh.gateway.page import Page
from tests.gateway.serving import house

KEY = "sk-a-secret-of-this-test"
DIGEST = "b3:" + blake3(KEY.encode()).hexdigest()
WEB = Path(__file__).resolve().parents[2] / "web"


def test_page_and_its_modules_are_served_with_their_types_and_a_policy(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            kinds = {"": "html", ".html": "html", ".js": "javascript", ".css": "css", ".svg": "svg+xml"}
            paths = Page.installed().paths
            assert {"/", "/blueprint", "/web/index.js", "/web/page/main.js", "/web/page/style.css"} <= paths
            for path in paths:
                reply = await gate.get(path)
                assert (reply.status, reply.headers["X-Content-Type-Options"]) == (200, "nosniff")
                kind, charset = reply.headers["Content-Type"].split("; ")
                assert kind.endswith(f"/{kinds[Path(path).suffix]}")
                assert charset == "charset=utf-8"
                policy = reply.headers["Content-Security-Policy"].split("; ")
                assert {f"{what}-src 'self'" for what in ("script", "style", "connect")} <= {*policy}
                assert policy[0] == "default-src 'none'"
                assert "unsafe" not in reply.headers["Content-Security-Policy"]
                places = {"/": "page/index.html", "/blueprint": "page/circuit.html", "/launches": "page/launches.html"}
                name = places.get(path, path.removeprefix("/web/"))
                assert reply.body == (WEB / name).read_bytes()

    asyncio.run(main())


def test_page_holds_no_script_style_or_handler_of_its_own_and_names_no_other_host() -> None:
    for start in ((WEB / "page" / name).read_text() for name in ("index.html", "circuit.html", "launches.html")):
        assert re.findall(r"<script[^>]*>(.*?)</script>", start, re.DOTALL) == [""]
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", start)
    for path in [*WEB.glob("*.js"), *(WEB / "page").iterdir()]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[^:]//[a-z0-9-]+\.[a-z]", text), path
        assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|\beval\(|new Function", text), path


def test_browser_keeps_a_file_until_it_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            first = await gate.get("/")
            assert first.headers["Cache-Control"] == "no-cache"
            tag = first.headers["ETag"]
            for given in (tag, f'"other", {tag}', f"W/{tag}", "*"):
                async with gate.http.get("/", headers={"If-None-Match": given}) as response:
                    assert (response.status, response.headers["ETag"], await response.read()) == (304, tag, b"")
                    assert "Content-Security-Policy" in response.headers
            for given in ('"other"', "nonsense", '"'):
                async with gate.http.get("/", headers={"If-None-Match": given}) as response:
                    assert (response.status, await response.read()) == (200, first.body)
            async with gate.http.head("/web/index.js") as response:
                size = (WEB / "index.js").stat().st_size
                assert (response.status, response.headers["Content-Length"]) == (200, str(size))
                assert response.headers["Content-Type"].startswith("text/javascript")
            async with gate.http.post("/") as response:
                assert response.status == 405

    asyncio.run(main())


def test_nothing_beside_the_page_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for path in (
                "/web/", "/web/client.mjs", "/web/README.md", "/web/test/support.mjs", "/web/page", "/WEB/index.js",
                "/web/page/../../SPEC.md", "/web/%2e%2e/pyproject.toml", "/web/page/index.html", "/web//index.js",
            ):  # fmt: skip
                assert (await gate.get(path)).code == (404, "unknown_route")

    asyncio.run(main())


def test_page_needs_no_key_and_what_it_shows_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST]) as gate:
            assert (await gate.get("/")).status == 200
            for path in ("/mesh/v1/receipts", "/mesh/v1/summary", "/mesh/v1/live", "/web/none.js"):
                assert (await gate.get(path)).code == (401, "missing_api_key")
                assert (await gate.get(path, Authorization=f"Bearer {KEY}")).status != 401

    asyncio.run(main())


def test_page_can_be_turned_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, page=False) as gate:
            for path in ("/", "/web/index.js"):
                assert (await gate.get(path)).code == (404, "unknown_route")
            assert (await gate.get("/mesh/v1/receipts")).status == 200

    asyncio.run(main())


def test_installation_without_the_page_says_so_and_serves_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "index.js").write_text("export {};")
    assert Page(tmp_path).paths == frozenset()
    assert "not part of this installation" in caplog.text
