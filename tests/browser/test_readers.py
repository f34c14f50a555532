"""Whoever reads the page: with a keyboard, on a narrow screen, in the dark, and with names that are none."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from mesh.schema.ids import ContentId
from tests.browser.browsing import browsing, until
from tests.browser.houses import entry, forged, row_count, seen, serving


@seen
async def test_power_and_throughput_can_be_read_with_the_keyboard(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url) as tab:
        await tab.go()
        chart = tab.page.locator(".plot").first
        await chart.focus()
        assert "Throughput: last" in str(await chart.get_attribute("aria-label"))
        await tab.page.keyboard.press("End")
        first = await tab.text(".reading >> nth=0")
        assert re.fullmatch(r"\d\d:\d\d UTC: [0-9.]+ [mk]?tok/s", first)
        await tab.page.keyboard.press("Home")
        assert await tab.text(".reading >> nth=0") != first
        await tab.page.keyboard.press("Escape")
        assert await tab.text(".reading >> nth=0") == ""


@seen
async def test_page_is_used_with_the_keyboard_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url) as tab:
        await tab.go("#/")
        press = tab.page.keyboard.press
        await press("Tab")
        assert await tab.focused() == "a Skip to the content"
        assert (await tab.page.locator(".skip").bounding_box() or {})["y"] >= 0
        order = []
        for _ in range(5):
            await press("Tab")
            order.append(await tab.focused())
        assert order == ["a mesh", "a Overview", "a Receipts", "a Check a file", "a Trust"]
        outline = await tab.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        for _ in range(2):
            await press("Shift+Tab")
        await press("Enter")
        await tab.ready("receipts")
        assert await tab.focused() == "h1 Receipts"
        assert await tab.page.title() == "Receipts · mesh"
        assert await tab.page.get_attribute("nav a[aria-current]", "data-view") == "receipts"
        fields = []
        while not fields or not fields[-1].startswith("a Receipt"):
            await press("Tab")
            fields.append(await tab.focused())
        assert [it for it in dict.fromkeys(fields) if it.startswith("button")] == ["button Search", "button Clear"]
        await press("Enter")
        await tab.ready("receipt")
        await until(lambda: tab.page.evaluate("() => document.querySelector('h1')?.textContent === 'Receipt no. 5'"))
        assert (await tab.focused()).startswith("h1")
        unnamed = await tab.page.evaluate(
            """() => [...document.querySelectorAll("a, button, input, select, textarea")].filter((it) =>
                !(it.textContent.trim() || it.getAttribute("aria-label") || it.labels?.length)).length"""
        )
        assert unnamed == 0
        assert await tab.page.locator("[role=status]").count() >= 1


@seen
async def test_hostile_names_are_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url, expected=("400",)) as tab:
        for view in ("#/", "#/receipts"):
            await tab.go(view)
            await tab.page.wait_for_selector(".receipts .name")
            assert await tab.page.locator("img").count() == 0
            assert "⟨U+202E⟩gnp.exe" in str(await tab.page.text_content("main"))
            assert "\u202e" not in str(await tab.page.text_content("main"))
            assert (await tab.page.title()).endswith("· mesh")
            assert await tab.overflowing() == []
        for seq in (3, 4):
            await tab.go(f"#/receipt/{ContentId(entry(gate, seq).receipt_id).text}")
            assert await tab.overflowing() == []
        await tab.go("#/receipts?model=" + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
        assert await row_count(tab) == 0
        await tab.go("#/receipt/%3Cscript%3E%zz")
        assert "is no receipt id and no serve id" in await tab.text("main")
        assert await tab.page.locator("main script").count() == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_narrow_and_dark_screens_hold_everything(tmp_path: Path, dark: bool) -> None:
    async def main() -> None:
        async with serving(tmp_path) as gate, browsing(gate.url, size=(360, 740), dark=dark) as tab:
            shade = "dark" if dark else "light"
            name = ContentId(entry(gate, 4).receipt_id).text
            for view, picture in (
                ("#/", "overview"), ("#/receipts", "list"), (f"#/receipt/{name}", "receipt"), ("#/check", "check"),
                ("#/trust", "trust"),
            ):  # fmt: skip
                await tab.go(view)
                assert await tab.overflowing() == [], view
                await tab.picture(f"narrow-{shade}-{picture}")
            ground = await tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
            bright = sum(int(part) for part in re.findall(r"\d+", ground)[:3]) > 3 * 128
            assert bright is not dark
            await tab.page.set_viewport_size({"width": 1280, "height": 900})
            await tab.go(f"#/receipt/{ContentId(entry(gate, 1).receipt_id).text}")
            await tab.picture(f"{shade}-receipt")
            await tab.go("#/")
            await tab.picture(f"{shade}-overview")

    asyncio.run(main())


@seen
async def test_texts_stand_out_from_their_ground(tmp_path: Path) -> None:
    """WCAG's 4.5 to 1, in both shades, of every text that is there."""
    async with serving(tmp_path) as gate:
        for dark in (False, True):
            async with browsing(gate.url, dark=dark) as tab:
                for view in ("#/", "#/receipts", f"#/receipt/{ContentId(entry(gate, 1).receipt_id).text}", "#/trust"):
                    await tab.go(view)
                    assert await tab.page.evaluate(CONTRAST) == [], (dark, view)
                (tmp_path / "forged.cbor").write_bytes(forged(entry(gate, 1).envelope))
                await tab.go("#/check")
                await tab.page.set_input_files("#files", [tmp_path / "forged.cbor"])
                await tab.page.wait_for_selector(".verdict.wrong")
                assert await tab.page.evaluate(CONTRAST) == [], (dark, "forged")


CONTRAST = """() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const brush = canvas.getContext("2d", { willReadFrequently: true });
    const paint = (...colours) => {
        brush.clearRect(0, 0, 1, 1);
        for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
        return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const bad = [];
    for (const it of document.querySelectorAll("body *")) {
        if (!it.checkVisibility() || it.closest(".unseen, .skip, option")) continue;
        if (![...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
        const grounds = [];
        for (let at = it; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
        const style = getComputedStyle(it);
        const front = light(paint(...grounds, it instanceof SVGElement ? style.fill : style.color));
        const back = light(paint(...grounds));
        const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        const named = `${it.localName}.${it.getAttribute("class")} ${it.textContent.slice(0, 30)}`;
        if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${named}`);
    }
    return bad;
}"""
