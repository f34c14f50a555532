"""The text of a conversation as a model was trained to read it, from the template in its file."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mesh.errors import BadRequest, EngineUnsupported
from mesh.schema.ids import ContentId


class ChatTemplate:
    """A Jinja template with the names that published templates rely on. It runs sandboxed: it comes with a file from
    strangers and gets text from other strangers. `bos` and `eos` are the spelling of the control tokens.

    A template may ask for the date, so the same messages need not render the same tomorrow; what counts everywhere
    else is the rendered text.
    """

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        try:
            import jinja2.ext
            import jinja2.meta
            import jinja2.sandbox
        except ImportError as e:
            raise EngineUnsupported(f"chat template: {e}: install the extra `gguf`") from None
        self.source = source
        self.digest = ContentId.of_bytes(source.encode())
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._fault: str | None = None
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._takes_tools = False
        try:
            self._template = environment.from_string(source)
            self._takes_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
        except Exception as e:  # noqa: BLE001 - a template's own fault, whatever it is, is told to those who chat
            self._fault = f"chat template: does not parse: {e}"

    @property
    def tool_form(self) -> str | None:
        """How the template tells a model to call tools: `hermes` (`<tool_call>` tags), `llama3` (bare JSON with
        `parameters`); None where it takes no tools or shows a form that is not known here."""
        if not self._takes_tools:
            return None
        if "<tool_call>" in self.source:
            return "hermes"
        return "llama3" if '"parameters"' in self.source and "ipython" in self.source else None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The prompt text up to where the assistant speaks. Blocks for as long as the template takes. Raises
        BadRequest, code `template_error`, with the template's own words where it refuses."""
        if self._fault is not None:
            raise BadRequest(self._fault, code="template_error", param="messages")
        try:
            rendered = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                # templates tell "none" from "undefined", and take these to be there
                tools=[dict(tool) for tool in tools] if tools else None,
                documents=None,
                **self._tokens,
            )
            rendered.encode()
        except Exception as e:  # noqa: BLE001 - as above: a template can fail in every way Python can
            raise BadRequest(
                f"chat template: {e or type(e).__name__}", code="template_error", param="messages"
            ) from None
        return rendered


async def rendered(
    template: ChatTemplate | None,
    holder: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> str:
    """`ChatTemplate.render` in a thread. Raises BadRequest, code `no_chat_template`, where the `holder` has none."""
    if not messages:
        raise BadRequest("messages: empty, expected at least one", param="messages")
    if template is None:
        raise BadRequest(
            f"chat template: the {holder} has none and none is configured; give it a prompt instead",
            code="no_chat_template", param="messages",
        )  # fmt: skip
    return await asyncio.to_thread(template.render, messages, tools)


class _Refusal(Exception):
    """What a template says when it calls raise_exception."""


def _raise(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
