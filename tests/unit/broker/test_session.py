"""What a client may ask, by how far it has authenticated."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.broker.node import Node
from ingestd.broker.security.exchanges import begin_exchange
from ingestd.broker.security.users import Users
from ingestd.broker.session import ANONYMOUS, AuthenticationStep, Listener, Session
from ingestd.wire.apis import Api

NODE = Node(1)
NOBODYS = begin_exchange("PLAIN", Users(Path("never-read")))
ALLOWED = {
    AuthenticationStep.handshake: {Api.api_versions, Api.sasl_handshake},
    AuthenticationStep.exchange: {Api.api_versions, Api.sasl_handshake, Api.sasl_authenticate},
    AuthenticationStep.complete: set(Api),
}


def test_a_listener_without_authentication_takes_everybody_as_anonymous() -> None:
    session = Session(Listener("plaintext", NODE))
    assert session.step is AuthenticationStep.complete
    assert session.principal == ANONYMOUS


@pytest.mark.parametrize("step", AuthenticationStep)
def test_before_authentication_is_complete_only_its_own_requests_are_taken(step: AuthenticationStep) -> None:
    session = Session(Listener("sasl", NODE, ("PLAIN",)))
    assert session.step is AuthenticationStep.handshake
    assert session.principal == ""
    session.step = step
    assert {api for api in Api if session.allows(api, 0)} == ALLOWED[step]


def test_a_session_lasts_as_long_as_it_was_told_and_a_handshake_renews_it() -> None:
    session = Session(Listener("sasl", NODE, ("PLAIN",)))
    session.begin("PLAIN", NOBODYS)
    session.complete("User:me", now=10, lifetime=5)
    assert [session.allows(Api.metadata, now) for now in (15, 15.1)] == [True, False]
    assert session.allows(Api.sasl_handshake, 15.1)
    session.begin("PLAIN", NOBODYS)
    assert not session.allows(Api.metadata, 15.2)
    session.complete("User:me", now=16, lifetime=0)
    assert session.allows(Api.metadata, 1e9)


def test_a_node_is_reached_where_it_was_reached_unless_it_advertises_another_address() -> None:
    session = Session(Listener("plaintext", NODE), local=("10.0.0.1", 9092), peer_port=5000)
    assert NODE.address(session) == ("10.0.0.1", 9092)
    assert Node(1, ("kafka.example", 1234)).address(session) == ("kafka.example", 1234)
