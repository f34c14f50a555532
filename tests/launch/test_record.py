"""The launch record: made of what was launched, signed, and refused when a byte of it is another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import cbor2
import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.errors import EnvelopeError, LaunchError, PayloadError, SignatureError, UntrustedSteward
from mesh.launch.config import load_config
from mesh.launch.plan import Plan, make_plan
from mesh.launch.record import HIDDEN, LaunchRecord, keep, make_record, read_record
from mesh.launch.selection import Wish, choose
from mesh.schema import canonical, cose
from mesh.schema.envelope import LAUNCH_TYPE, SigningKey
from mesh.schema.ids import ContentId, steward_text
from mesh.steward.described import describe
from tests.launch.recipes import CLUSTERS, COMMIT, DIGEST, PINNED, recipe_file

KEY = SigningKey(b"\x07" * 32)
FACTS = {"a": {"weights": "aa x", "image": "sha256:1 []"}, "b": {"weights": "aa x", "image": "sha256:1 []"}}


def made(
    tmp_path: Path, text: str = PINNED, facts: Mapping[str, Mapping[str, str]] = FACTS
) -> tuple[LaunchRecord, Plan]:
    path = tmp_path / "launch.toml"
    path.write_text(CLUSTERS)
    loaded, file = load_config(path), recipe_file(text)
    plan = make_plan(loaded.config, file, choose(loaded.config, file.recipe, Wish("2nodes")), run="r1")
    return make_record(plan, loaded, facts, model="org/model", launched_ns=5, key=KEY), plan


def signed(fields: dict[str, object], subject: str = "test") -> bytes:
    claims = {1: steward_text(KEY.public), 2: subject}
    protected = cose.canonical_header({1: -19, 3: LAUNCH_TYPE, 4: KEY.public, 15: claims})
    payload = canonical.encode(fields)
    return cose.assemble(protected, cose.NO_HEADER, payload, KEY.sign(cose.to_be_signed(protected, payload)))


def test_record_holds_every_rank_and_is_read_back(tmp_path: Path) -> None:
    record, plan = made(tmp_path)
    read = read_record(record.data, frozenset((KEY.public,)))
    assert read.digest == record.digest
    assert read.fields == record.fields
    ranks = read.fields["ranks"]
    assert [tuple(rank["argv"]) for rank in ranks] == [rank.argv for rank in plan.ranks]
    assert ranks[1]["environment"] == dict(plan.ranks[1].environment)
    assert ranks[0]["found"] == {"weights": ContentId.of_bytes(b"aa x").text, "image": "sha256:1 []"}
    assert (read.fields["model_revision"], read.fields["image"]) == (COMMIT, f"registry.example/img@{DIGEST}")
    assert read.fields["recipe_digest"] == ContentId.of_bytes(plan.file.data)


def test_digest_is_of_what_is_in_force_and_moves_with_any_of_it(tmp_path: Path) -> None:
    one, _ = made(tmp_path)
    again, _ = made(tmp_path)
    other, _ = made(tmp_path, PINNED.replace('"fp8"', '"fp4"'))
    assert one.digest == again.digest
    assert one.digest != other.digest


def test_secret_is_named_and_not_kept(tmp_path: Path) -> None:
    record, _ = made(tmp_path, PINNED + '[env]\nHF_TOKEN = "hf_abc"\n')
    assert b"hf_abc" not in record.data
    assert record.fields["ranks"][0]["environment"]["HF_TOKEN"] == HIDDEN


def test_what_hooks_and_copies_print_is_not_kept(tmp_path: Path) -> None:
    more = {"before_serve": "hf_abc", "stage org/model": "copied x\n" * 10**6}
    said = {name: {**found, **more} for name, found in FACTS.items()}
    record, _ = made(tmp_path, facts=said)
    assert set(record.fields["ranks"][0]["found"]) == {"weights", "image"}
    assert b"hf_abc" not in record.data


def test_other_bytes_or_another_signer_are_refused(tmp_path: Path) -> None:
    record, _ = made(tmp_path)
    for at in range(0, len(record.data), 97):
        damaged = bytearray(record.data)
        damaged[at] ^= 1
        with pytest.raises(EnvelopeError):
            read_record(bytes(damaged))
    with pytest.raises(SignatureError):
        read_record(record.data[:-1] + bytes((record.data[-1] ^ 1,)))
    with pytest.raises(UntrustedSteward):
        read_record(record.data, frozenset((b"\x01" * 32,)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"extra": 1}, PayloadError),
        ({"v": "mesh/2"}, PayloadError),
        ({"signer": b"\x01" * 32}, PayloadError),
        ({"recipe": "another"}, PayloadError),
    ],
)
def test_signed_record_that_is_none_is_refused(
    tmp_path: Path, change: dict[str, object], error: type[EnvelopeError]
) -> None:
    record, _ = made(tmp_path)
    read_record(signed(dict(record.fields)))
    with pytest.raises(error):
        read_record(signed({**record.fields, **change}))
    with pytest.raises(PayloadError, match="run: missing"):
        read_record(signed({name: value for name, value in record.fields.items() if name != "run"}))


@pytest.mark.parametrize("data", [b"", b"\x80", cbor2.dumps(cbor2.CBORTag(18, [b"", {}, b"", b"\x00" * 64]))])
def test_what_is_no_record_at_all_is_an_envelope_error(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        read_record(data)


def test_record_is_kept_with_the_bytes_that_it_names(tmp_path: Path) -> None:
    record, plan = made(tmp_path)
    config = load_config(tmp_path / "launch.toml")
    path = keep(tmp_path / "run", record, plan, config, FACTS)
    assert path.read_bytes() == record.data
    assert (tmp_path / "run" / "recipe.toml").read_bytes() == plan.file.data
    assert (tmp_path / "run" / "config-0.toml").read_text() == CLUSTERS
    assert (tmp_path / "run" / "weights-a.txt").read_text() == "aa x"


def test_engine_block_names_the_record_that_its_gateway_was_given(tmp_path: Path) -> None:
    record, _ = made(tmp_path)
    block = describe(ReferenceEngine("reference"), deterministic=True, launch=bytes(record.digest)).block
    assert block.launch_digest == record.digest
    assert describe(ReferenceEngine("reference"), deterministic=True).block.launch_digest is None


def test_record_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    record, plan = made(tmp_path)
    loaded = load_config(tmp_path / "launch.toml")
    facts = {"n/1": FACTS["a"]}  # of a name that no file can have, where no disk can be full
    with pytest.raises(LaunchError, match=r"runs/r1: what is launched could not be kept: no such file or directory"):
        keep(tmp_path / "runs" / "r1", record, plan, loaded, facts)
    assert list((tmp_path / "runs").iterdir()) == []
    assert keep(tmp_path / "runs" / "r1", record, plan, loaded, FACTS).read_bytes() == record.data
    with pytest.raises(LaunchError, match="file exists"):  # of another run, which is left as it is
        keep(tmp_path / "runs" / "r1", record, plan, loaded, FACTS)
    assert (tmp_path / "runs" / "r1" / "launch.record").is_file()
