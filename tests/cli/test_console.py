from __future__ import annotations

import json

from mesh.cli.console import emit, json_safe, note, printable, printable_text, say


def test_json_keeps_what_a_double_holds_and_spells_out_the_rest() -> None:
    values = {"a": 2**53 - 1, "b": 2**53, "c": -(2**53), "d": [2**64 - 1, True, None], "e": 0.1, "f": 1e-7}
    assert json_safe(values) == {
        "a": 9007199254740991,
        "b": "9007199254740992",
        "c": "-9007199254740992",
        "d": ["18446744073709551615", True, None],
        "e": "0.1",
        "f": "0.0000001",
    }


def test_emit_prints_one_object_in_ascii(capsys) -> None:
    emit({"text": "größe \u202e \x1b", "n": 1})
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == {"text": "größe \u202e \x1b", "n": 1}


def test_say_and_note_escape_what_would_drive_a_terminal(capsys) -> None:
    say("one\x1b[31m\ntwo\u202e")
    note("an error\nof two lines \x07")
    captured = capsys.readouterr()
    assert captured.out == "one\\x1b[31m\ntwo\\u202e\n"
    assert captured.err == "an error of two lines \\x07\n"


def test_printable_leaves_names_alone() -> None:
    assert printable("größe 模型 [red]") == "größe 模型 [red]"
    assert printable_text("a\tb\nc\x1b[0m") == "a\tb\nc\\x1b[0m"
