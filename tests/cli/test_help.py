"""The help texts: every command and option has one, none is wide, and `--json` is where something is printed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from mesh.cli.main import parser

MAX_COLUMNS = 100


def walk(words: tuple[str, ...], at: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield " ".join(words), at
    for name, below in children(at).items():
        yield from walk((*words, name), below)


def children(at: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [action for action in at._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for group in groups for name, below in group.choices.items()}


COMMANDS = dict(walk((), parser()))
LEAVES = [words for words, at in COMMANDS.items() if not children(at)]


@pytest.mark.parametrize("words", COMMANDS)
def test_help_says_something_of_every_part(words: str) -> None:
    for action in COMMANDS[words]._actions:
        if isinstance(action, argparse._SubParsersAction):
            helped = {choice.dest: choice.help for choice in action._choices_actions}
            assert set(helped) == set(action.choices)
            assert all(helped.values()), helped
        else:
            assert action.help, action
            assert action.help != argparse.SUPPRESS, action


@pytest.mark.parametrize("columns", ["20", "80", "400"])
@pytest.mark.parametrize("words", COMMANDS)
def test_help_is_printed_and_never_wide(mesh, words: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = mesh(*words.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert max(len(line) for line in result.out.splitlines()) <= MAX_COLUMNS
    assert result.out.startswith(f"usage: mesh {words}".rstrip())


@pytest.mark.parametrize("words", LEAVES)
def test_command_has_json(words: str) -> None:
    (action,) = [action for action in COMMANDS[words]._actions if "--json" in action.option_strings]
    assert action.help is not None
    assert action.help.startswith("print one JSON object")


@pytest.mark.parametrize("words", COMMANDS)
def test_unknown_option_is_named_and_refused(mesh, words: str) -> None:
    result = mesh(*words.split(), "--no-such-option")
    assert (result.code, result.out) == (2, "")
    # a command that lacks what it needs says that first
    assert "--no-such-option" in result.err or "required" in result.err
