"""Whose grants `mesh serve` takes: flags, a `mesh.toml`, and what is wrong with either before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.cli.granted import Granted
from mesh.errors import TrustFileError, UsageError
from mesh.grant.making import issue
from mesh.grant.text import grant_text
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import steward_text

ISSUER = SigningKey(b"\x31" * 32)
KEY = steward_text(ISSUER.public)


def test_without_issuers_no_grant_is_taken() -> None:
    assert Granted().authenticators() == []


def test_issuers_are_keys_and_trust_files(tmp_path: Path) -> None:
    file, revoked = tmp_path / "issuers", tmp_path / "revoked"
    file.write_text(f"{KEY}\n")
    revoked.write_text("")
    grant = grant_text(issue(ISSUER, {}, random=bytes))
    for issuers in ((KEY,), (str(file),)):
        (tokens,) = Granted(issuers, revoked).authenticators()
        credential = tokens.authenticate(grant)
        assert credential is not None
        assert credential.caller.startswith("grant:")


def test_what_cannot_be_followed_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without an issuer"):
        Granted((), tmp_path / "revoked").authenticators()
    with pytest.raises(TrustFileError, match="--issuer: expected a key, ed25519:<64 lower-case hex>, got "):
        Granted(("ed25519:00",)).authenticators()
    with pytest.raises(FileNotFoundError):
        Granted((KEY,), tmp_path / "revoked").authenticators()


def test_serve_checks_its_grants(mesh, tmp_path: Path) -> None:
    check = ("serve", "--reference", "--state", tmp_path / "state", "--check", "--json")
    assert mesh(*check, "--issuer", KEY).json["faults"] == []
    assert mesh(*check, "--issuer", KEY, "--host", "192.0.2.1").json["faults"] == []  # a grant is asked for
    missing = mesh(*check, "--issuer", KEY, "--revoked", tmp_path / "revoked")
    assert missing.code == 2
    assert "no such file" in missing.json["faults"][0]
    config = tmp_path / "mesh.toml"
    config.write_text(
        f'[grants]\nissuers = ["{KEY}", "issuers"]\nrevoked = "revoked"\n[[backend]]\nkind = "reference"\n'
    )
    (tmp_path / "issuers").write_text(f"{KEY}\n")
    told = ("serve", "--config", config, "--check", "--json")
    assert mesh(*told).code == 2
    (tmp_path / "revoked").write_text("")
    assert mesh(*told).code == 0
    assert mesh(*told, "--issuer", KEY).code == 2


def test_issuer_that_is_no_key_is_told_by_where_it_stands(mesh, tmp_path: Path) -> None:
    config, file = tmp_path / "mesh.toml", tmp_path / "issuers"
    for issuer, named in (("ed25519:12", ""), ("issuers", f" {file}")):
        file.write_text("steward\n")
        config.write_text(f'[grants]\nissuers = ["{issuer}"]\n[[backend]]\nkind = "reference"\n')
        result = mesh("serve", "--config", config, "--check", "--json")
        assert result.code == 2
        (fault,) = result.json["faults"]
        assert fault.startswith(f"{config}: grants.issuers{named}: ")
        assert "expected a key, ed25519:<64 lower-case hex>, got " in fault
        assert "steward:" not in fault
