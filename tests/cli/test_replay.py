"""`mesh replay` on the reference engine; the decision table itself is tested where it lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.replay.verdict import Verdict, field_diverged, not_replayable, output_diverged, verified
from mesh.schema.disclosure import Disclosure, pack_ids


@pytest.fixture
def disclosure_file(made, tmp_path: Path) -> Path:
    path = tmp_path / "disclosure.cbor"
    path.write_bytes(made.disclosures[0].to_cbor())
    return path


def test_replay_verifies_on_a_fresh_engine(mesh, trusted, receipt_file, disclosure_file) -> None:
    argv = ("replay", receipt_file, disclosure_file, "--trust", trusted, "--reference")
    result = mesh(*argv)
    assert (result.code, result.out) == (0, "Verified by decode, prompt: checked, output: matches\n")
    told = mesh(*argv, "--json").json
    assert (told["verdict"], told["output"], told["receipt_id"][:3]) == ("verified", "matches", "b3:")


def test_replay_of_a_changed_answer_differs(mesh, trusted, made, receipt_file, tmp_path: Path) -> None:
    ids = made.disclosures[0].output_ids
    changed = Disclosure.from_map(made.disclosures[0].to_map() | {"output": pack_ids([*ids[:-1], ids[-1] ^ 1])})
    path = tmp_path / "changed.cbor"
    path.write_bytes(changed.to_cbor())
    result = mesh("replay", receipt_file, path, "--trust", trusted, "--reference")
    assert result.code == 10
    assert "output: differs" in result.out


@pytest.mark.parametrize(
    ("extra", "reason"), [(("--name", "another"), "other-recipe"), (None, "no-opening")], ids=["engine", "disclosure"]
)
def test_replay_that_cannot_be_decided(mesh, trusted, receipt_file, disclosure_file, extra, reason: str) -> None:
    given = [receipt_file] if extra is None else [receipt_file, disclosure_file, *extra]
    result = mesh("replay", *given, "--trust", trusted, "--reference")
    assert result.code == 11
    assert result.out.startswith(f"NotReplayable({reason})")


def test_replay_of_an_untrusted_or_broken_receipt_loads_no_engine(
    mesh, trusted, stranger, receipt_file, disclosure_file, tmp_path: Path
) -> None:
    engine = ("--gguf", tmp_path / "there is no such model")
    assert mesh("replay", receipt_file, disclosure_file, "--trust", stranger, *engine).code == 11
    receipt_file.write_bytes(receipt_file.read_bytes() + b"\x00")
    assert mesh("replay", receipt_file, disclosure_file, "--trust", trusted, *engine).code == 10


def test_replay_of_a_broken_disclosure_is_malformed(mesh, trusted, receipt_file, disclosure_file) -> None:
    argv = ("replay", receipt_file, disclosure_file, "--trust", trusted, "--reference")
    data = disclosure_file.read_bytes()
    for broken in (b"", data[:-1], data + b"\x00", b"\xff" * 64):
        disclosure_file.write_bytes(broken)
        result = mesh(*argv)
        assert (result.code, result.out) == (10, "")


def test_replay_is_told_a_grammar_by_file(mesh, trusted, receipt_file, disclosure_file, tmp_path: Path) -> None:
    path = tmp_path / "grammar.gbnf"
    path.write_bytes(b"\xff")
    argv = ("replay", receipt_file, disclosure_file, "--trust", trusted, "--reference", "--grammar", path)
    broken = mesh(*argv)
    assert (broken.code, "utf-8" in broken.err) == (2, True)
    path.write_text('root ::= "a"')
    useless = mesh(*argv)
    assert (useless.code, "follows none" in useless.err) == (2, True)


def test_replay_is_of_one_receipt(mesh, trusted, receipt_file, disclosure_file) -> None:
    files = [receipt_file, disclosure_file, receipt_file, disclosure_file]
    several = mesh("replay", *files, "--trust", trusted, "--reference")
    assert (several.code, several.err) == (
        2, f"mesh replay: one receipt and one disclosure, and {str(receipt_file)!r} is behind them: many are for "
        "`mesh audit`\n",
    )  # fmt: skip
    behind = ("--trust", trusted, "--reference", "--", "--enforce-eager")
    for argv in ([*files[:2], *behind], [*behind[:3], *files[:2], *behind[3:]]):
        flags = mesh("replay", *argv)
        assert (flags.code, "what follows -- does not apply to --reference" in flags.err) == (2, True)


def test_replay_without_an_engine_is_wrong_usage(mesh, trusted, receipt_file, disclosure_file) -> None:
    assert mesh("replay", receipt_file, disclosure_file, "--trust", trusted).code == 2


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (
            verified(10, "decode", prompt="unchecked", output="not-given", cut=True),
            "Verified by decode, prompt: unchecked, output: not-given, ending: cut, not judged",
        ),
        (field_diverged(5, "tokens_out", "9 claimed"), "Diverged: tokens_out is not true (9 claimed)"),
        (
            output_diverged(15, first_difference=3, served=7, replayed=None, margin=0.25),
            "Diverged at output token 3: served id 7, replayed the end, margin 0.250000",
        ),
        (
            output_diverged(15, first_difference=0, served=None, replayed=1, margin=None),
            "Diverged at output token 0: served the end, replayed id 1, margin unknown",
        ),
        (not_replayable(14, "tie", detail="at 3"), "NotReplayable(tie) (at 3)"),
        (not_replayable(3, "no-commitment"), "NotReplayable(no-commitment)"),
    ],
)
def test_verdict_in_words(verdict: Verdict, words: str) -> None:
    from mesh.cli.words import verdict_words

    assert verdict_words(verdict) == words
