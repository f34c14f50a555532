"""This package's own client as a program: `python conformance/clients/mesh_client.py OP ARGUMENT...`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from conformance.client import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
