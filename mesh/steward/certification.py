"""Taking a recipe out of the dark: a real forward over several hosts, looked at before and after, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Scores, ServingEngine, shard_route_of
from mesh.errors import EngineUnsupported, RecipeNotCertified, RouteIncompatible
from mesh.identity.fields import shown
from mesh.identity.mismatch import listed
from mesh.identity.registry import RecipeStatus
from mesh.identity.route import check_route
from mesh.identity.shard_route import ShardRoute
from mesh.ledger import Ledger
from mesh.schema.outcome import Fidelity
from mesh.schema.request import Sampling, ServeRequest, prompt_hash_of_ids

PROMPTS: Final = 4
PROMPT_TOKENS: Final = 12
TOKENS: Final = 48  # of each; greedy, and an end of text ends nothing
_SMALLEST_VOCABULARY: Final = 256


class RouteEngine(ServingEngine, Protocol):
    """An engine that computes over several hosts, and can ask them again."""

    shard_route: ShardRoute | None

    async def look_again(self) -> None:
        """Raises IdentityChanged where they compute or hold other than they said."""
        ...


class _Collected:
    """A TokenSink."""

    def __init__(self) -> None:
        self.cancelled = CallOff()

    def put(self, token: int, scores: Scores | None = None) -> None:
        pass


async def certify(
    engine: RouteEngine, ledger: Ledger, *, session: str, at_ns: int, against: ServingEngine | None = None
) -> RecipeStatus:
    """Run a forward over the route that `engine` is, and certify its recipe by that; `against` is the same model
    unsplit, which has to give the same ids. `session` names the forward, `at_ns` is Unix time.

    Raises RouteIncompatible for a route that may not even be tried, RecipeNotCertified where the forward does not show
    what it should, IdentityChanged where the hosts changed meanwhile, EngineError, LedgerUnwritable.
    """
    route = shard_route_of(engine)
    if route is None:
        raise EngineUnsupported(f"engine {engine.recipe_id!r}: no route of shards, expected one to certify")
    head = route.shards[0]
    await asyncio.wrap_future(ledger.register_recipe(head))
    found = check_route(route.shards, registry=ledger.reader.registry(), for_certification=True)
    if found:
        raise RouteIncompatible(f"route: {listed(found)}", reasons=[one.to_map() for one in found])
    outputs = [await _output(engine, prompt) for prompt in _prompts()]
    if against is not None:
        expected = [await _output(against, prompt) for prompt in _prompts()]
        same = sum(pair[0] == pair[1] for pair in zip(outputs, expected, strict=True))
        if same != len(outputs):
            raise RecipeNotCertified(
                f"recipe {shown(head.recipe.recipe_id)}: {same} of {len(outputs)} outputs are those of the unsplit "
                "model, expected all"
            )
    await engine.look_again()
    evidence = route.evidence(session=session, tokens=sum(map(len, outputs)), at_ns=at_ns)
    return await asyncio.wrap_future(ledger.certify_recipe(head, evidence))


def _prompts() -> list[list[int]]:
    """Ids that every tokenizer has and that are nobody's prompt, the same ones each time."""
    return [[(7 + 31 * i + 5 * i * n) % _SMALLEST_VOCABULARY for i in range(PROMPT_TOKENS)] for n in range(PROMPTS)]


async def _output(engine: ServingEngine, prompt: Sequence[int]) -> tuple[int, ...]:
    request = ServeRequest.of(
        prompt_hash=prompt_hash_of_ids(prompt, None),
        prompt_tokens=len(prompt),
        max_tokens=TOKENS,
        fidelity_floor=int(Fidelity.F0),
        sampling=Sampling.of(**{**Sampling.greedy().to_map(), "ignore_eos": True}),
    )
    await engine.ready()
    return (await engine.serve(request, prompt, _Collected())).tokens
