"""A broker that only acknowledges: what is produced is counted and thrown away, at next to no cost.

For measuring how a producer scales where no broker is the limit. Batches are dropped inside the kernel (MSG_TRUNC), but
for the first bytes of a request, which say what it is. Replicas, logs and consumers: none. SIGTERM ends it; it then
prints one JSON object: requests, records, bytes, monotonic times of the first request and the last acknowledgement.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from io import BytesIO
from typing import Any, NoReturn
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta, i64

API_VERSIONS, METADATA, PRODUCE, FETCH, FIND_COORDINATOR, INIT_PRODUCER_ID = 18, 3, 0, 1, 10, 22
SPOKEN = {PRODUCE: (9, 9), METADATA: (9, 12), INIT_PRODUCER_ID: (4, 4), API_VERSIONS: (0, 3)}
"""Flexible versions alone, so that little here depends on versions. Produce 9 names topics."""
CLAIMED = {FETCH: (4, 11), FIND_COORDINATOR: (0, 4)}
"""Not answered: librdkafka takes them as the sign that a broker knows record batches and lz4."""
FIXED_HEADERS = {(API_VERSIONS, version) for version in range(3)}
"""Requests whose header has no tagged fields."""
HEAD_BYTES = 2048
"""Of a produce request, read and looked at; the rest is dropped unseen."""
BATCH_HEADER_BYTES = 61
RECORDS_AT = 57
NODE_ID = 1
TOPIC_ID = UUID(int=0x5133)
SOCKET_BUFFER = 8 * 1024 * 1024
NOWHERE = bytearray(64 * 1024 * 1024)
"""Where records are dropped. Never written to: with MSG_TRUNC the kernel only counts, so these pages do not exist."""


@dataclass(slots=True)
class Counted:
    """What came, over all connections."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    first_request: float = 0.0
    last_acknowledgement: float = 0.0


class Sink:
    """The listener; each connection has a thread, which blocks in the kernel while the batch is dropped."""

    def __init__(self, port: int, partitions: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
        self.port: int = self._listener.getsockname()[1]
        self._partitions = partitions
        self._offset = 0
        self._lock = threading.Lock()
        self.counted = Counted()

    def serve(self) -> None:
        """Accept for ever."""
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection: socket.socket) -> None:
        try:
            while True:
                request = _Request(connection)
                api, version, correlation = struct.unpack(">hhi", request.take(8))
                request.take(max(0, int.from_bytes(request.take(2), "big", signed=True)))  # the client's id
                if (api, version) not in FIXED_HEADERS:
                    request.tags()
                if api == PRODUCE:
                    answer = self._produced(request, time.monotonic())
                else:
                    answer = self._control(api, version, request.rest())
                connection.sendall(struct.pack(">ii", 4 + len(answer), correlation) + answer)
        except (ConnectionError, EOFError):
            connection.close()

    def _produced(self, request: _Request, arrived: float) -> bytes:
        request.compact()  # transactional id
        request.take(2 + 4)  # acks, timeout
        topics = request.varint() - 1
        answer = bytearray(b"\x00" + _as_varint(topics + 1))
        for _ in range(topics):
            name = request.compact()
            partitions = request.varint() - 1
            answer += _as_varint(len(name) + 1) + name + _as_varint(partitions + 1)
            for _ in range(partitions):
                (partition,) = struct.unpack(">i", request.take(4))
                length = request.varint() - 1
                (records,) = struct.unpack_from(">i", request.take(BATCH_HEADER_BYTES), RECORDS_AT)
                request.skip(length - BATCH_HEADER_BYTES)
                request.tags()
                base_offset = self._count(records, length)
                # error 0, base offset, log append time -1, log start offset 0, no record errors, no message, no tags
                answer += struct.pack(">ihqqq", partition, 0, base_offset, -1, 0) + b"\x01\x00\x00"
            request.tags()
            answer += b"\x00"
        request.tags()
        with self._lock:
            counted = self.counted
            counted.requests += 1
            counted.first_request = counted.first_request or arrived
            counted.last_acknowledgement = time.monotonic()
        return bytes(answer) + b"\x00" * 4 + b"\x00"  # throttle time, no tags

    def _count(self, records: int, length: int) -> int:
        """The base offset of a batch, which is counted."""
        with self._lock:
            base_offset, self._offset = self._offset, self._offset + records
            self.counted.records += records
            self.counted.bytes += length
            return base_offset

    def _control(self, api: int, version: int, request: bytes) -> bytes:
        if api == API_VERSIONS:
            flexible_header = b""
            answer = _api_versions(version)
        elif api == METADATA:
            flexible_header = b"\x00"
            asked = import_module(f"kio.schema.metadata.v{version}.request").MetadataRequest
            answer = self._metadata(entity_reader(asked)(request, 0)[0], version)
        elif api == INIT_PRODUCER_ID:
            flexible_header = b"\x00"
            module = import_module(f"kio.schema.init_producer_id.v{version}.response")
            answer = module.InitProducerIdResponse(
                throttle_time=_no_time(), error_code=ErrorCode.none, producer_id=i64(1), producer_epoch=i16(0)
            )
        else:
            _give_up(f"API {api} is not spoken here")
        body = BytesIO()
        entity_writer(type(answer))(body, answer)
        return flexible_header + body.getvalue()

    def _metadata(self, request: Any, version: int) -> Any:
        module = import_module(f"kio.schema.metadata.v{version}.response")
        partitions = tuple(
            module.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(index),
                leader_id=NODE_ID,
                leader_epoch=i32(0),
                replica_nodes=(NODE_ID,),
                isr_nodes=(NODE_ID,),
            )
            for index in range(self._partitions)
        )
        topic_id = {"topic_id": TOPIC_ID} if version >= 10 else {}
        topics = tuple(
            module.MetadataResponseTopic(
                error_code=ErrorCode.none, name=topic.name, is_internal=False, partitions=partitions, **topic_id
            )
            for topic in request.topics or ()
        )
        broker = module.MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=i32(self.port))
        return module.MetadataResponse(
            throttle_time=_no_time(), brokers=(broker,), cluster_id="sink", controller_id=NODE_ID, topics=topics
        )


def _api_versions(version: int) -> Any:
    spoken = version if version <= 3 else 0
    module = import_module(f"kio.schema.api_versions.v{spoken}.response")
    keys = tuple(
        module.ApiVersion(api_key=i16(api), min_version=i16(lowest), max_version=i16(highest))
        for api, (lowest, highest) in (SPOKEN | CLAIMED).items()
    )
    error = ErrorCode.none if spoken == version else ErrorCode.unsupported_version
    throttle = {"throttle_time": _no_time()} if spoken else {}
    return module.ApiVersionsResponse(error_code=error, api_keys=keys, **throttle)


def _no_time() -> Any:
    return i32Timedelta.parse(timedelta(0))


class _Request:
    """One request, read from its connection as far as it is asked for; records are dropped inside the kernel."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ahead = memoryview(b"")
        self._unread = 4
        (self._unread,) = struct.unpack(">i", self.take(4))

    def take(self, size: int) -> bytes:
        """The next bytes. Raises `EOFError` if the connection ends before."""
        while len(self._ahead) < size:
            read = self._connection.recv(min(self._unread, HEAD_BYTES))
            if not read:
                raise EOFError
            self._unread -= len(read)
            self._ahead = memoryview(bytes(self._ahead) + read)
        taken, self._ahead = bytes(self._ahead[:size]), self._ahead[size:]
        return taken

    def skip(self, size: int) -> None:
        """Drop the next bytes, unseen."""
        ahead = min(size, len(self._ahead))
        self._ahead = self._ahead[ahead:]
        size -= ahead
        self._unread -= size
        while size:
            dropped = self._connection.recv_into(
                NOWHERE, min(size, len(NOWHERE)), socket.MSG_TRUNC | socket.MSG_WAITALL
            )
            if dropped == 0:
                raise EOFError
            size -= dropped

    def varint(self) -> int:
        """An unsigned number of variable length."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    def compact(self) -> bytes:
        """A compact string; null is empty."""
        return self.take(max(0, self.varint() - 1))

    def tags(self) -> None:
        """The end of a flexible structure, without tagged fields."""
        if self.varint():
            _give_up("tagged fields are not known here")

    def rest(self) -> bytes:
        """All that is left of it."""
        return self.take(len(self._ahead) + self._unread)


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _give_up(why: str) -> NoReturn:
    print(f"sink: {why}", file=sys.stderr, flush=True)
    os._exit(1)  # an exception would end this thread alone, and its client would wait


def main() -> int:
    """Serve until SIGTERM, then say what came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: any free one; it is printed")
    parser.add_argument("--partitions", type=int, default=1, help="of every topic")
    given = parser.parse_args()
    sink = Sink(given.port, given.partitions)
    threading.Thread(target=sink.serve, daemon=True).start()
    print(sink.port, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    print(json.dumps(asdict(sink.counted)), flush=True)
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())
