"""Users of the embedded broker: what is stored of a password, and who may change the file."""

from __future__ import annotations

import base64
import json
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from ingestd.broker.security.credentials import Credential, Mechanism, credential_of
from ingestd.broker.security.users import Users
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

PASSWORD = "correct horse"
SHA_256, SHA_512 = Mechanism


def test_a_credential_is_that_of_the_example_in_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = base64.b64decode("xKSVEDI6tPlSysH6mUQZOeeOp01r6B3fcJbodRPcYV0=")
    credential = Credential.of_salted(SHA_256, 4096, salt, salted)
    assert credential.proven_by("pencil")
    bare = "n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    signed = f"{bare},{first},{final}".encode()
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert credential.accepts(proof, signed)
    assert not credential.accepts(proof, signed + b"x")
    assert not credential.accepts(proof[:-1], signed)
    assert base64.b64encode(credential.signature(signed)) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("password", [PASSWORD, 'p=,"\\ﬁ ü™', "ü"])
def test_the_password_proves_a_credential_and_no_other_does(mechanism: Mechanism, password: str) -> None:
    credential = credential_of(mechanism, password)
    assert credential.proven_by(password)
    assert not credential.proven_by(password + " ")
    assert not credential.proven_by("\ud800")
    assert credential_of(mechanism, password).salt != credential.salt


def test_the_file_has_no_password_and_is_its_owners_alone(tmp_path: Path) -> None:
    users = Users(tmp_path / "data")
    users.change(lambda all_users: all_users.update({"me": {SHA_512: credential_of(SHA_512, PASSWORD)}}))
    file = tmp_path / "data" / "users.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert PASSWORD not in file.read_text()
    assert list(json.loads(file.read_text())["users"]["me"]["SCRAM-SHA-512"]) == [
        "iterations",
        "salt",
        "stored_key",
        "server_key",
    ]


def test_nothing_shows_a_key() -> None:
    credential = credential_of(SHA_256, PASSWORD)
    assert repr(credential) == "Credential(mechanism=<Mechanism.scram_sha_256: 1>, iterations=8192)"


def test_what_another_process_writes_is_seen_at_once(tmp_path: Path) -> None:
    here, there = Users(tmp_path), Users(tmp_path)
    assert here.of("me") == {}
    there.change(lambda users: users.update({"me": {SHA_512: credential_of(SHA_512, "first")}}))
    assert here.of("me")[SHA_512].proven_by("first")
    there.change(lambda users: users.update({"me": {SHA_512: credential_of(SHA_512, "other")}}))
    assert here.of("me")[SHA_512].proven_by("other")
    there.change(lambda users: users.pop("me"))  # type: ignore[arg-type, return-value]
    assert here.all() == {}


def test_a_user_without_credentials_is_gone(tmp_path: Path) -> None:
    users = Users(tmp_path)
    users.change(lambda all_users: all_users.update({"me": {}}))
    assert users.all() == {}


def test_no_change_is_lost_among_those_who_make_them_at_once(tmp_path: Path) -> None:
    credential = {SHA_256: Credential(SHA_256, 4096, b"s", b"k", b"k")}

    def add(first: int) -> None:
        users = Users(tmp_path)
        for number in range(first, first + 20):
            users.change(lambda all_users, name=f"user-{number}": all_users.update({name: credential}))  # type: ignore[misc]

    adding = [threading.Thread(target=add, args=(first,)) for first in (0, 20, 40)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert set(Users(tmp_path).all()) == {f"user-{number}" for number in range(60)}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 1}',
        '{"format": 2, "users": {}}',
        '{"format": 1, "users": {"me": {"SCRAM-SHA-256": "hunter2"}}}',
        '{"format": 1, "users": {"me": {"SCRAM-SHA-256": {"salt": "hunter2", "stored_key": "", "server_key": ""}}}}',
    ],
)
def test_a_file_of_another_kind_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "users.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"users\.json: ") as refused:
        Users(tmp_path).all()
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
    with pytest.raises(ConfigurationError):
        Users(tmp_path).change(lambda users: users.clear())
    assert (tmp_path / "users.json").read_text() == content
