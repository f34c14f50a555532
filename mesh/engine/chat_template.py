"""The text of a conversation as a model was trained to read it, from the template in its file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from mesh.errors import BadRequest, EngineUnsupported

TOOL_FORMS: Final = ("hermes", "llama3")


class ChatTemplate:
    """A Jinja template with the names that published templates rely on. It comes with a file from strangers and gets
    text from other strangers, so it runs sandboxed, and in a process of its own (`template_child`): the sandbox bounds
    what it reaches, but neither its time nor its memory. `bos` and `eos` are the spelling of the control tokens, and
    `fault` is what is wrong with it, None where it parses.

    `tool_form` is how it tells a model to call tools: `hermes` (`<tool_call>` tags), `llama3` (bare JSON with
    `parameters`); None where it takes no tools or shows a form that is not known here.

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
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self.fault: str | None = None
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self.tool_form: str | None = None
        try:
            self._template = environment.from_string(source)
            if "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source)):
                self.tool_form = _tool_form(source)
        except Exception as e:  # noqa: BLE001 - a template's own fault, whatever it is, is told to those who chat
            self.fault = f"chat template: does not parse: {str(e) or type(e).__name__}"

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The prompt text up to where the assistant speaks. Blocks for as long as the template takes. Raises
        BadRequest, code `template_error`, with the template's own words where it refuses; MemoryError."""
        if self.fault is not None:
            raise BadRequest(self.fault, code="template_error", param="messages")
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
        except MemoryError:
            raise
        except Exception as e:  # noqa: BLE001 - as above: a template can fail in every way Python can
            raise BadRequest(
                f"chat template: {str(e) or type(e).__name__}", code="template_error", param="messages"
            ) from None
        return rendered


def _tool_form(source: str) -> str | None:
    if "<tool_call>" in source:
        return "hermes"
    return "llama3" if '"parameters"' in source and "ipython" in source else None


class _Refusal(Exception):
    """What a template says when it calls raise_exception."""


def _raise(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
