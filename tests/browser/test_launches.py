"""The page of launches in real headless Chromium: live states, by keyboard, light and dark, wide and narrow."""

from __future__ import annotations

import re
from pathlib import Path

from blake3 import blake3

from mesh.gateway.launch_page import LaunchPage
from tests.browser.browsing import Tab, browsing, until
from tests.browser.houses import SECRET, seen
from tests.gateway.launching import MARKUP, closed, filled, ledger, looked
from tests.gateway.launching import seen as found
from tests.gateway.serving import house


async def at_page(tab: Tab, ready: str = "launches") -> None:
    await tab.page.goto(f"{tab.url}/launches")
    await tab.page.wait_for_selector(f"#launches[data-ready={ready}]", state="attached")


async def badges(tab: Tab, run: str) -> str:
    card = tab.page.locator(".run", has=tab.page.locator("h3", has_text=re.compile(f"^{run}$")))
    return " ".join((await card.first.locator(".marks").inner_text()).split())


@seen
async def test_states_are_shown_and_follow_what_is_found(tmp_path: Path) -> None:
    folder = filled(tmp_path / "launches")
    async with house(tmp_path / "state", launches=folder) as gate, browsing(gate.url) as tab:
        await tab.go()
        await tab.page.click("nav >> text=Launches")
        await tab.page.wait_for_selector("#launches[data-ready=launches]", state="attached")
        assert await tab.page.inner_text("h1") == "Launches"
        assert "1 of 1 cluster up, 1 of 3 open runs ready" in await tab.text("main")
        assert await badges(tab, "qwen") == "✓ up ✓ ready"
        assert await badges(tab, "gone") == "✗ stale ! not ready"
        assert await badges(tab, "odd") == "? inconclusive"
        assert MARKUP in await tab.text("main")
        assert await tab.page.query_selector("main img") is None
        assert await tab.overflowing() == []
        await tab.picture("launches")
        # what somebody reads stays open, and the keyboard where it was, when another thing changes
        await tab.page.click(".run >> text=More of it >> nth=0")
        focus = await tab.focused()
        looked(folder, found("r-up"), up=False)
        await until(lambda: tab.page.evaluate("() => document.body.innerText.includes('no route to host')"))
        assert await tab.page.locator("details[open]").count() == 1
        assert await tab.focused() == focus
        assert "0 of 1 cluster up" in await tab.text("main")
        ledger(folder, "qwen", closed("r-up"))
        await until(
            lambda: tab.page.evaluate("() => !document.body.innerText.includes('Qwen/Qwen3-8B on a, b, for 2 h')")
        )
        looked(folder, ago_s=20_000)
        await until(lambda: tab.page.evaluate("() => document.body.innerText.includes('Nobody has looked')"))
        assert await badges(tab, "gone") == "? open"


@seen
async def test_page_can_be_used_by_keyboard_and_is_dark_where_the_system_is(tmp_path: Path) -> None:
    page = LaunchPage(filled(tmp_path))
    url = f"http://127.0.0.1:{await page.start('127.0.0.1', 0)}"
    try:
        async with browsing(url, size=(390, 844), dark=True) as tab:
            await at_page(tab)
            await tab.page.keyboard.press("Tab")
            assert await tab.focused() == "a Skip to the content"
            for _ in range(2):
                await tab.page.keyboard.press("Tab")
            assert await tab.focused() == "input which"
            await tab.page.keyboard.press("ArrowRight")
            await until(lambda: tab.page.evaluate("() => document.querySelectorAll('.run.closed').length === 1"))
            assert await tab.focused() == "input which"
            assert "stopped, and seen to be gone" in await tab.text("main")
            await tab.page.keyboard.press("Tab")
            assert await tab.focused() == "summary More of it"
            await tab.page.keyboard.press("Enter")
            assert await tab.page.locator("details[open]").count() == 1
            assert await tab.overflowing() == []
            await tab.picture("launches-narrow-dark")
        async with browsing(url, dark=True) as tab:
            await at_page(tab)
            await tab.picture("launches-dark")
    finally:
        await page.stop()


@seen
async def test_what_is_missing_damaged_or_locked_is_said(tmp_path: Path) -> None:
    folder = filled(tmp_path / "launches")
    (folder / "live.json").write_text("{")
    digest = "b3:" + blake3(SECRET.encode()).hexdigest()
    locked = house(tmp_path / "keys", launches=folder, keys=[digest])
    async with locked as gate, browsing(gate.url, expected=("401",)) as tab:
        await at_page(tab, "key")
        await tab.page.fill("#key", SECRET)
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_selector("#launches[data-ready=launches]", state="attached")
        assert "live.json: damaged: not valid json" in await tab.text("#notices")
        assert await badges(tab, "qwen") == "? open"
    async with house(tmp_path / "none") as gate, browsing(gate.url) as tab:
        await at_page(tab)
        assert "This gateway shows no launches" in await tab.text("main")
