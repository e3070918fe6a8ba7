"""A crowd of connections to a Kafka broker that sends frames made before, so that the client costs little."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_response, encode_entity, frame_request, skip_response_header
from ingestd.wire.produce import produce_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Crowd", "frame_of", "part", "produce_frame", "read_answer"]

SECONDS = 120
PRODUCE_VERSION = 9


def part(api: Api, version: int, kind: str, /, **fields: Any) -> Any:
    """A kio request, or a part of one."""
    return getattr(import_module(f"kio.schema.{api.name}.v{version}.request"), kind)(**fields)


def frame_of(request: Any) -> bytes:
    """A kio request as it is sent."""
    parts, _size = frame_request(request.__api_key__, request.__version__, 1, "crowd", [encode_entity(request)])
    return b"".join(parts)


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    """A Produce request of one batch with acks=all."""
    body = produce_request(PRODUCE_VERSION, -1, 30_000, None, [(topic, None, [(partition, batch)])])
    return b"".join(frame_request(Api.produce, PRODUCE_VERSION, 1, "crowd", body)[0])


def read_answer(request: Any, answer: bytes) -> Any:
    """The response to a kio request."""
    return decode_response(request, bytes(skip_response_header(request.__api_key__, request.__version__, answer)))


class Crowd:
    """So many connections. Each has one request on its way at a time."""

    def __init__(self, servers: str, count: int) -> None:
        host, _, port = servers.partition(",")[0].rpartition(":")
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_connection((host, int(port)), SECONDS) for _ in range(count)]
        self._received = [bytearray() for _ in range(count)]
        self._sent = [0.0] * count
        for number, each in enumerate(self._sockets):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(each, selectors.EVENT_READ, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._selector.close()
        for each in self._sockets:
            each.close()

    def send(self, number: int, frame: bytes) -> None:
        """Send a frame on one connection."""
        self._sent[number] = time.perf_counter()
        self._sockets[number].sendall(frame)

    def answers(self, timeout: float) -> list[tuple[int, bytes, float]]:
        """What has come, or comes in this time: connection, answer, seconds since it was asked."""
        found = []
        for key, _events in self._selector.select(timeout):
            received = self._received[key.data]
            got = self._sockets[key.data].recv(1 << 20)
            if not got:
                raise ConnectionError("the broker closed a connection")
            received += got
            size = int.from_bytes(received[:4])
            if len(received) >= 4 + size:
                found.append((key.data, bytes(received[4:]), time.perf_counter() - self._sent[key.data]))
                received.clear()
        return found

    def ask(self, frames: Sequence[bytes]) -> list[bytes]:
        """One frame on each connection; the answers in their order."""
        for number, frame in enumerate(frames):
            self.send(number, frame)
        answers: dict[int, bytes] = {}
        while len(answers) < len(frames):
            answers |= {number: answer for number, answer, _seconds in self.answers(SECONDS)}
        return [answers[number] for number in range(len(frames))]

    def repeat(self, frames: Sequence[bytes], seconds: float) -> tuple[int, float]:
        """Each connection sends its frame again when it is answered. How many were answered, in how many seconds."""
        started = time.perf_counter()
        for number, frame in enumerate(frames):
            self.send(number, frame)
        answered, left = 0, len(frames)
        while left:
            for number, _answer, _seconds in self.answers(SECONDS):
                answered += 1
                if time.perf_counter() - started < seconds:
                    self.send(number, frames[number])
                else:
                    left -= 1
        return answered, time.perf_counter() - started

    def paced(self, frames: Sequence[bytes], rate: float, goes_on: Callable[[], bool]) -> list[float]:
        """The frames in turn, so many a second, as long as it goes on; how long each answer took."""
        taken: list[float] = []
        started = time.perf_counter()
        asked = waiting = 0
        while (asking := goes_on()) or waiting:
            now = time.perf_counter() - started
            while asking and asked < now * rate:
                self.send(asked % len(frames), frames[asked % len(frames)])
                asked += 1
                waiting += 1
            for _number, _answer, took in self.answers(0.5 / rate):
                taken.append(took)
                waiting -= 1
        return taken
