"""What pages of one file have in common: they say what they may do before they do anything."""

from __future__ import annotations

from mesh.cli.lone_page import STILL, head, report


def test_a_page_says_what_it_may_do_before_its_style() -> None:
    made = head("a <b> & c", "p { margin: 0 }\n")
    assert made.index(f'content="{STILL}"') < made.index("<style>")
    assert "<title>a &lt;b&gt; &amp; c</title>" in made
    assert "script-src" not in made
    assert "content=\"default-src 'none'; script-src" in head("", "", policy="default-src 'none'; script-src 'self'")


def test_a_report_holds_its_parts_and_says_who_made_it() -> None:
    made = report("r", "", "<header>h</header>", ["<p>1</p>", "<p>2</p>"], "Made by <me>").decode()
    assert "<body><header>h</header><main>\n<p>1</p>\n<p>2</p>\n</main>" in made
    assert "Made by &lt;me&gt;. This page holds all that it shows" in made
    assert made.endswith("</html>\n")
