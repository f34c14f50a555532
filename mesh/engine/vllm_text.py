"""The text side of a vLLM server's model: its folder's tokenizer and template, held against the server's own."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from mesh.engine.hf_tokenizer import HfTokenizer
from mesh.engine.template_process import TemplateProcess, render_chat
from mesh.engine.vllm_http import VllmServer
from mesh.errors import BadRequest, EngineError, UsageError

# Letters, digits, spaces, a line break, punctuation, accents, another script and a character of four bytes.
_SAMPLE: Final = "The 7 quick foxes:\n\tjump over l'été, 東京 & 🙂."
_CONVERSATION: Final = (
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "4."},
    {"role": "user", "content": "Sure?"},
)


class Pieces:
    """The bytes of ids, one by one or of several at once. Raises BadRequest for an id that there is not."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __call__(self, token: int) -> bytes:
        pieces = self._pieces
        try:  # asked for every token of every answer, and hardly ever for one that is not there
            return pieces[token if token >= 0 else len(pieces)]
        except IndexError:
            raise BadRequest(f"token {token}: the vocabulary has ids 0..{len(pieces) - 1}") from None

    def all(self, tokens: Sequence[int]) -> list[bytes]:
        if tokens and min(tokens) >= 0:
            try:
                return list(map(self._pieces.__getitem__, tokens))
            except IndexError:
                pass  # which it is, is told below
        return [self(token) for token in tokens]


class VllmText:
    """`model` is the name that the server knows it by. The folder is read for what HTTP cannot give: the bytes of one
    token, and the text of a rendered chat. `check` holds both against the server."""

    def __init__(
        self, server: VllmServer, model: str, tokenizer: HfTokenizer, template: TemplateProcess | None
    ) -> None:
        self._server, self._model, self._tokenizer, self._template = server, model, tokenizer, template
        self._vocabulary = len(tokenizer.pieces)
        self.piece = Pieces(tokenizer.pieces)

    async def check(self) -> None:
        """Raises UsageError where the folder is another model's, or its template another than the server's."""
        ids = await self.encode(_SAMPLE, special=True)
        unknown = [token for token in ids if token >= len(self._tokenizer.pieces)]
        spelled = b"" if unknown else b"".join(self._tokenizer.pieces[token] for token in ids)
        # a tokenizer of words may begin with a space that the text does not have
        if spelled.decode(errors="replace").strip() != (await self._server.decode(self._model, ids)).strip():
            raise UsageError("tokenizer folder: spells the server's tokens otherwise than the server does")
        if self._template is None:
            return
        try:
            theirs = await self._server.encode_chat(self._model, _CONVERSATION)
        except EngineError:
            return  # a server without a template of its own; ours is all there is
        if await self.encode(await self._template.render(_CONVERSATION), special=True) != theirs:
            raise UsageError("chat template: gives other ids than the server's own; name the file it was started with")

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        return await render_chat(self._template, messages, tools, where="the model folder")

    def encode(self, text: str, *, special: bool, bare: bool = False) -> Coroutine[Any, Any, list[int]]:
        """A rendered chat brings its control tokens along; a bare text gets those that the tokenizer begins one with.
        In both, a control token spelled in the text counts as one: the server has no way to say otherwise."""
        additions = not special and not bare
        return self._server.encode(self._model, text, additions=additions, vocabulary=self._vocabulary)
