"""SASL mechanisms: what they say, what they accept, and that they show no secret."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pickle
import ssl
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from harness.certificates import Certificates
from harness.token_endpoint import TokenEndpoint
from scramp import ScramMechanism

from ingestd.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectionLost,
    IngestdError,
    ProtocolError,
    WrongSetting,
)
from ingestd.wire import secret
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.sasl import client_credentials
from ingestd.wire.sasl.client_credentials import ClientCredentials
from ingestd.wire.sasl.oauthbearer import OAuthBearer
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIDDEN = "hunter2"


async def token() -> str:
    return HIDDEN


# Secrets


def test_a_secret_is_read_from_a_file_a_variable_or_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("SECRET_OF_THIS_TEST", "from a variable")
    assert Secret(file=tmp_path / "secret").read() == "from a file"
    assert Secret(environment="SECRET_OF_THIS_TEST").read() == "from a variable"
    assert Secret(value="given").read() == "given"
    (tmp_path / "secret").write_text(" spaces stay \r\n")
    assert Secret(file=tmp_path / "secret").read() == " spaces stay "


@pytest.mark.parametrize("given", [{}, {"value": "a", "environment": "b"}])
def test_a_secret_is_at_exactly_one_place(given: dict[str, str]) -> None:
    with pytest.raises(WrongSetting, match="exactly one of file, environment and value"):
        Secret(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "secret: a secret can not be read: No such file"),
        (b"", "secret: empty or not set"),
        (b"\n", "secret: empty or not set"),
        (b"hunter2\xff", "secret: not UTF-8"),
        (b"hunter2" * 10_000, "secret: longer than 65536 bytes"),
    ],
)
def test_a_file_without_a_secret_is_named_and_not_shown(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        Secret(file=file).read()
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("place", ["environment", "value"])
def test_a_secret_that_is_no_text_is_not_shown(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A password in Latin-1: encoding it would fail with an error whose repr shows all of it."""
    undecodable = f"{HIDDEN}\udce9"
    monkeypatch.setenv("SECRET_OF_THIS_TEST", undecodable)
    secret = Secret(environment="SECRET_OF_THIS_TEST") if place == "environment" else Secret(value=undecodable)
    with pytest.raises(ConfigurationError, match="not UTF-8; expected a secret as text") as caught:
        secret.read()
    assert HIDDEN not in repr(caught.value)
    assert caught.value.__cause__ is None


async def test_a_name_that_can_not_be_encoded_does_not_show_the_password() -> None:
    exchange = await Plain("shipper\udce9", HIDDEN, cleartext=True).begin()
    with pytest.raises(UnicodeEncodeError) as caught:
        next(exchange)
    assert HIDDEN not in repr(caught.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigurationError, match="environment variable NOT_SET_HERE: empty or not set"):
        Secret(environment="NOT_SET_HERE").read()


def test_a_secret_that_everybody_can_read_is_said_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    secret.warn_if_others_can_read.cache_clear()
    file = tmp_path / "secret"
    file.write_text(HIDDEN)
    file.chmod(0o640)
    with caplog.at_level(logging.WARNING, "ingestd"):
        Secret(file=file).read()
        assert not caplog.records
        secret.warn_if_others_can_read.cache_clear()
        file.chmod(0o644)
        Secret(file=file).read()
        Secret(file=file).read()
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} (-rw-r--r--): every user of this machine can read the secret in it; chmod o= would end that"
    ]


def test_only_a_secret_that_was_given_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(HIDDEN)
    monkeypatch.setenv("SECRET_OF_THIS_TEST", HIDDEN)
    for place in (Secret(file=tmp_path / "secret"), Secret(environment="SECRET_OF_THIS_TEST")):
        pickled = pickle.dumps(Plain("me", place))
        assert place.read() == HIDDEN
        assert HIDDEN.encode() not in pickled
        assert pickle.loads(pickled) == Plain("me", place)


@pytest.mark.parametrize(
    "holder",
    [
        Secret(value=HIDDEN),
        Plain("me", HIDDEN),
        Scram("me", HIDDEN),
        OAuthBearer(token, {"more": HIDDEN}),
        OAuthBearer(ClientCredentials("https://id.test/token", "me", HIDDEN)),
        ConnectionSettings(tls=TlsSettings(), sasl=Plain("me", HIDDEN)),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_no_secret_is_in_a_repr(holder: object) -> None:
    assert HIDDEN not in repr(holder)
    assert HIDDEN not in str(holder)


# PLAIN


async def test_plain_says_name_and_password() -> None:
    exchange = await Plain("me", "pässword").begin()
    assert next(exchange) == b"\0me\0p\xc3\xa4ssword"
    with pytest.raises(StopIteration):
        exchange.send(b"")


async def test_a_password_is_read_for_every_authentication(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    plain = Plain("me", Secret(file=file))
    for password in ("first", "second"):
        file.write_text(password)
        assert next(await plain.begin()) == f"\0me\0{password}".encode()


@pytest.mark.parametrize("sasl", [Plain("me", HIDDEN), OAuthBearer(token)], ids=["PLAIN", "OAUTHBEARER"])
def test_what_sends_a_secret_as_it_is_needs_tls_or_leave_to_do_without(sasl: Any) -> None:
    with pytest.raises(WrongSetting, match=rf"tls: expected TLS, since {sasl.name} sends a secret") as caught:
        ConnectionSettings(sasl=sasl)
    assert HIDDEN not in str(caught.value)
    ConnectionSettings(sasl=sasl, tls=TlsSettings())
    ConnectionSettings(sasl=Plain("me", HIDDEN, cleartext=True))
    ConnectionSettings(sasl=OAuthBearer(token, cleartext=True))
    ConnectionSettings(sasl=Scram("me", HIDDEN))


@pytest.mark.parametrize("username", ["", "a\0b"])
def test_a_name_that_can_not_be_is_refused(username: str) -> None:
    with pytest.raises(WrongSetting, match="username"):
        Plain(username, "x")


# SCRAM


class ScramBroker:
    """The other side, by scramp; `meddle` changes what it says."""

    def __init__(self, algorithm: str, username: str, password: str, iterations: int = 4096) -> None:
        mechanism = ScramMechanism(f"SCRAM-{algorithm}")
        salt, stored_key, server_key, count = mechanism.make_auth_info(password, iterations)
        known = {username: (salt, stored_key, server_key, count)}
        self.server = mechanism.make_server(known.get)

    def run(self, exchange: Any, *, meddle_first: Any = str, meddle_final: Any = str) -> None:
        self.server.set_client_first(next(exchange).decode())
        client_final = exchange.send(meddle_first(self.server.get_server_first()).encode())
        self.server.set_client_final(client_final.decode())
        with pytest.raises(StopIteration):
            exchange.send(meddle_final(self.server.get_server_final()).encode())


@pytest.mark.parametrize("algorithm", ["SHA-256", "SHA-512"])
@pytest.mark.parametrize("username", ["me", "a=b,c"])
async def test_scram_proves_the_password_to_both_sides(algorithm: Any, username: str) -> None:
    scram = Scram(username, "pencil", algorithm)
    assert (scram.name, scram.needs_tls) == (f"SCRAM-{algorithm}", False)
    ScramBroker(algorithm, username, "pencil").run(await scram.begin())


async def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    """Whoever sits on the broker's address can say yes to anything, but not sign it."""
    forged = "v=" + base64.b64encode(b"x" * 64).decode()
    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-512: the broker's answer is not right") as caught:
        ScramBroker("SHA-512", "me", HIDDEN).run(await Scram("me", HIDDEN).begin(), meddle_final=lambda _: forged)
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (b"r=%s,s=c2FsdHNhbHRzYWx0,i=65537", "more than 65536 iterations"),
        (b"r=%s,s=c2FsdHNhbHRzYWx0,i=99999999999999999999999", "more than 65536 iterations"),
        (b"r=%s,s=c2FsdHNhbHRzYWx0,i=4095", "not right"),
        (b"r=other,s=c2FsdHNhbHRzYWx0,i=4096", "not right"),
        (b"r=%s,i=4096", "not right"),
        (b"\xff", "not right"),
        (b"", "not right"),
        (b"e=unknown-user", "not right"),
    ],
)
async def test_a_first_answer_that_can_not_be_is_refused(server_first: bytes, reason: str) -> None:
    exchange = await Scram("me", HIDDEN).begin()
    nonce = next(exchange).split(b"r=")[1]
    with pytest.raises(AuthenticationFailed, match=reason):
        exchange.send(server_first.replace(b"%s", nonce + b"more"))


# OAUTHBEARER


async def test_a_token_goes_with_its_extensions() -> None:
    exchange = await OAuthBearer(token, {"logicalCluster": "lkc-1"}).begin()
    assert next(exchange) == b"n,,\x01auth=Bearer hunter2\x01logicalCluster=lkc-1\x01\x01"
    with pytest.raises(StopIteration):
        exchange.send(b"")


async def test_a_refused_token_is_acknowledged_and_then_an_error() -> None:
    exchange = await OAuthBearer(token).begin()
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        exchange.send(b"")


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a b": "x"}, {"a": "x\x01y"}, {"a": ""}, {"": "x"}])
def test_an_extension_that_can_not_be_is_refused(extensions: dict[str, str]) -> None:
    with pytest.raises(WrongSetting, match="extensions"):
        OAuthBearer(token, extensions)


@pytest.mark.parametrize("given", ["", "with space", "hunter2\x01auth=Bearer other", None, 7])
async def test_what_is_no_token_is_not_sent_and_not_shown(given: Any) -> None:
    async def provide() -> Any:
        return given

    with pytest.raises(AuthenticationFailed, match="something that is no token") as caught:
        await OAuthBearer(provide).begin()
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (OSError("no route"), ConnectionLost),
        (ValueError("hunter2"), AuthenticationFailed),
        (ProtocolError("as it is"), ProtocolError),
    ],
)
async def test_a_provider_that_fails_is_an_error_of_ours(failure: Exception, error: type[IngestdError]) -> None:
    async def provide() -> str:
        raise failure

    with pytest.raises(error) as caught:
        await OAuthBearer(provide).begin()
    assert HIDDEN not in str(caught.value)


# Client credentials


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as found:
        yield found


def credentials(
    endpoint: TokenEndpoint, client_secret: str = TokenEndpoint.CLIENT_SECRET, **options: Any
) -> ClientCredentials:
    return ClientCredentials(endpoint.url, TokenEndpoint.CLIENT_ID, client_secret, cleartext=True, **options)


async def test_a_token_is_asked_for_once_and_kept_while_it_is_fresh(endpoint: TokenEndpoint) -> None:
    provider = credentials(endpoint, scope="kafka read")
    assert [await provider() for _ in range(3)] == ["token-1"] * 3
    assert endpoint.asked == [{"grant_type": ["client_credentials"], "scope": ["kafka read"]}]


async def test_those_who_need_a_token_at_the_same_time_share_one_request(endpoint: TokenEndpoint) -> None:
    provider = credentials(endpoint)
    assert await asyncio.gather(*(provider() for _ in range(10))) == ["token-1"] * 10


async def test_one_that_gives_up_leaves_the_request_to_the_next(endpoint: TokenEndpoint) -> None:
    provider = credentials(endpoint)
    endpoint.passing.clear()
    hasty, patient = asyncio.create_task(provider()), asyncio.create_task(provider())
    await asyncio.sleep(0.05)
    hasty.cancel()
    await asyncio.sleep(0)
    endpoint.passing.set()
    assert (await patient).startswith("token-")


async def test_a_token_is_renewed_before_it_expires(endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = credentials(endpoint)
    now = time.monotonic()
    for after, expected in ((0, "token-1"), (79, "token-1"), (81, "token-2"), (160, "token-2"), (162, "token-3")):
        monkeypatch.setattr(client_credentials.time, "monotonic", lambda after=after: now + after)
        assert await provider() == expected


async def test_while_the_endpoint_is_away_a_token_serves_to_its_end(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = credentials(endpoint)
    now = time.monotonic()
    monkeypatch.setattr(client_credentials.time, "monotonic", lambda: now)
    await provider()
    endpoint.answer = (503, "busy")
    monkeypatch.setattr(client_credentials.time, "monotonic", lambda: now + 94)
    assert await provider() == "token-1"
    monkeypatch.setattr(client_credentials.time, "monotonic", lambda: now + 96)
    with pytest.raises(ConnectionLost, match="no token: HTTP status 503"):
        await provider()


async def test_a_token_that_a_broker_refused_is_not_given_out_again(endpoint: TokenEndpoint) -> None:
    """An identity provider that was set up anew: brokers take none of its old tokens, however long they would last."""
    bearer = OAuthBearer(provider := credentials(endpoint))
    exchange = await bearer.begin()
    assert b"token-1" in next(exchange)
    exchange.send(b'{"status":"invalid_token"}')
    assert b"token-2" in next(await bearer.begin())
    provider.forget("token-1")  # a refusal that comes late
    assert b"token-2" in next(await bearer.begin())


async def test_a_token_that_is_refused_while_the_next_is_asked_for_is_not_given_out_again(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not fresh any more, so the endpoint is asked; a broker refuses it meanwhile; the endpoint is busy."""
    provider = credentials(endpoint)
    clock = time.monotonic
    await provider()
    monkeypatch.setattr(client_credentials.time, "monotonic", lambda: clock() + 85)

    def respond(_: str | None) -> tuple[int, str]:
        provider.forget("token-1")
        return 503, "busy"

    monkeypatch.setattr(endpoint, "respond", respond)
    with pytest.raises(ConnectionLost, match="no token: HTTP status 503"):
        await provider()


@pytest.mark.parametrize("seconds", [0, None, "soon", [1]])
async def test_a_token_without_a_stated_life_is_not_kept(endpoint: TokenEndpoint, seconds: Any) -> None:
    provider = credentials(endpoint)
    endpoint.seconds = seconds
    assert [await provider(), await provider()] == ["token-1", "token-2"]


async def test_a_wrong_secret_is_a_failed_authentication_that_names_the_endpoint(endpoint: TokenEndpoint) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        await credentials(endpoint, HIDDEN)()
    assert str(caught.value) == f"{endpoint.url}: no token: HTTP status 401 invalid_client: who?"
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, "{}"), ProtocolError),
        ((200, "not JSON"), ProtocolError),
        ((200, '{"access_token": 5}'), ProtocolError),
        ((200, "[" * 100_000), ProtocolError),
        ((200, json.dumps({"access_token": "x" * 300_000})), ProtocolError),
        ((302, ""), AuthenticationFailed),
        ((404, "<html>"), AuthenticationFailed),
        ((429, ""), ConnectionLost),
    ],
)
async def test_an_answer_without_a_token_is_a_typed_error(endpoint: TokenEndpoint, answer: Any, error: Any) -> None:
    endpoint.answer = answer
    with pytest.raises(error, match=endpoint.url):
        await credentials(endpoint)()


async def test_an_endpoint_that_is_not_there_is_a_lost_connection(endpoint: TokenEndpoint) -> None:
    gone = ClientCredentials("http://127.0.0.1:1/token", "me", HIDDEN, cleartext=True)
    with pytest.raises(ConnectionLost, match=r"127.0.0.1:1/token: no token"):
        await gone()


async def test_an_endpoint_whose_certificate_is_not_trusted_gets_no_secret(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.broker)
    with TokenEndpoint(context) as endpoint:
        known = (endpoint.url, endpoint.CLIENT_ID, endpoint.CLIENT_SECRET)
        assert await ClientCredentials(*known, ca_file=certificates.ca)() == "token-1"
        with pytest.raises(AuthenticationFailed, match="its certificate is refused"):
            await ClientCredentials(*known, ca_file=certificates.foreign_ca)()
        assert len(endpoint.asked) == 1


@pytest.mark.parametrize("url", ["http://id.test/token", "id.test/token", "https://me:hunter2@id.test/", "", "ftp://x"])
def test_an_endpoint_that_is_not_https_is_refused(url: str) -> None:
    with pytest.raises(WrongSetting, match="token_endpoint: expected an https URL") as caught:
        ClientCredentials(url, "me", HIDDEN)
    assert HIDDEN not in str(caught.value)


def test_one_provider_serves_several_event_loops_in_turn() -> None:
    provider = ClientCredentials("http://127.0.0.1:1/token", "me", HIDDEN, cleartext=True)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            asyncio.run(provider())  # type: ignore[arg-type]
