"""What the commands of `mesh launch` share: their flags, and the configuration and recipes that they lead to."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.engines import positive
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.config import Loaded
    from mesh.launch.recipe import RecipeFile
    from mesh.launch.run_ledger import RunLedger
    from mesh.launch.selection import Wish
    from mesh.launch.ssh import Login

RECIPES = "recipes"


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings and clusters (./launch.toml, then the user's)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_choice_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", metavar="NAME", help="a cluster, the beginning of its name, or auto")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--solo", action="store_true", default=None, help="one node, the first that is free")
    group.add_argument("--no-solo", action="store_false", dest="solo", help="many, whatever the recipe says")
    parser.add_argument(
        "--fit", type=positive, nargs="?", const=0, metavar="N", help="scale to N nodes, or to the whole cluster"
    )
    parser.add_argument("--force", action="store_true", help="take nodes that are occupied too")
    parser.add_argument(
        "--mirror", nargs="?", const="~/.cache/hf-models", metavar="DIR", help="read models from a copy on each node"
    )
    parser.add_argument("--hf-cache", metavar="DIR", help="the folder of models on each node")
    parser.add_argument(
        "--stage", choices=("check", "skip", "force"), default="check", help="skip, or check every byte"
    )
    parser.add_argument("--clear", action="store_true", help="delete the host folders of extra mounts first")


def loaded(args: argparse.Namespace) -> Loaded:
    from mesh.launch.config import find_config, load_config

    return load_config(find_config(args.config, Path(), user_config()))


def user_config() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "servemesh" / "launch.toml"


def sources(config: Loaded) -> list[Path]:
    """Folders of recipes, in the order in which they are looked at."""
    return [Path(RECIPES), *(config.path(os.path.expanduser(one)) for one in config.config.recipe_sources)]


def recipe_at(name: str, config: Loaded) -> RecipeFile:
    from mesh.launch.recipe import RecipeFile, find_recipe

    return RecipeFile.load(find_recipe(name, sources(config)))


def wish_of(args: argparse.Namespace) -> Wish:
    from mesh.launch.selection import Wish

    return Wish(args.cluster, args.solo, args.fit, args.force)


def login_of(config: Loaded) -> Login:
    """How nodes are reached. A file of pinned keys that is not there pins none."""
    from mesh.launch.ssh import Login
    from mesh.launch.toml_file import read_bounded

    pinned = known_hosts(config)
    text = read_bounded(pinned).decode("utf-8", errors="replace") if pinned.exists() else ""
    key = Path(os.path.expanduser(config.config.ssh_key_path))
    return Login(config.config.ssh_user, key, text, float(config.config.ssh_silence_s))


def known_hosts(config: Loaded) -> Path:
    return config.path(os.path.expanduser(config.config.known_hosts))


def ledger_of(name: str, config: Loaded) -> RunLedger:
    """A recipe's run ledger, by the recipe's name, or by its file or folder, which has the name."""
    from mesh.launch.recipe import RECIPE_FILE, recipe_name
    from mesh.launch.run_ledger import RunLedger

    if not name:
        raise UsageError("a recipe's name is empty")
    path = Path(name)
    return RunLedger(ledgers(config) / recipe_name(path if path.suffix == ".toml" else path / RECIPE_FILE))


def ledgers(config: Loaded) -> Path:
    return config.path(os.path.expanduser(config.config.state_dir))
