"""`POST /v1/embeddings`, which no engine here can answer: each says why, by name.

The engines decode: a causal model's vectors for the last token are no embedding that anybody trained, and what was
never trained is not handed out under that name.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from mesh.engine.protocol import ServingEngine
from mesh.errors import BadRequest
from mesh.gateway.backends import Backends
from mesh.gateway.completions import GRANT
from mesh.gateway.fields import Fields
from mesh.gateway.intake import Intake

_WHY = {
    "reference": "the reference engine has no weights, and so no vectors",
    "gguf": "the model decodes text and has no pooling that makes one vector of it",
    "vllm": "its server is asked for completions alone",
}


class Embeddings:
    """The handler, over the backends there are."""

    def __init__(self, backends: Backends, intake: Intake) -> None:
        self._backends = backends
        self._intake = intake

    async def refuse(self, request: web.Request) -> web.Response:
        """Raises BadRequest for a model that is served, and what any request for a model does for another."""
        with self._intake.place(request):
            _, model = await self._intake.read(request, _model)
            backends = self._backends.within(model, request.get(GRANT))
            whys = {backend.name: _why(backend.engine) for backend in backends}
            # a model that is a backend by itself is named once
            reasons = "; ".join(why if [model] == list(whys) else f"{name}: {why}" for name, why in whys.items())
            message = f"model {model!r} makes no embeddings: {reasons}"
            raise BadRequest(message, code="unsupported_value", param="model")


def _model(body: dict[str, Any]) -> str:
    fields = Fields(body)
    model = fields.text("model")
    if not model:
        raise fields.fault("model", "missing")
    if fields.take("input") is None:
        raise fields.fault("input", "missing")
    return model


def _why(engine: ServingEngine) -> str:
    return _WHY.get(str(engine.settings.get("engine")), "its engine makes none")
