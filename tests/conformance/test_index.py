"""The index says all that a runner needs, and what it names is there: in the folders, in SPEC.md, in PROTOCOL.md."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict

from conformance.case import ACCEPT, REJECT
from conformance.client import FEATURES, Client
from conformance.index import read_index
from conformance.regenerate import CLASSES, ROOT, VECTORS
from tests.support.vector_cases import cases

QUESTIONS, _ = read_index(VECTORS)
SPEC = (ROOT / "SPEC.md").read_text()
PROTOCOL = (ROOT / "conformance" / "PROTOCOL.md").read_text()
SECTIONS: dict[str, str] = dict(re.findall(r'<a id="([a-z]+)"></a>\n(.*?)(?=<a id="|\Z)', SPEC, re.DOTALL))


def test_index_has_every_folder_once():
    folders = {path.parent.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("vector.json")}
    assert [question.id for question in QUESTIONS] == [case.id for case in cases()]
    assert folders == {case.id for case in cases()}
    assert len(folders) == len(cases())


def test_there_are_enough_and_most_are_negative():
    exits = Counter(case.exit for case in cases())
    assert set(exits) == {ACCEPT, REJECT}
    assert len(cases()) >= 150
    assert exits[REJECT] > exits[ACCEPT]


def test_folders_say_the_same_as_the_index():
    for question in QUESTIONS:
        folder = VECTORS / question.id
        told = json.loads((folder / "vector.json").read_text())
        assert told["id"] == question.id
        assert (told["op"], *told["arguments"]) == question.words, question.id
        assert told["exit"] == question.exit, question.id
        assert told.get("expect") == question.answer, question.id
        assert told["spec"] == question.spec, question.id
        assert str(told.get("rule", "-")) == question.rule, question.id
        assert told.get("feature") == question.feature, question.id
        assert told["comment"].endswith("."), question.id


def test_folders_hold_what_their_case_reads_and_no_more():
    for question in QUESTIONS:
        there = {path.name for path in (VECTORS / question.id).iterdir()}
        inputs = {name for name in there if not name.endswith((".json", ".diag"))}
        words = (part for word in question.words for part in word.split("+"))
        named = {word for word in words if re.search(r"\.(cbor|bin|txt)\Z", word)}
        assert inputs == named, question.id


def test_index_is_plain_enough_for_a_shell():
    for line in (VECTORS / "INDEX.tsv").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split("\t")
        assert len(fields) == 8
        assert all(fields)
        assert all(field == field.strip() for field in fields)
        assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", fields[0])
        assert not set(line) & set("*?[]\\'\"$`")


def test_every_case_names_a_section_and_one_of_its_steps():
    for case in cases():
        text = SECTIONS[case.spec]
        if case.spec == "replay":
            assert f"\n| {case.rule} |" in text, case.id
        elif case.rule is not None:
            assert re.search(rf"^{case.rule}\. ", text, re.MULTILINE), case.id


def test_every_step_of_a_list_has_a_case():
    named = defaultdict(set)
    for case in cases():
        named[case.spec].add(case.rule)
    for anchor, text in SECTIONS.items():
        lists = re.findall(r"To verify[^\n]*(?:\n[^\n]+)*:\n\n((?:\d+\. .*\n(?: {3}.*\n)*)+)", text)
        assert len(lists) == len(re.findall(r"\bTo verify\b", text)), anchor
        steps = {int(number) for one in lists for number in re.findall(r"^(\d+)\. ", one, re.MULTILINE)}
        assert steps <= named[anchor], f"{anchor}: no case for {sorted(steps - named[anchor])}"
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", SECTIONS["replay"], re.MULTILINE)}
    assert rows - named["replay"] == {8}


def test_every_section_with_a_must_has_a_case():
    named = {case.spec for case in cases()}
    assert {anchor for anchor, text in SECTIONS.items() if re.search(r"\bMUST\b", text)} <= named


def test_every_step_of_a_list_ends_in_a_class():
    """Its own, or the one that the list is headed by."""
    classes = "|".join(name for name, _, _ in CLASSES)
    for anchor, text in SECTIONS.items():
        for head, steps in re.findall(
            r"(\bTo verify.*(?:\n.+)*?:)\n\n((?:\d+\. .*\n(?: {3}.*\n)*)+)", text, re.MULTILINE
        ):
            for step in re.split(r"^(?=\d+\. )", steps, flags=re.MULTILINE)[1:]:
                named = re.findall(rf"else `({classes})`\.?", step) + re.findall(rf"\A\d+\. `({classes})`: ", step)
                for_all = re.findall(rf"each\s+fault\s+is\s+`({classes})`", head)
                assert len(named) == 1 or (not named and len(for_all) == 1), f"{anchor}: {step}"


def test_errors_are_those_of_the_spec():
    of_spec = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (\d+) \|$", SECTIONS["errors"], re.MULTILINE)
    assert [(name, int(code), meaning) for name, meaning, code in of_spec] == list(CLASSES)
    told = (VECTORS / "errors.tsv").read_text().splitlines()
    assert [tuple(line.split("\t")) for line in told] == [(a, str(b), c) for a, b, c in CLASSES]
    used = {case.answer for case in cases() if case.exit == REJECT}
    assert {name for name, _, _ in CLASSES} - used == {"model-file"}


def test_operations_and_features_are_those_of_the_protocol():
    told = set(re.findall(r"^\| `([a-z-]+) ", PROTOCOL, re.MULTILINE))
    assert told == {case.op for case in cases()} == set(Client(VECTORS)._operations)
    assert {case.feature for case in cases()} - {None} == set(FEATURES)
    assert all(f"\n| `{name}` |" in PROTOCOL for name in FEATURES)


def test_worked_receipt_of_the_spec_is_a_vector():
    printed = re.search(r"```hex\n(.*?)```", SECTIONS["worked"], re.DOTALL)
    assert printed
    assert (VECTORS / "envelope/worked/input.cbor").read_bytes() == bytes.fromhex(printed[1])
