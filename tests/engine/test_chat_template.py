from __future__ import annotations

import datetime

import pytest

from mesh.engine.chat_template import ChatTemplate
from mesh.errors import BadRequest
from tests.support.tiny_gguf import CHATML, CHATML_WITHOUT_SYSTEM

ASK = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, object]] | None = None) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(ASK if messages is None else messages)


def test_a_conversation_ends_where_the_assistant_speaks() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi</s>"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{{ {'a': 'ü<'} | tojson }}", '{"a": "ü<"}'),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
    ids=["tokens", "no-tools", "tojson", "loop-controls", "trimmed-blocks", "namespace"],
)
def test_a_template_finds_what_published_ones_rely_on(source: str, text: str) -> None:
    assert render(source) == text


def test_a_template_may_ask_for_the_date() -> None:
    before = datetime.datetime.now().astimezone().year
    assert before <= int(render("{{ strftime_now('%Y') }}")) <= before + 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (CHATML_WITHOUT_SYSTEM, "System role not supported"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ messages[0].nothing.at_all }}", "nothing"),
        ("{{ messages[0].__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
        ("{{ '\\ud800' }}", "surrogates"),
        ("{% if %}", "does not parse"),
        ("{% generation %}", "does not parse"),
    ],
)
def test_a_template_that_fails_is_the_requests_fault_in_its_own_words(source: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        render(source, [{"role": "system", "content": "be kind"}])
    assert caught.value.code == "template_error"


def test_rendering_leaves_the_messages_as_they_were() -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    render(CHATML, messages)
    assert messages == ASK
