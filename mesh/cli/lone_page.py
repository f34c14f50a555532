"""Pages of one file: each holds everything that it shows, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.cli.audit_plots import text

STILL = "default-src 'none'; style-src 'unsafe-inline'"  # nothing runs


def head(title: str, style: str, *, policy: str = STILL) -> str:
    """All before the body. `policy` is the page's Content-Security-Policy."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{text(title)}</title><style>\n{style}</style></head>"
    )


def report(title: str, style: str, top: str, parts: Iterable[str], made: str) -> bytes:
    """One that runs nothing, in UTF-8. `top` is what is above its `parts`, and `made` says who made it."""
    said = f"{text(made)}. This page holds all that it shows: it runs nothing and loads nothing."
    return "\n".join(
        (f"{head(title, style)}<body>{top}<main>", *parts, f"</main><footer><p>{said}</p></footer></body></html>", "")
    ).encode()
