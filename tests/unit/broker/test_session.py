"""What a client may ask, by how far it has authenticated."""

from __future__ import annotations

import pytest

from ingestd.broker.node import Node
from ingestd.broker.session import ANONYMOUS, AuthenticationStep, Listener, Session
from ingestd.wire.apis import Api

NODE = Node(1)
ALLOWED = {
    AuthenticationStep.handshake: {Api.api_versions, Api.sasl_handshake},
    AuthenticationStep.exchange: {Api.api_versions, Api.sasl_authenticate},
    AuthenticationStep.complete: set(Api),
}


def test_a_listener_without_authentication_takes_everybody_as_anonymous() -> None:
    session = Session(Listener("plaintext", NODE))
    assert session.step is AuthenticationStep.complete
    assert session.principal == ANONYMOUS


@pytest.mark.parametrize("step", AuthenticationStep)
def test_before_authentication_is_complete_only_its_own_requests_are_taken(step: AuthenticationStep) -> None:
    session = Session(Listener("sasl", NODE, authenticates=True))
    assert session.step is AuthenticationStep.handshake
    assert session.principal == ""
    session.step = step
    assert {api for api in Api if session.allows(api)} == ALLOWED[step]


def test_a_node_is_reached_where_it_was_reached_unless_it_advertises_another_address() -> None:
    session = Session(Listener("plaintext", NODE), local=("10.0.0.1", 9092), peer_port=5000)
    assert NODE.address(session) == ("10.0.0.1", 9092)
    assert Node(1, ("kafka.example", 1234)).address(session) == ("kafka.example", 1234)
