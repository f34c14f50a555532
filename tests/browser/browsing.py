"""A tab of real headless Chromium that notes everything a page asks for and complains of."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, ConsoleMessage, Page, Request

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "pictures"

# The browser's own talk with its makers' hosts, which are none of the page's.
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
PATIENCE_MS = 30_000  # a loaded machine's


@dataclass
class Tab:
    page: Page
    url: str
    devtools: CDPSession
    loads: int = 0
    requests: list[Request] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def go(self, hash_: str = "#/") -> None:
        """Load the page anew, at a view of it, and wait until that is there."""
        # another address each time: where only the hash differs the browser keeps the document, and what it is ready of
        self.loads += 1
        await self.page.goto(f"{self.url}/?{self.loads}{hash_}")
        await self.ready()

    async def ready(self, view: str | None = None) -> None:
        wanted = "#main[data-ready]" if view is None else f"#main[data-ready={view}]"
        await self.page.wait_for_selector(wanted, state="attached")

    async def drop(self, *files: Path) -> None:
        """Drop files on the page, as the desktop would."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            await self.devtools.send("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 300, "data": data})

    async def focused(self) -> str:
        """What the keyboard acts on: its tag, and its text, name or label."""
        told: str = await self.page.evaluate(
            """() => {
                const it = document.activeElement;
                const text = it.getAttribute("aria-label") || it.textContent.trim() || it.name || it.id;
                return `${it.localName} ${text}`.trim();
            }"""
        )
        return told

    async def text(self, selector: str) -> str:
        return await self.page.inner_text(selector)

    async def picture(self, name: str, *, whole: bool = True) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.page.evaluate("scrollTo(0, 0)")
        await self.page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)

    async def overflowing(self) -> list[str]:
        """Elements that reach beyond the page's right edge, or whose text does beyond their own and is not cut."""
        found: list[str] = await self.page.evaluate(
            """() => {
                const width = document.documentElement.clientWidth;
                const named = (it) =>
                    `${it.localName}.${it.getAttribute("class") ?? ""} ${it.textContent.slice(0, 40)}`;
                const bad = document.documentElement.scrollWidth > width ? ["the page scrolls sideways"] : [];
                for (const it of document.querySelectorAll("body *")) {
                    const box = it.getBoundingClientRect();
                    if (!box.width || it.closest(".unseen, .skip, .patterns, thead, .plot, .what, td")) continue;
                    if (box.right > width + 1) bad.push(named(it));
                    else if (it.scrollWidth > it.clientWidth + 1 && it.clientWidth &&
                        getComputedStyle(it).overflowX === "visible") bad.push(named(it));
                }
                return bad;
            }"""
        )
        return found


@asynccontextmanager
async def browsing(
    url: str,
    *,
    size: tuple[int, int] = (1280, 900),
    dark: bool = False,
    expected: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> AsyncIterator[Tab]:
    """Afterwards nothing may have been asked of another host and nothing complained of, but for what has one of
    `expected` in it."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=os.environ["MESH_BROWSER"], args=[*_FLAGS, *flags], timeout=PATIENCE_MS
        )
        context = await browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        tab = Tab(page, url, await context.new_cdp_session(page))
        page.on("request", lambda request: tab.requests.append(request))
        page.on("console", lambda message: _note(tab, message))
        page.on("pageerror", lambda error: tab.complaints.append(f"uncaught: {error}"))
        try:
            yield tab
        finally:
            await browser.close()
    others = {request.url for request in tab.requests if not request.url.startswith((f"{url}/", "blob:"))}
    assert not others, f"asked of others: {others}"
    assert {request.method for request in tab.requests} <= {"GET"}
    complaints = [it for it in tab.complaints if not any(word in it for word in expected)]
    assert not complaints, complaints


def _note(tab: Tab, message: ConsoleMessage) -> None:
    if message.type in ("error", "warning"):
        where: Any = message.location
        tab.complaints.append(f"{message.type}: {message.text} ({where.get('url')})")


async def until(condition: Any) -> None:
    """Wait until an awaited condition holds."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while not await condition():
            await asyncio.sleep(0.02)
