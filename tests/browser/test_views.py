"""What the page shows of a gateway, in real headless Chromium, and how it is found."""

from __future__ import annotations

import re
from pathlib import Path

from blake3 import blake3

from mesh.engine.reference import ReferenceEngine
from mesh.schema.ids import ContentId, serve_id_text
from tests.browser.browsing import browsing, until
from tests.browser.houses import MODEL, SECRET, STEWARD, WEIGHTS, entry, row_count, rows, seen, serving
from tests.gateway.serving import ask, house


@seen
async def test_overview_shows_what_is_served_and_what_it_costs(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url) as tab:
        await tab.go()
        await until(lambda: tab.page.evaluate("() => document.querySelectorAll('.plot .line').length >= 3"))
        models = await tab.page.eval_on_selector_all(".bars .what", "all => all.map((it) => it.textContent)")
        assert MODEL in models
        assert "loopback" in models
        main = await tab.text("main")
        assert "3 serves" in main
        assert "no figure" in main
        assert "modelled" in main
        tiles = await tab.text(".tiles")
        assert "2 meters, modelled: an estimate" in tiles
        assert re.search(r"Power now\s+1[12]", tiles)
        assert await tab.page.inner_text("h1") == "Overview"
        # what was sealed since comes by itself, and nothing that is there is taken away for it
        await tab.page.focus(".row-link")
        await gate.post(ask(model=MODEL))
        await until(lambda: tab.page.evaluate("() => document.querySelector('.row-link').textContent === '6'"))
        assert await tab.focused() == "a Receipt 5"
        assert await tab.overflowing() == []
        await tab.picture("overview")
        await tab.page.check("input[value='86400']")
        await until(lambda: tab.page.evaluate("() => document.querySelector('.tiles').innerText.includes('last 24 h')"))


@seen
async def test_search_finds_by_id_model_caller_finish_and_time(tmp_path: Path) -> None:
    # the browser itself notes what is refused
    async with serving(tmp_path) as gate, browsing(gate.url, expected=("400",)) as tab:
        await tab.go("#/receipts")
        two = entry(gate, 2)

        async def search(count: int, **fields: str) -> list[str]:
            await tab.page.click("text=Clear")
            await until(lambda: tab.page.evaluate(CLEARED))
            for name, value in fields.items():
                if name in ("finish", "basis"):
                    await tab.page.select_option(f"select[name={name}]", value)
                else:
                    await tab.page.fill(f"input[name={name}]", value)
            await tab.page.click("button.primary")
            await until(lambda: tab.page.evaluate("(n) => document.querySelectorAll('.row-link').length === n", count))
            return [line["No."] for line in await rows(tab)]

        assert await search(1, id=ContentId(two.receipt_id).text) == ["2"]
        assert await search(1, id=ContentId(two.receipt_id).text[:14] + "…") == ["2"]
        assert await search(1, id=serve_id_text(two.serve_id)) == ["2"]
        assert await search(3, model="TINY") == ["2", "1", "0"]
        assert await search(1, model="<img") == ["3"]
        assert await search(6, caller="loop") == ["5", "4", "3", "2", "1", "0"]
        assert await search(1, finish="engine-error") == ["5"]
        assert await search(4, basis="modelled") == ["3", "2", "1", "0"]
        assert await search(0, until="2020-01-01T00:00") == []
        assert await search(6, **{"from": "2020-01-01T00:00:00"})
        assert "6 receipts found among 6" in await tab.text("main")
        await search(1, finish="engine-error")
        assert "finish=engine-error" in tab.page.url
        await tab.page.go_back()
        await tab.page.go_back()
        await until(lambda: tab.page.evaluate("() => document.querySelectorAll('.row-link').length === 6"))
        await tab.page.fill("input[name=id]", "not an id")
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_selector(".fault:not([hidden])")
        assert "expected the beginning of a receipt id" in await tab.text(".fault")


@seen
async def test_older_receipts_come_a_page_at_a_time(tmp_path: Path) -> None:
    async with house(tmp_path / "state", ReferenceEngine(MODEL)) as gate:
        for n in range(53):
            await gate.post(ask(f"{n}", model=MODEL, max_tokens=1))
        async with browsing(gate.url) as tab:
            await tab.go("#/receipts")
            assert await row_count(tab) == 50
            await tab.page.focus(".more-button")
            await tab.page.keyboard.press("Enter")
            await until(lambda: tab.page.evaluate("() => document.querySelectorAll('.row-link').length === 53"))
            await until(lambda: tab.page.evaluate("() => document.activeElement.textContent === '2'"))
            assert await tab.page.is_hidden(".more-button")


@seen
async def test_receipt_is_told_in_words_with_what_it_proves(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url) as tab:
        name = ContentId(entry(gate, 1).receipt_id).text
        receipt = gate.receipt(name).value
        await tab.go(f"#/receipt/{name}")
        story = await tab.text(".story")
        assert f"{MODEL} took a prompt of {receipt.outcome.tokens_in} tokens and gave 61 tokens of at most 61" in story
        uj = receipt.energy.uj
        assert f"It cost {uj // 10**6}.{uj % 10**6:06d} J" in story
        assert "modelled: an estimate, not a measurement" in story
        per_token = re.search(r"([0-9.]+) J per token", story)
        assert per_token is not None
        assert abs(float(per_token[1]) - uj / 61e6) < 1e-6
        main = await tab.text("main")
        assert "The only reason to trust it is that this gateway said so." in main
        assert WEIGHTS.text in main
        assert "That the weights it names are the ones that ran." in main
        assert STEWARD in main
        assert "What it does not prove" in main
        await tab.picture("receipt")
        assert await tab.overflowing() == []
        async with tab.page.expect_download() as download:
            await tab.page.click("text=Save the signed bytes")
        saved = await (await download.value).path()
        assert saved.read_bytes() == entry(gate, 1).envelope
        await tab.page.evaluate("(key) => localStorage.setItem('mesh.trust', key)", STEWARD)
        await tab.page.reload()
        await tab.ready()
        assert await tab.page.get_attribute(".verdict", "data-state") == "verified"
        # by its serve, as an answer's header names it
        await tab.go(f"#/receipt/{serve_id_text(entry(gate, 1).serve_id)}")
        assert "Receipt no. 1" in await tab.text("h1")


@seen
async def test_key_is_asked_for_and_kept_in_this_tab_alone(tmp_path: Path) -> None:
    digest = "b3:" + blake3(SECRET.encode()).hexdigest()
    async with serving(tmp_path, keys=[digest]) as gate, browsing(gate.url, expected=("401",)) as tab:
        await tab.go("#/receipts")
        await tab.ready("key")
        assert await tab.focused() == "input key"
        await tab.picture("key")
        await tab.page.keyboard.type("sk-wrong")
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_selector(".fault:not([hidden])")
        assert "not known here" in await tab.text(".fault")
        await tab.page.fill("#key", "schlüssel mit leerzeichen")
        await tab.page.keyboard.press("Enter")
        assert "none but ASCII" in await tab.text(".fault")
        await tab.page.fill("#key", SECRET)
        await tab.page.keyboard.press("Enter")
        await tab.ready("receipts")
        assert await row_count(tab) == 6
        assert {line["Caller"] for line in await rows(tab)} == {f"key:{digest[3:19]}"}
        assert SECRET not in await tab.page.content()
        assert SECRET not in "".join(request.url for request in tab.requests)
        assert await tab.page.evaluate("() => JSON.stringify(localStorage)") == "{}"
        await tab.page.reload()
        await tab.ready("receipts")
        await tab.page.click("text=Forget the key")
        await tab.ready("key")
        assert await tab.page.evaluate("() => JSON.stringify(sessionStorage)") == "{}"
        # a file needs no gateway and so no key
        await tab.page.click("text=without one")
        await tab.ready("check")


@seen
async def test_gateway_that_goes_away_is_told_and_what_was_shown_stays(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url, expected=("ERR_INTERNET_DISCONNECTED",)) as tab:
        await tab.go("#/")
        await tab.page.context.set_offline(True)
        await tab.page.wait_for_selector("#notices .fault")
        assert "does not answer" in await tab.text("#notices")
        assert await row_count(tab) == 6
        await tab.page.context.set_offline(False)
        await tab.page.wait_for_selector("#notices .fault", state="detached")


# the address, the form and the list are back at the beginning
CLEARED = """() => !location.hash.includes("?") && document.querySelectorAll(".row-link").length === 6 &&
    [...document.querySelectorAll(".search input, .search select")].every((it) => !it.value)"""
