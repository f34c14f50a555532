"""Plug-ins: what only one lab's hardware has, in packages of its own.

A package names one under the entry-point group `servemesh.launch`: a subclass of Plugin, or a function that gives an
instance. It is handed plain maps, as the files have them, and answers with plain values; what touches a node is a
command of POSIX sh, which a dry run prints like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from mesh.errors import LaunchError, UsageError
from mesh.launch.commands import Step
from mesh.launch.config import Cluster, LaunchConfig
from mesh.launch.ranks import Rank
from mesh.launch.recipe import RecipeFile, Staging

GROUP: Final = "servemesh.launch"
STATES: Final = ("on", "off", "unknown")


class Plugin:
    """What a plug-in may offer; each of it is optional."""

    tables: Collection[str] = ()
    """Tables of launch.toml that it reads."""
    staging: Collection[str] = ()
    """Kinds of [[staging]] that it makes."""
    switches: bool = False
    """Whether it switches power."""

    def staging_commands(
        self, block: Mapping[str, Any], recipe: Mapping[str, Any], place: Mapping[str, Any]
    ) -> Sequence[tuple[str, str]]:
        """What makes a [[staging]] block true on one node: pairs of what it does and a command. `place` holds `node`,
        `rank`, `ranks` and `tensor_parallel_size`."""
        return ()

    def entity_states(self, config: Mapping[str, Any], entities: Sequence[str]) -> Mapping[str, str]:
        """Of those entities that it knows, whether they are "on", "off" or "unknown"."""
        return {}

    def power_steps(self, config: Mapping[str, Any], cluster: Mapping[str, Any], on: bool) -> Sequence[str]:
        """What `power` would do, a line each, for a dry run. Nothing is done."""
        return ()

    def power(
        self, config: Mapping[str, Any], cluster: Mapping[str, Any], on: bool, note: Callable[[str], None]
    ) -> None:
        """Switch a cluster on or off."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """Those that are installed, by name."""

    by_name: Mapping[str, Plugin]

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(table for one in self.by_name.values() for table in one.tables)

    @property
    def staging(self) -> frozenset[str]:
        return frozenset(kind for one in self.by_name.values() for kind in one.staging)

    def staging_steps(self, file: RecipeFile, block: Staging, rank: Rank, ranks: int, tp: int | None) -> list[Step]:
        """Raises UsageError where no plug-in makes such a block, LaunchError for one that fails."""
        found = [(name, one) for name, one in self.by_name.items() if block.kind in one.staging]
        if not found:
            raise UsageError(f"staging: {block.kind} is a plug-in's, and none is there (entry points of {GROUP})")
        name, plugin = found[0]
        place = {"node": rank.node.name, "rank": rank.rank, "ranks": ranks, "tensor_parallel_size": tp}
        with _named(name):
            pairs = plugin.staging_commands(_plain(block), _plain(file.recipe), place)
        return [Step(rank.node.name, f"{block.kind}: {what}", command) for what, command in pairs]

    def blocked(self, config: LaunchConfig, cluster: Cluster) -> list[str]:
        """Why a cluster is down although its nodes may answer: blocking entities that are off. One whose state nobody
        knows blocks nothing."""
        wanted = [one.entity for one in cluster.extra_entities if one.blocks]
        states = self.states(config, wanted)
        return [f"{entity} is off" for entity in wanted if states[entity] == "off"]

    def states(self, config: LaunchConfig, entities: Sequence[str]) -> dict[str, str]:
        """`unknown` where no plug-in says. Raises LaunchError for one that fails."""
        found = dict.fromkeys(entities, "unknown")
        for name, plugin in self.by_name.items():
            if entities:
                with _named(name):
                    told = plugin.entity_states(_plain(config), list(entities))
                found |= {key: value for key, value in told.items() if key in found and value in STATES}
        return found

    def power_steps(self, config: LaunchConfig, cluster: Cluster, on: bool) -> list[str]:
        steps = []
        for name, plugin in self._switches():
            with _named(name):
                steps += [f"{name}: {line}" for line in plugin.power_steps(_plain(config), _plain(cluster), on)]
        return steps

    def power(self, config: LaunchConfig, cluster: Cluster, on: bool, note: Callable[[str], None]) -> None:
        """Raises UsageError where nothing switches power, LaunchError where a plug-in fails."""
        for name, plugin in self._switches():
            with _named(name):
                plugin.power(_plain(config), _plain(cluster), on, note)

    def _switches(self) -> list[tuple[str, Plugin]]:
        found = [(name, plugin) for name, plugin in self.by_name.items() if plugin.switches]
        if not found:
            raise UsageError(f"power: no plug-in switches it (entry points of {GROUP})")
        return found


NONE: Final = Plugins({})


def load_plugins(points: Collection[EntryPoint] | None = None) -> Plugins:
    """All that are installed, or those of `points`. Raises UsageError naming one that cannot be loaded."""
    found: dict[str, Plugin] = {}
    for point in sorted(entry_points(group=GROUP) if points is None else points, key=lambda one: one.name):
        try:
            made = point.load()()
        except Exception as e:  # noqa: BLE001 - whatever somebody else's module raises, its name is what helps
            raise UsageError(f"plug-in {point.name} ({point.value}): {type(e).__name__}: {e}") from None
        if not isinstance(made, Plugin):
            raise UsageError(f"plug-in {point.name} ({point.value}): a {type(made).__name__}, expected a Plugin")
        found[point.name] = made
    return Plugins(found)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What a plug-in raises is told under its name."""
    try:
        yield
    except (LaunchError, UsageError):
        raise
    except Exception as e:  # noqa: BLE001 - somebody else's code
        raise LaunchError(f"plug-in {name}: {type(e).__name__}: {e}") from None


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = value.model_dump(mode="json", exclude_none=True)
    return plain
