"""`mesh launch plugins` and `mesh launch power`: what packages of others add for the hardware of one lab."""

from __future__ import annotations

import argparse
from typing import Any

from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED
from mesh.cli.launch_flags import add_common_flags, loaded
from mesh.errors import UsageError


def add(actions: Any) -> None:
    listed = actions.add_parser("plugins", help="which plug-ins are installed, and what each adds")
    add_common_flags(listed)
    listed.set_defaults(run=run_plugins)
    power = actions.add_parser("power", help="switch a cluster on or off, by the plug-in that can")
    power.add_argument("state", choices=("on", "off"), help="what it shall be")
    power.add_argument("cluster", metavar="CLUSTER", help="a cluster's whole name")
    power.add_argument("--confirm", metavar="CLUSTER", help="the name once more: a cluster may be serving")
    power.add_argument("--dry-run", action="store_true", help="print what would be switched")
    add_common_flags(power)
    power.set_defaults(run=run_power)


def run_plugins(args: argparse.Namespace) -> int:
    from mesh.launch.plugins import GROUP, load_plugins

    plugins = load_plugins()
    told: list[dict[str, Any]] = [
        {"name": name, "tables": sorted(one.tables), "staging": sorted(one.staging), "power": one.switches}
        for name, one in plugins.by_name.items()
    ]
    if args.json:
        emit({"group": GROUP, "plugins": told})
        return ACCEPTED
    for one in told:
        adds = [
            *(f"[{table}]" for table in one["tables"]),
            *(f"staging {kind}" for kind in one["staging"]),
            *(["power"] if one["power"] else []),
        ]
        say(f"{one['name']}: {', '.join(adds) or 'entities alone'}")
    if not told:
        note(f"none: a package offers one as an entry point of {GROUP}")
    return ACCEPTED


def run_power(args: argparse.Namespace) -> int:
    from mesh.launch.plugins import load_plugins

    config = loaded(args).config
    cluster = next((one for one in config.clusters if one.name == args.cluster), None)
    if cluster is None:
        known = ", ".join(one.name for one in config.clusters) or "none"
        raise UsageError(f"cluster {args.cluster[:80]!r}: unknown; there are {known}")
    plugins, on = load_plugins(), args.state == "on"
    steps = plugins.power_steps(config, cluster, on)
    if args.dry_run:
        if args.json:
            emit({"cluster": cluster.name, "on": on, "steps": steps})
        for line in [] if args.json else steps:
            say(line)
        return ACCEPTED
    if args.confirm != cluster.name:
        raise UsageError(f"power {args.state} {cluster.name}: it may be serving: --confirm {cluster.name} does it")
    plugins.power(config, cluster, on, note)
    if args.json:
        emit({"cluster": cluster.name, "on": on, "steps": steps})
    else:
        say(f"{cluster.name}: switched {args.state}")
    return ACCEPTED
