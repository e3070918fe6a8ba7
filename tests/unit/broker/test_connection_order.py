"""The order of one connection's requests: a handler starts when the one before has taken effect; answers keep it."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.broker.api.handlers import Handler
from ingestd.broker.broker import Broker
from ingestd.broker.connection import Connection
from ingestd.broker.node import Node
from ingestd.broker.request import Answer
from ingestd.broker.session import Listener
from ingestd.broker.settings import BrokerSettings
from ingestd.errors import ProtocolError
from ingestd.tasks import TaskOwner
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

AT_ONCE, HELD, OVERLAPPING = int(Api.heartbeat), int(Api.join_group), int(Api.produce)
BROKEN = int(Api.sync_group)
APIS = [AT_ONCE, HELD, OVERLAPPING]
SCRATCH_BYTES = 16 * 1024


class Wire(asyncio.Transport):
    """A socket in memory: what was sent on it, and whether it is read from."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 9092), "peername": ("127.0.0.1", 5000)})
        self.sent = bytearray()
        self.reading = True
        self.ended = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        self.sent += b"".join(list_of_data)

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def answered(self) -> list[int]:
        """Correlation ids of the answers, in their order."""
        found, at = [], 0
        while at < len(self.sent):
            size, correlation_id = struct.unpack_from(">ii", self.sent, at)
            found.append(correlation_id)
            at += 4 + size
        return found


class Client:
    """Sends requests on a connection, and ends the work of those that are held back."""

    def __init__(self, data: Path) -> None:
        self.broker = Broker(BrokerSettings(data))
        self.wire = Wire()
        self.tasks = TaskOwner()
        self.apis: list[int] = []
        self.started: list[int] = []
        self.held: dict[int, asyncio.Future[None]] = {}
        self.cancelled: list[int] = []
        handlers = {
            AT_ONCE: Handler(range(1), self.answer),
            BROKEN: Handler(range(1), self.fail),
            HELD: Handler(range(1), self.hold),
            OVERLAPPING: Handler(range(1), self.hold, overlaps=True),
        }
        self.connection = Connection(self.broker, Listener("test", Node(1)), handlers, self.tasks, set())
        self.connection.connection_made(self.wire)

    def answer(self, _context: Context, request: Request) -> Answer:
        self.started.append(request.correlation_id)
        return Answer([b""])

    def fail(self, _context: Context, request: Request) -> Answer:
        raise ProtocolError(f"request {request.correlation_id} can not be read")

    def hold(self, _context: Context, request: Request) -> Any:
        self.started.append(request.correlation_id)
        held = self.held[request.correlation_id] = asyncio.get_running_loop().create_future()
        return self.wait(held, request.correlation_id)

    async def wait(self, held: asyncio.Future[None], number: int) -> Answer:
        try:
            await held
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return Answer([b""])

    def send(self, *apis: int, body: bytes = b"") -> None:
        content = b""
        for api in apis:
            header = struct.pack(">hhih", api, 0, len(self.apis), -1)
            content += struct.pack(">i", len(header) + len(body)) + header + body
            self.apis.append(api)
        self.receive(content)

    def receive(self, content: bytes) -> None:
        while content:
            assert self.wire.reading, "the kernel has bytes that nobody reads"
            room = self.connection.get_buffer(-1)
            piece, content = content[: len(room)], content[len(room) :]
            room[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))

    async def settle(self, *done: int) -> None:
        for number in done:
            self.held.pop(number).set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.connection.connection_lost(None)
        await self.tasks.close()
        assert self.broker.memory.used == 0


async def test_what_is_behind_a_request_that_is_held_back_starts_after_its_answer(tmp_path: Path) -> None:
    """JoinGroup, then LeaveGroup in the same write: the member leaves after it has joined."""
    client = Client(tmp_path)
    client.send(HELD, AT_ONCE, AT_ONCE)
    await client.settle()
    assert client.started == [0]
    await client.settle(0)
    assert client.started == client.wire.answered() == [0, 1, 2]
    await client.end()


async def test_overlapping_requests_start_at_once_and_another_api_waits_for_all_of_them(tmp_path: Path) -> None:
    """Three Produce requests share an fsync. The Fetch behind them finds what they wrote."""
    client = Client(tmp_path)
    client.send(OVERLAPPING, OVERLAPPING, OVERLAPPING, AT_ONCE, OVERLAPPING)
    await client.settle()
    assert client.started == [0, 1, 2]
    await client.settle(1, 2)
    assert client.started == [0, 1, 2]
    assert client.wire.answered() == []
    await client.settle(0)
    assert client.started == [0, 1, 2, 3, 4]
    assert client.wire.answered() == [0, 1, 2, 3]
    await client.end()


async def test_while_a_request_is_held_back_only_the_scratch_buffer_is_filled(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.send(HELD)
    frame = struct.pack(">i", 8 << 20) + struct.pack(">hhih", AT_ONCE, 0, 1, -1)
    client.receive((frame + bytes(SCRATCH_BYTES))[:SCRATCH_BYTES])
    assert not client.wire.reading
    assert client.broker.memory.used == 0
    await client.settle(0)
    assert client.wire.reading
    assert client.broker.memory.used == 8 << 20
    await client.end()


async def test_the_end_of_a_connection_cancels_what_is_held_back_and_starts_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.send(OVERLAPPING, HELD, AT_ONCE)
    await client.settle()
    await client.end()
    assert client.started == client.cancelled == [0]


async def test_a_request_that_ends_the_connection_does_not_take_the_answer_before_it_along(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.send(OVERLAPPING, BROKEN)
    await client.settle(0)
    assert client.wire.answered() == [0]
    assert client.wire.ended
    await client.end()


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32))
async def test_whatever_comes_together_and_ends_in_any_order(tmp_path_factory: Any, seed: int) -> None:
    client = Client(tmp_path_factory.getbasetemp() / "never-opened")
    chance = random.Random(seed)
    ended: set[int] = set()
    while len(client.apis) < 30 or client.held:
        if len(client.apis) < 30 and client.wire.reading and chance.random() < 0.5:
            # A large frame is received into a buffer of its own.
            body = b"" if client.held or chance.random() < 0.8 else bytes(20_000)
            client.send(*chance.choices(APIS, k=1 if body else chance.randrange(1, 5)), body=body)
        elif client.held:
            ended.add(done := chance.choice(sorted(client.held)))
            await client.settle(done)
        await client.settle()
        ended.update(number for number in client.started if client.apis[number] == AT_ONCE)
        # What runs now: one request, or several that overlap.
        assert client.started == list(range(len(client.started)))
        running = [number for number in client.started if number not in ended]
        assert len(running) <= 1 or {client.apis[number] for number in running} == {OVERLAPPING}
        # Whatever may start has started.
        if len(client.started) < len(client.apis):
            assert running
            assert (client.apis[running[0]], client.apis[len(client.started)]) != (OVERLAPPING, OVERLAPPING)
        answered = client.wire.answered()
        assert answered == list(range(len(answered)))
    assert client.wire.answered() == list(range(len(client.apis)))
    await client.end()
