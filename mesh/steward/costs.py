"""What a token costs on each backend, learned from the receipts that are sealed."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.engine.protocol import ServingEngine
from mesh.errors import Invalid, Undecidable
from mesh.ledger import Entry
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.receipt import Receipt

_WEIGHT = 0.1  # of the newest receipt in the running mean
SEED_RECEIPTS = 512  # the newest ones in the ledger that a start learns from

_Identity = tuple[str, bytes | None]


class Costs:
    """An exponentially weighted mean of microjoules per token, prompt and output together, for each backend: that is,
    for a name under which one engine ran one set of weights. Receipts without a figure teach nothing: an unknown cost
    is None and never 0. Kept in memory."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, _Identity], float] = {}
        self._of_identity: dict[_Identity, float] = {}

    def learn(self, receipt: Receipt) -> None:
        outcome, uj = receipt.outcome, receipt.energy.uj
        tokens = (outcome.tokens_in or 0) + (outcome.tokens_out or 0)
        if uj is None or not outcome.tokens_out:
            return
        engine = receipt.engine
        identity = (engine.backend_id, engine.weights_digest)
        name = (engine.recipe_id, identity)
        self._means[name] = _moved(self._means.get(name), uj / tokens)
        self._of_identity[identity] = _moved(self._of_identity.get(identity), uj / tokens)

    def learn_ledger(self, newest_first: Iterable[Entry], steward: bytes) -> None:
        """Learn from a ledger's last receipts. One that cannot be read is left to `mesh verify`."""
        for entry in reversed(list(newest_first)):
            try:
                self.learn(verify(entry.envelope, RECEIPT_TYPE, {steward}).value)
            except (Invalid, Undecidable):
                continue

    def uj_per_token(self, engine: ServingEngine) -> float | None:
        """What a token on `engine` is expected to cost: as its own receipts say; else as those of another backend with
        the same engine, device and weights do; else as the engine itself estimates; None where nobody can say."""
        learned = self.learned(engine)
        if learned is None:
            learned = self._of_identity.get((engine.backend_id, engine.weights_digest))
        return engine.est_uj_per_token if learned is None else learned

    def learned(self, engine: ServingEngine) -> float | None:
        """As its own receipts say."""
        return self._means.get((engine.recipe_id, (engine.backend_id, engine.weights_digest)))


def _moved(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _WEIGHT * (newest - mean)
