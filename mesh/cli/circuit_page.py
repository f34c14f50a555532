"""`mesh blueprint page`: a circuit in one HTML file, which asks nobody for anything."""

from __future__ import annotations

import argparse
import json
import re

from mesh.cli.blueprint_files import opened
from mesh.cli.console import emit, note
from mesh.cli.exits import ACCEPTED
from mesh.cli.lone_page import STILL, head
from mesh.cli.newfile import check_new, write_new

# In the order in which they need each other.
_MODULES = ("dom.js", "space.js", "cards.js", "circuit.js")
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=function|class|const|let)", re.MULTILINE)


def run_page(args: argparse.Namespace) -> int:
    from mesh.blueprint.drawing import drawing
    from mesh.blueprint.verification import read_unverified

    check_new(args.out)
    with opened(args.file) as container:
        blueprint = read_unverified(container)
        mark = _mark(container.signature_block)
    text = page(drawing(blueprint, mark))
    write_new(args.out, [text.encode()])
    if args.json:
        emit({"blueprint_id": f"sha256:{blueprint.id.hex()}", "out": str(args.out), "bytes": len(text.encode())})
    else:
        note(f"circuit drawn in {args.out}: no signature was checked")
    return ACCEPTED


def _mark(block: bytes) -> str:
    from mesh.blueprint.sealing import SignatureBlock

    if not block:
        return "a preview: nobody has signed it"
    return f"signed in the name of {SignatureBlock.from_bytes(block).chain[0].label}, which nobody checked here"


def page(drawn: dict[str, object]) -> str:
    """The file: the modules one behind the other, as the browser would load them, and the circuit as data."""
    from mesh.gateway.page import installed_root

    folder = installed_root() / "page"
    script = "".join(_EXPORT.sub("", _IMPORT.sub("", (folder / name).read_text())) for name in _MODULES)
    style = "".join((folder / name).read_text() for name in ("style.css", "circuit.css"))
    # within a script element nothing may look like its end, whatever a name says
    data = json.dumps(drawn, ensure_ascii=True).replace("<", "\\u003c")
    # nothing is loaded, and nothing but what is in the file runs
    return (
        head(f"{drawn['name']}: circuit", style, policy=f"{STILL}; script-src 'unsafe-inline'; img-src data:")
        + '\n<body>\n<main id="circuit"></main>\n'
        '<p class="unseen" id="said" role="status" aria-live="polite"></p>\n'
        f'<script type="application/json" id="drawing">{data}</script>\n'
        f'<script type="module">\n{script}\n'
        'const view = new CircuitView(JSON.parse(document.getElementById("drawing").textContent));\n'
        'set(document.getElementById("circuit"), view.element);\nview.draw();\n'
        'document.getElementById("circuit").setAttribute("data-ready", "circuit");\n</script>\n</body>\n</html>\n'
    )
