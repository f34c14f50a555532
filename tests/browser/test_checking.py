"""What the page makes of receipts: under whose keys, of whatever the gateway sends, and of the reader's own files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from mesh.schema.envelope import SigningKey, seal
from mesh.schema.ids import ContentId, steward_text
from tests.browser.browsing import browsing, until
from tests.browser.houses import MODEL, SECRET, STEWARD, entry, forged, rows, seen, serving
from tests.gateway.serving import ask
from tests.support.stewards import KEY

OTHER = steward_text(SigningKey(b"\x07" * 32).public)
HOLDS, VERIFIED, WRONG = "holds, not pinned", "verified", "not genuine: signature"


@seen
async def test_list_is_checked_in_the_browser_under_the_readers_own_trust(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate, browsing(gate.url) as tab:
        await tab.go("#/receipts")
        listed = await rows(tab)
        assert [line["No."] for line in listed] == ["5", "4", "3", "2", "1", "0"]
        assert all(HOLDS in line["Checked here"] for line in listed)
        assert listed[0]["Finish"] == "engine-error"
        assert listed[0]["Energy"] == "absent"
        assert listed[0]["J/token"] == "not known"
        await tab.picture("list")
        await tab.go("#/trust")
        assert "only reason to trust it is that this gateway said so" in await tab.text("main")
        await tab.page.fill("#keys", "ed25519:short")
        await tab.page.click("text=Pin these keys")
        assert "line 1" in await tab.text(".fault")
        await tab.page.fill("#keys", OTHER)
        await tab.page.click("text=Pin these keys")
        assert "none of the keys that you pinned" in await tab.text("main")
        await tab.page.click("nav >> text=Receipts")
        await tab.page.wait_for_selector(".badge.undecided")
        assert {line["Checked here"] for line in await rows(tab)} == {"? cannot be decided: trust"}
        await tab.go("#/trust")
        await tab.page.fill("#keys", f"# the operator's\n{STEWARD}\n")
        await tab.page.click("text=Pin these keys")
        await tab.page.wait_for_selector("#who .verified")
        await tab.page.reload()
        await tab.ready()
        await tab.picture("trust")
        await tab.go("#/receipts")
        assert {line["Checked here"] for line in await rows(tab)} == {f"✓ {VERIFIED}"}
        await tab.go("#/trust")
        await tab.page.click("text=Forget them")
        await tab.page.wait_for_selector("#who .told")


@seen
async def test_gateway_that_shows_a_forged_receipt_is_found_out(tmp_path: Path) -> None:
    """The gateway's word counts for nothing: what it sends is changed on the way."""
    async with serving(tmp_path) as gate, browsing(gate.url) as tab:
        five, four = entry(gate, 5), entry(gate, 4)

        async def change(route: Any) -> None:
            response = await route.fetch()
            told = await response.json()
            told["receipts"][0]["envelope"] = base64.urlsafe_b64encode(forged(five.envelope)).decode().rstrip("=")
            # a genuine one, put in another's place
            told["receipts"][2]["envelope"] = base64.urlsafe_b64encode(four.envelope).decode().rstrip("=")
            await route.fulfill(response=response, body=json.dumps(told))

        async def change_one(route: Any) -> None:
            response = await route.fetch()
            await route.fulfill(response=response, body=forged(await response.body()))

        await tab.page.route("**/mesh/v1/receipts?*", change)
        await tab.page.route("**/mesh/v1/receipts", change)
        await tab.page.route("**/mesh/v1/receipts/*", change_one)
        await tab.page.add_init_script(f"localStorage.setItem('mesh.trust', '{STEWARD}')")
        await tab.go("#/receipts")
        listed = await rows(tab)
        assert WRONG in listed[0]["Checked here"]
        assert listed[1]["Checked here"] == f"✓ {VERIFIED}"
        assert "other than listed" in listed[2]["Checked here"]
        await tab.page.click(".row-link >> nth=0")
        await tab.page.wait_for_selector(".verdict")
        assert await tab.page.get_attribute(".verdict", "data-class") == "signature"
        assert "nobody you trust vouches for" in await tab.text("main")
        assert "What it proves" not in await tab.text("main")
        await tab.picture("forged-receipt")


@seen
async def test_dropped_file_is_checked_without_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate:
        answer = await gate.post(ask("disclosed", model=MODEL, mesh={"disclose": True}))
        disclosure = base64.urlsafe_b64decode(answer.json["mesh"]["disclosure"] + "==")
        mine = gate.steward.reader.by_receipt(ContentId.from_text(answer.headers["Mesh-Receipt"]))
        assert mine is not None
        files = {
            "good.cose": mine.envelope,
            "its.disclosure.cbor": disclosure,
            "forged.cbor": forged(mine.envelope),
            "cut.cbor": mine.envelope[:-9],
            "empty.cbor": b"",
            "note.txt": b"not a receipt at all",
            "<b>bold</b>\u202e.cbor": entry(gate, 0).envelope,
            "checkpoint.cbor": (await gate.steward.checkpoint()).envelope,
            "broken.disclosure.cbor": disclosure[:-1],
        }
        for name, data in files.items():
            (tmp_path / name.replace("/", "_")).write_bytes(data)
        async with browsing(gate.url) as tab:
            await tab.page.add_init_script(f"localStorage.setItem('mesh.trust', '{STEWARD}')")
            await tab.go("#/check")
            asked = len(tab.requests)
            await tab.drop(*(tmp_path / name.replace("/", "_") for name in files))
            await tab.page.wait_for_selector(".checked")
            cards = {
                await card.get_attribute("data-file"): card for card in await tab.page.query_selector_all(".checked")
            }

            async def verdict(name: str) -> str:
                box = await cards[name].query_selector(".verdict")
                return "" if box is None else str(await box.get_attribute("data-class"))

            assert {name: await verdict(name) for name in cards} == {
                "good.cose": "",
                "forged.cbor": "signature",
                "cut.cbor": "structure",
                "empty.cbor": "structure",
                "note.txt": "structure",
                "<b>bold<_b>\u202e.cbor": "",
                "checkpoint.cbor": "",
                "broken.disclosure.cbor": "encoding",
            }
            good = await cards["good.cose"].inner_text()
            assert "Verified: signed by a key that you pinned" in good
            assert "The disclosure is of this receipt." in good
            assert "8 token ids of the output open the commitment" in good
            bold = cards["<b>bold<_b>\u202e.cbor"]
            assert await bold.query_selector("b") is None
            assert "⟨U+202E⟩" in await bold.inner_text()
            assert "2 receipts of" in await tab.text(".results > .verdict")
            assert "in 2 runs" in await tab.text(".results > .verdict")
            assert (await tab.focused()).startswith("h2")
            assert len(tab.requests) == asked
            await tab.picture("forged-files")
            # the gateway need not even be there
            await tab.page.context.set_offline(True)
            await tab.page.set_input_files("#files", [tmp_path / "forged.cbor"])
            await until(lambda: tab.page.evaluate("() => document.querySelectorAll('.checked').length === 1"))
            await tab.picture("forged")
            assert len(tab.requests) == asked


@seen
async def test_disclosure_of_another_answer_is_told_from_the_right_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate:
        answers = [await gate.post(ask(text, model=MODEL, mesh={"disclose": True})) for text in ("one", "two")]
        paths = []
        for n, answer in enumerate(answers):
            path = tmp_path / f"{n}.disclosure"
            path.write_bytes(base64.urlsafe_b64decode(answer.json["mesh"]["disclosure"] + "=="))
            paths.append(path)
        async with browsing(gate.url) as tab:
            await tab.go(f"#/receipt/{answers[0].headers['Mesh-Receipt']}")
            asked = len(tab.requests)
            for path, good in zip(paths, ("true", "false"), strict=True):
                await tab.page.set_input_files(".pick input", [path])
                await tab.page.wait_for_selector(f".findings[data-good={good}]")
            assert "It is of another serve." in await tab.text(".findings")
            await tab.page.set_input_files(".pick input", [Path(__file__)])
            await tab.page.wait_for_selector("text=This is no disclosure")
            assert len(tab.requests) == asked


@seen
async def test_files_of_one_log_follow_one_another_or_fork(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate:
        for seq in range(4):
            (tmp_path / f"{seq}.cbor").write_bytes(entry(gate, seq).envelope)
        two = gate.receipt(ContentId(entry(gate, 2).receipt_id).text).value
        changed = type(two).from_map({**two.to_map(), "max_tokens": two.max_tokens + 1})
        (tmp_path / "fork.cbor").write_bytes(seal(changed, KEY).envelope)
        async with browsing(gate.url) as tab:
            await tab.go("#/check")

            async def told(*names: str) -> str:
                await tab.page.set_input_files("#files", [tmp_path / f"{name}.cbor" for name in names])
                await until(
                    lambda: tab.page.evaluate("(n) => document.querySelectorAll('.checked').length === n", len(names))
                )
                return await tab.text(".results > .verdict")

            assert "follow one another without a gap or a fork" in await told("2", "0", "3", "1")
            assert "in 2 runs" in await told("0", "1", "3")
            assert "sequence" in await told("1", "2", "fork", "3", "0")
            assert "a fork: two ids" in await tab.text(".results > .verdict")


@seen
async def test_page_that_came_without_encryption_says_that_it_cannot_check(tmp_path: Path) -> None:
    """Browsers have no WebCrypto there; a page that said nothing would look as if it had checked."""
    digest = "b3:" + blake3(SECRET.encode()).hexdigest()
    async with serving(tmp_path, keys=[digest]) as gate:
        url = f"http://mesh.test:{gate.port}"
        flags = ("--host-resolver-rules=MAP mesh.test 127.0.0.1",)
        async with browsing(url, flags=flags, expected=("401", "Cross-Origin-Opener-Policy")) as tab:
            await tab.go("#/receipts")
            await tab.page.fill("#key", SECRET)
            await tab.page.keyboard.press("Enter")
            await tab.ready("receipts")
            assert {line["Checked here"] for line in await rows(tab)} == {"? not checked"}
            await tab.page.click(".row-link >> nth=0")
            await tab.page.wait_for_selector(".verdict[data-state=uncheckable]")
            assert "mesh verify checks it anywhere" in await tab.text(".verdict")
            assert "What it proves" not in await tab.text("main")
