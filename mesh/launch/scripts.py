"""Scripts that hooks name by an alias, run on a node through its shell. POSIX sh, and harmless where there is nothing
to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mesh.errors import UsageError

SCRIPTS: Final[Mapping[str, str]] = {
    # Reading weights fills the page cache, which an engine on unified memory takes for memory in use.
    "drop_caches": "sync; echo 3 | sudo -n tee /proc/sys/vm/drop_caches >/dev/null",
    "stop_dgx_services": (
        'for s in dgx-dashboard dgx-dashboard-admin cups bluetooth; do systemctl is-active --quiet "$s" && '
        'sudo -n systemctl stop "$s" && echo "$s" >>/tmp/mesh-stopped-services; done; true'
    ),
    "restore_dgx_services": (
        "test -f /tmp/mesh-stopped-services || exit 0; "
        'while read -r s; do sudo -n systemctl start "$s"; done </tmp/mesh-stopped-services; '
        "rm -f /tmp/mesh-stopped-services"
    ),
}


def script(name: str) -> str:
    """Raises UsageError for a name that no script has."""
    try:
        return SCRIPTS[name]
    except KeyError:
        raise UsageError(f"no script {name[:80]!r}; there are {', '.join(sorted(SCRIPTS))}") from None
