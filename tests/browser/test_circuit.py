"""Circuits in real headless Chromium: one that a gateway serves under, and one of a thousand layers in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mesh.blueprint.drawing import drawing
from mesh.blueprint.verification import Blueprint
from mesh.cli.circuit_page import page
from mesh.engine.reference import ReferenceEngine
from tests.blueprint.bodies import verified
from tests.blueprint.circuits import deep_body
from tests.browser.browsing import Tab, browsing, until
from tests.browser.houses import seen
from tests.gateway.serving import house

LAYERS = 1000


async def drawn(tab: Tab) -> int:
    """How many whole pictures there were so far."""
    return int(await tab.page.get_attribute(".circuit", "data-drawn") or 0)


async def pixels(tab: Tab) -> str:
    """The picture that is on the canvas now."""
    told: str = await tab.page.evaluate("() => document.querySelector('canvas').toDataURL()")
    return told


async def after(tab: Tab, act: Any) -> None:
    """Until a whole picture was made after `act`."""
    before = await drawn(tab)
    await act

    async def more() -> bool:
        return await drawn(tab) > before

    await until(more)


async def check_it_can_be_used(tab: Tab, name: str, layers: int) -> None:
    """Turned, coloured, filtered, searched, and asked for a node, by mouse and by keyboard."""
    page = tab.page
    await page.wait_for_selector(".circuit[data-drawn]")
    about = await page.get_attribute("canvas", "aria-label") or ""
    assert f"{layers} layers" in about
    whole = re.search(r"(\d+) nodes", about)
    assert whole is not None
    await tab.picture(f"circuit-{name}", whole=False)
    straight = await pixels(tab)
    box = await page.locator("canvas").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    await page.mouse.move(x, y)
    await page.mouse.down()
    await page.mouse.move(x + 120, y + 40, steps=4)
    await after(tab, page.mouse.up())
    turned = await pixels(tab)
    assert turned != straight
    for way in ("format", "family"):
        await after(tab, page.check(f"input[value={way}]"))
        await tab.picture(f"circuit-{name}-{way}", whole=False)
    assert await pixels(tab) != turned
    shown = page.locator(".circuit")
    assert await shown.get_attribute("data-shown") == whole[1]
    await page.check("input[value=kind]")
    await after(tab, page.get_by_label("quantize").uncheck())
    left = int(await shown.get_attribute("data-shown") or 0)
    assert 0 < left < int(whole[1])
    await after(tab, page.fill("#find", "layer 0 "))
    assert 0 < int(await shown.get_attribute("data-shown") or 0) < left
    await page.focus("canvas")
    await after(tab, page.keyboard.press("n"))
    panel = page.locator(".node")
    assert "kernel" in await panel.inner_text()
    assert "layer 0" in await panel.inner_text()
    await after(tab, panel.locator("button").first.click())


@seen
async def test_circuit_of_what_is_served_is_drawn_under_the_gateways_policy(tmp_path: Path) -> None:
    blueprint = verified(deep_body(30))

    class Governed(ReferenceEngine):
        blueprint_id = blueprint.id

    async with house(tmp_path / "state", Governed("m"), blueprints=[blueprint]) as gate, browsing(gate.url) as tab:
        await tab.go()
        await tab.page.click("text=Blueprints")
        await check_it_can_be_used(tab, "served", 30)
        assert "signed by a signer" in await tab.text("aside")
        await tab.page.set_viewport_size({"width": 390, "height": 800})
        await tab.picture("circuit-narrow", whole=False)


@seen
async def test_circuit_of_a_thousand_layers_in_one_file_stays_usable(tmp_path: Path) -> None:
    made = deep_body(LAYERS)
    text = page(drawing(Blueprint(bytes(32), made, ()), "a preview: nobody has signed it"))
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    (tmp_path / "circuit.html").write_text(text)
    async with browsing(f"file://{tmp_path}", dark=True) as tab:
        await tab.page.goto(f"file://{tmp_path}/circuit.html")
        await check_it_can_be_used(tab, "thousand", LAYERS)
