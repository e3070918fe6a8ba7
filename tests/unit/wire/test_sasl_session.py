"""Authentication of a connection, and its renewal under way: nothing is lost, overtakes, or is sent in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from harness.scripted_broker import ECHO, ScriptedBroker

from ingestd.errors import (
    AuthenticationFailed,
    BufferFull,
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    UnsupportedVersion,
)
from ingestd.wire.connection import Connection, ConnectionSettings
from ingestd.wire.sasl import session
from ingestd.wire.sasl.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.wire.sasl.mechanism import Exchange

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def welcome() -> Callable[[bytes], bytes | str]:
    return lambda said: b"" if said == b"\0me\0right" else "Authentication failed: Invalid username or password"


class Scripted(Plain):
    """PLAIN, whose credentials come as the test says: each `begin` takes the next of `steps`, the last for ever."""

    def __init__(self, *steps: Any) -> None:
        super().__init__("me", "right", cleartext=True)
        object.__setattr__(self, "steps", list(steps))
        object.__setattr__(self, "begun", 0)

    async def begin(self) -> Exchange:
        object.__setattr__(self, "begun", self.begun + 1)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        if step is not None:
            await step.wait()
        return await super().begin()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_SHORTEST", 0.0)


async def opened(broker: ScriptedBroker, sasl: Any = None, **settings: Any) -> Connection:
    sasl = sasl or Plain("me", "right", cleartext=True)
    return await Connection.open(
        "127.0.0.1", broker.port, settings=ConnectionSettings(sasl=sasl, **settings), timeout=30
    )


def renew(connection: Connection) -> None:
    """The time for it has come."""
    assert connection.session is not None
    connection.session._due()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


# Authentication


async def test_an_authenticated_connection_is_ready_for_requests() -> None:
    async with ScriptedBroker(says=welcome) as broker:
        connection = await opened(broker)
        assert bytes(await connection.send(*ECHO, [b"hello"], timeout=30)) == b"hello"
        assert (broker.authentications, broker.violations) == (1, [])
        await connection.close()


@pytest.mark.parametrize("highest", [0, 1, 2])
async def test_sessions_end_where_the_broker_has_versions_that_say_so(highest: int) -> None:
    async with ScriptedBroker(says=welcome, lifetime=60, authenticate_versions=(0, highest)) as broker:
        connection = await opened(broker)
        assert connection.session is not None
        assert (connection.session._timer is not None) == (highest > 0)
        await connection.close()


async def test_a_broker_without_framed_authentication_is_too_old() -> None:
    async with ScriptedBroker(says=welcome, authenticate_versions=None) as broker:
        with pytest.raises(UnsupportedVersion, match="sasl_authenticate: this broker does not have it"):
            await opened(broker)


@pytest.mark.parametrize(
    ("broker", "message"),
    [
        ({"says": lambda: lambda _: "who?"}, "PLAIN: who?"),
        ({"says": welcome, "mechanisms": ("A", "B")}, "PLAIN is not enabled on this listener; enabled: A, B"),
        ({"says": welcome, "mechanisms": ()}, "PLAIN is not enabled on this listener; enabled: none"),
        ({}, "this is not a listener for SASL"),
    ],
)
async def test_a_refusal_names_the_broker_and_its_reason(broker: dict[str, Any], message: str) -> None:
    async with ScriptedBroker(**broker) as found:
        with pytest.raises(AuthenticationFailed) as caught:
            await opened(found)
        assert str(caught.value) == f"127.0.0.1:{found.port}: {message}"


async def test_a_broker_that_ends_it_without_a_word_is_a_lost_connection() -> None:
    async with ScriptedBroker(says=lambda: lambda _: None) as broker:
        with pytest.raises(ConnectionLost):
            await opened(broker)


async def test_a_broker_that_never_ends_it_is_refused() -> None:
    class Endless:
        done = False

        def __call__(self, said: bytes) -> bytes:
            return b"more"

    class Patient(Plain):
        async def begin(self) -> Exchange:
            def exchange() -> Exchange:
                while True:
                    yield b"well"

            return exchange()

    async with ScriptedBroker(says=Endless) as broker:
        with pytest.raises(AuthenticationFailed, match="PLAIN: no end after 10 rounds"):
            await opened(broker, Patient("me", "right", cleartext=True))


async def test_credentials_that_do_not_come_meet_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        """While they are waited for a minute passes."""

        async def wait(self) -> None:
            loop = asyncio.get_running_loop()
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + 60.0)
            await asyncio.Event().wait()

    async with ScriptedBroker(says=welcome) as broker:
        settings = ConnectionSettings(sasl=Scripted(Never()))
        with pytest.raises(DeadlineExceeded, match="credentials"):
            await Connection.open("127.0.0.1", broker.port, settings=settings, timeout=30)


# Renewal


@both_loops
def test_under_constant_traffic_sessions_are_renewed_and_every_request_is_answered_in_order(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends the connection at any request between the first and the last of a renewal."""

    async def check() -> None:
        async with ScriptedBroker(says=welcome, lifetime=0.03) as broker:
            connection = await opened(broker)
            sent: list[bytes] = []
            answers: list[asyncio.Future[memoryview]] = []
            while broker.authentications < 15:
                for _ in range(3):  # without a look at `has_room`, as producers do within their window
                    sent.append(b"%d" % len(sent))
                    answers.append(connection.send(*ECHO, [sent[-1]], timeout=30))
                await asyncio.sleep(0.001)
                while connection.in_flight > 50:
                    await asyncio.sleep(0.001)
            assert [bytes(await answer) for answer in answers] == sent
            assert broker.bodies == sent
            assert (broker.violations, broker.connections) == ([], 1)
            await connection.close()

    run(check())


async def test_an_idle_connection_is_renewed_too() -> None:
    async with ScriptedBroker(says=welcome, lifetime=0.05) as broker:
        connection = await opened(broker)
        await until(lambda: broker.authentications >= 3)
        assert not connection.closed
        await connection.close()


async def test_a_session_without_end_is_never_renewed() -> None:
    async with ScriptedBroker(says=welcome) as broker:
        connection = await opened(broker)
        assert connection.session is not None
        assert connection.session._timer is None
        await connection.close()


async def test_nothing_is_held_back_while_credentials_are_fetched() -> None:
    coming = asyncio.Event()
    async with ScriptedBroker(says=welcome, lifetime=600) as broker:
        connection = await opened(broker, sasl := Scripted(None, coming, None))
        renew(connection)
        await until(lambda: sasl.begun == 2)  # type: ignore[attr-defined]
        assert connection.has_room
        assert bytes(await connection.send(*ECHO, [b"meanwhile"], timeout=30)) == b"meanwhile"
        coming.set()
        await until(lambda: broker.authentications >= 2)
        await connection.close()


async def nothing_more_is_read(broker: ScriptedBroker, connection: Connection) -> None:
    """What is sent from now on stays unanswered until `broker.reading` is set."""
    broker.reading.clear()
    assert bytes(await connection.send(*ECHO, [b"first"], timeout=30)) == b"first"  # it was waiting for one more


async def test_what_is_in_flight_is_answered_first_and_what_is_sent_meanwhile_waits() -> None:
    async with ScriptedBroker(says=welcome, lifetime=600) as broker:
        connection = await opened(broker)
        await nothing_more_is_read(broker, connection)
        before = connection.send(*ECHO, [b"before"], timeout=30)
        renew(connection)
        await until(lambda: connection._held is not None)
        assert not connection.has_room
        after = connection.send(*ECHO, [b"after"], timeout=30)
        assert connection.in_flight == 3  # the renewal's first among them
        room = asyncio.create_task(connection.room())
        broker.reading.set()
        assert bytes(await before) == b"before"
        await room
        assert bytes(await after) == b"after"
        assert (broker.bodies, broker.violations) == ([b"first", b"before", b"after"], [])
        await connection.close()


async def test_credentials_that_can_not_be_had_now_are_asked_for_again() -> None:
    async with ScriptedBroker(says=welcome, lifetime=600) as broker:
        sasl = Scripted(None, ConnectionLost("the provider is away"), None)
        connection = await opened(broker, sasl)
        renew(connection)
        await until(lambda: broker.authentications == 2)
        assert not connection.closed
        await connection.close()


async def test_credentials_that_do_not_come_before_the_end_end_the_connection_with_the_reason() -> None:
    async with ScriptedBroker(says=welcome, lifetime=0.1) as broker:
        connection = await opened(broker, Scripted(None, ConnectionLost("the provider is away")))
        await until(lambda: connection.closed)
        assert str(connection.error) == "the provider is away"
        await connection.close()


async def test_a_refused_renewal_ends_the_connection_and_fails_what_was_held_back() -> None:
    verdicts = iter([b"", "the account was closed"])
    async with ScriptedBroker(says=lambda: lambda _: next(verdicts), lifetime=600) as broker:
        connection = await opened(broker)
        await nothing_more_is_read(broker, connection)
        before = connection.send(*ECHO, [b"before"], timeout=30)
        renew(connection)
        await until(lambda: connection._held is not None)
        held = connection.send(*ECHO, [b"held"], timeout=30)
        broker.reading.set()
        assert bytes(await before) == b"before"
        with pytest.raises(ConnectionLost, match="the account was closed") as caught:
            await held
        assert isinstance(caught.value.__cause__, AuthenticationFailed)
        with pytest.raises(AuthenticationFailed):
            connection.send(*ECHO, [b"more"], timeout=30)
        await connection.wait_ended()
        assert broker.bodies == [b"first", b"before"]


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_an_end_while_it_is_renewed_leaves_nothing_behind(how: str) -> None:
    async with ScriptedBroker(says=welcome, lifetime=0.1, delay=60) as broker:
        connection = await opened(broker)
        connection.send(*ECHO, [b"never answered"], timeout=60).add_done_callback(lambda done: done.exception())
        await until(lambda: connection._held is not None)
        held = connection.send(*ECHO, [b"held"], timeout=60)
        if how == "abort":
            connection.abort(Closed("enough"))
        async with asyncio.timeout(30):
            await connection.close()
        with pytest.raises(ConnectionLost):
            await held
        assert {task.get_name() for task in asyncio.all_tasks() if "re-auth" in task.get_name()} == set()


async def test_a_mechanism_that_breaks_ends_the_connection_and_is_reported() -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    async with ScriptedBroker(says=welcome, lifetime=0.05) as broker:
        connection = await opened(broker, Scripted(None, ZeroDivisionError("a bug")))
        await until(lambda: connection.closed)
        assert "a bug" in str(connection.error)
        await connection.close()
    assert [str(error) for error in reported] == ["a bug"]


# Holding back, in memory


async def test_held_requests_leave_in_order_but_those_that_nobody_waits_for(wire: Any, framed: Any) -> None:
    """A cancelled request's memory belongs to its caller again: it must not be sent."""
    wired = wire()
    connection = wired.connection
    connection.hold()
    first, cancelled, last = (connection.send(3, 1, [body], timeout=30) for body in (b"first", b"cancelled", b"last"))
    cancelled.cancel()
    assert wired.requests() == []
    connection.send_ahead(36, 0, [b"ahead"], timeout=30).add_done_callback(lambda done: done.exception())
    connection.release()
    for request, body in zip(wired.requests(), (b"ahead", b"first", b"last"), strict=True):
        assert request.endswith(body)
    wired.feed(framed(3, b"") + framed(0, b"1") + framed(2, b"3"))
    assert (bytes(await first), bytes(await last)) == (b"1", b"3")


async def test_a_held_request_meets_its_deadline(wire: Any) -> None:
    connection = wire().connection
    connection.hold()
    with pytest.raises(DeadlineExceeded):
        await connection.send(3, 1, [b"x"], timeout=0.01)
    assert connection.closed


async def test_held_requests_count_in_the_window(wire: Any) -> None:
    connection = wire(in_flight_limit=2).connection
    connection.hold()
    for _ in range(2):
        connection.send(3, 1, [b"x"], timeout=30).add_done_callback(lambda done: done.exception())
    with pytest.raises(BufferFull):
        connection.send(3, 1, [b"x"], timeout=30)
    connection.release()
    assert connection.in_flight == 2
    connection.abort(Closed("done"))


async def test_a_held_request_without_answer_is_done_when_it_has_left(wire: Any) -> None:
    wired = wire()
    wired.connection.hold()
    unanswered = wired.connection.send(0, 1, [b"x"], timeout=5, expect_answer=False)
    assert not unanswered.done()
    wired.connection.release()
    assert bytes(await unanswered) == b""
    assert len(wired.requests()) == 1


async def test_room_is_waited_for_until_the_release(wire: Any) -> None:
    connection = wire().connection
    connection.hold()
    waiting = asyncio.create_task(connection.room())
    await asyncio.sleep(0)
    connection.resume_writing()
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.release()
    await waiting


async def test_a_request_ahead_is_given_the_time_of_those_before_it(wire: Any) -> None:
    """A join of a group may be held back for minutes, and what comes behind it on the same connection with it."""
    connection = wire().connection
    connection.send(11, 1, [b"join"], timeout=300).add_done_callback(lambda done: done.exception())
    connection.hold()
    connection.send_ahead(17, 1, [b"handshake"], timeout=30).add_done_callback(lambda done: done.exception())
    assert 300 < connection._pending[-1].timeout < 331
    connection.abort(Closed("done"))


# Without credentials


async def test_a_listener_for_sasl_is_known_as_such_from_the_second_connection_on() -> None:
    """It says its versions to everybody, and closes the connection at the first request: that may be any failure."""
    async with ScriptedBroker(says=welcome, mechanisms=("A", "B")) as broker:
        anonymous = ConnectionSettings()
        connection = await Connection.open("127.0.0.1", broker.port, settings=anonymous, timeout=30)
        with pytest.raises(ConnectionLost):
            await connection.send(*ECHO, [b"hello"], timeout=30)
        for _ in range(2):
            with pytest.raises(AuthenticationFailed) as caught:
                await Connection.open("127.0.0.1", broker.port, settings=anonymous, timeout=30)
            assert str(caught.value) == f"127.0.0.1:{broker.port}: this is a listener for SASL; enabled: A, B"


async def test_a_broker_that_died_at_the_first_request_is_asked_once_more_and_used() -> None:
    async with ScriptedBroker(delay=60) as broker:
        connection = await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
        answer = connection.send(*ECHO, [b"hello"], timeout=30)
        await asyncio.sleep(0.01)
        for writer in broker._open:
            writer.transport.abort()
        with pytest.raises(ConnectionLost):
            await answer
        broker.delay = 0.0
        for _ in range(2):
            again = await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
            assert bytes(await again.send(*ECHO, [b"hello"], timeout=30)) == b"hello"
            await again.close()
        assert broker.asked.count("sasl_handshake") == 1


async def test_a_broker_that_closes_when_it_is_asked_is_not_asked_every_time() -> None:
    async with ScriptedBroker(delay=60) as broker:
        broker.handshakes = False
        connection = await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
        answer = connection.send(*ECHO, [b"hello"], timeout=30)
        await asyncio.sleep(0.01)
        for writer in broker._open:
            writer.transport.abort()
        with pytest.raises(ConnectionLost):
            await answer
        with pytest.raises(ConnectionLost):
            await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
        broker.delay = 0.0
        again = await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
        assert bytes(await again.send(*ECHO, [b"hello"], timeout=30)) == b"hello"
        await again.close()


async def test_a_broker_that_names_mechanisms_on_any_listener_is_used_when_it_goes_on() -> None:
    """Apache Kafka closes the connection behind such an answer; brokers written elsewhere need not mean it."""
    async with ScriptedBroker(says=welcome, mechanisms=("A", "B")) as broker:
        connection = await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
        with pytest.raises(ConnectionLost):
            await connection.send(*ECHO, [b"hello"], timeout=30)
        broker.lenient = True
        again = await Connection.open("127.0.0.1", broker.port, settings=ConnectionSettings(), timeout=30)
        assert bytes(await again.send(*ECHO, [b"hello"], timeout=30)) == b"hello"
        await again.close()
