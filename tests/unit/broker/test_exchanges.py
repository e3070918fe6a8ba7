"""The broker's side of SASL: whatever a client says, it is either proven to be a user or refused."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.broker.security.credentials import FEWEST_ITERATIONS, Mechanism, credential_of
from ingestd.broker.security.exchanges import MECHANISMS, begin_exchange
from ingestd.broker.security.settings import SecuritySettings
from ingestd.broker.security.users import Users
from ingestd.errors import AuthenticationFailed, ConfigurationError
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.wire.sasl.mechanism import SaslMechanism

USER, PASSWORD, WRONG = "m,e=x", "correct horse", "hunter2"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    made = Users(tmp_path_factory.mktemp("users"))
    credentials = {mechanism: credential_of(mechanism, PASSWORD, FEWEST_ITERATIONS) for mechanism in Mechanism}
    made.change(lambda all_users: all_users.update({USER: credentials}))
    return made


def account(mechanism: str, user: str, password: str) -> SaslMechanism:
    if mechanism == "PLAIN":
        return Plain(user, password)
    return Scram(user, password, "SHA-256" if mechanism.endswith("256") else "SHA-512")


async def authenticate(users: Users, mechanism: str, user: str, password: str) -> tuple[str | None, list[bytes]]:
    """The client against the broker's exchange: the user that was proven, and what the client said."""
    client = await account(mechanism, user, password).begin()
    exchange = begin_exchange(mechanism, users)
    heard: bytes | None = None
    sent: list[bytes] = []
    proven = None
    while True:
        try:
            message = next(client) if heard is None else client.send(heard)
        except StopIteration:
            return proven, sent
        sent.append(message)
        said = await exchange.take(message)
        heard, proven = said.message, said.user


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_whoever_knows_the_password_is_proven(users: Users, mechanism: str) -> None:
    proven, sent = await authenticate(users, mechanism, USER, PASSWORD)
    assert proven == USER
    assert any(PASSWORD.encode() in message for message in sent) is (mechanism == "PLAIN")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [(USER, WRONG), ("nobody", PASSWORD), (USER, PASSWORD.upper())])
async def test_anybody_else_is_refused_and_the_password_is_not_shown(
    users: Users, mechanism: str, user: str, password: str
) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        await authenticate(users, mechanism, user, password)
    assert password not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_users_removal_ends_its_next_authentication(tmp_path: Path, mechanism: str) -> None:
    users = Users(tmp_path)
    users.change(lambda all_users: all_users.update({USER: {one: credential_of(one, PASSWORD) for one in Mechanism}}))
    assert (await authenticate(users, mechanism, USER, PASSWORD))[0] == USER
    users.change(lambda all_users: all_users.clear())
    with pytest.raises(AuthenticationFailed):
        await authenticate(users, mechanism, USER, PASSWORD)


PIECES = [
    *(b"n,", b"y,", b"p=x,", b",", b"a=", b"n=", b"r=", b"abc", b"c=biws", b",p=", b"AAAA", b"tokenauth=true"),
    *(b"m=2Ce=3Dx", USER.encode(), PASSWORD.encode(), b"\0", b"=", b"\xff", b"%" * 300),
]


@given(st.sampled_from(MECHANISMS), st.lists(st.lists(st.sampled_from(PIECES)).map(b"".join), min_size=1, max_size=3))
async def test_any_messages_end_in_a_user_or_in_a_refusal(users: Users, mechanism: str, messages: list[bytes]) -> None:
    exchange = begin_exchange(mechanism, users)
    for message in messages:
        try:
            said = await exchange.take(message)
        except AuthenticationFailed:
            return
        if said.user is not None:
            # Only who sends the password gets so far by chance.
            assert (mechanism, said.user) == ("PLAIN", USER)
            assert message.endswith(b"\0" + PASSWORD.encode())
            return


async def test_a_proof_is_good_for_one_exchange(users: Users) -> None:
    """Whoever has recorded both sides of one cannot repeat it: the nonce of the broker is another one."""
    _, (first, final) = await authenticate(users, "SCRAM-SHA-256", USER, PASSWORD)
    exchange = begin_exchange("SCRAM-SHA-256", users)
    await exchange.take(first)
    with pytest.raises(AuthenticationFailed):
        await exchange.take(final)


def test_only_known_mechanisms_and_whole_settings_of_tls_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'GSSAPI' is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        SecuritySettings(mechanisms=("GSSAPI",))
    with pytest.raises(ConfigurationError, match="tls client_ca: expected a certificate beside it"):
        SecuritySettings(client_ca=tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "kafka.example", "fe80::1%eth0"])
def test_a_listener_that_others_reach_has_tls_and_authentication(tmp_path: Path, host: str) -> None:
    enough = [
        SecuritySettings(tmp_path, mechanisms=("PLAIN",)),
        SecuritySettings(tmp_path, client_ca=tmp_path),
    ]
    for settings in enough:
        settings.check_reach(host)
    too_little = [
        (SecuritySettings(), r"no TLS \(--tls-certificate\) and no authentication of clients \(--sasl\);"),
        (SecuritySettings(tmp_path), r"no authentication of clients \(--sasl\);"),
        (SecuritySettings(mechanisms=("SCRAM-SHA-512",)), r"no TLS \(--tls-certificate\);"),
    ]
    for settings, lacks in too_little:
        with pytest.raises(ConfigurationError, match=lacks):
            settings.check_reach(host)
        for near in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
            settings.check_reach(near)
