"""A client of bare frames: says what it is told, in any order, and hands back what comes."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_response, encode_entity, frame_request, skip_response_header
from ingestd.wire.produce import PartitionAnswer, produce_request, read_produce_response

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RawClient", "entity"]

SECONDS = 20


def entity(api: Api, version: int, kind: str, /, **fields: Any) -> Any:
    """A part of a kio request."""
    module = import_module(f"kio.schema.{api.name}.v{version}.request")
    return getattr(module, kind)(**fields)


class RawClient:
    """One socket. Context manager."""

    def __init__(self, port: int, client_id: str = "raw") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, api: int, version: int, body: Sequence[Any]) -> int:
        """Send a request; its correlation id."""
        self._correlation_id += 1
        parts, _size = frame_request(api, version, self._correlation_id, self._client_id, body)
        self.socket.sendall(b"".join(parts))
        return self._correlation_id

    def receive(self) -> memoryview | None:
        """The next answer behind its size, or None when the broker has closed the connection."""
        size = self._exactly(4)
        if size is None:
            return None
        content = self._exactly(int.from_bytes(size, "big"))
        return None if content is None else memoryview(content)

    def _exactly(self, size: int) -> bytes | None:
        content = bytearray()
        while len(content) < size:
            try:
                piece = self.socket.recv(size - len(content))
            except ConnectionResetError:
                return None
            if not piece:
                return None
            content += piece
        return bytes(content)

    def ask(self, request: Any) -> Any:
        """Send a kio request and read its response. Raises `ConnectionAbortedError` if there is none."""
        api, version = request.__api_key__, request.__version__
        expected = self.send(api, version, [encode_entity(request)])
        answer = self.receive()
        if answer is None:
            raise ConnectionAbortedError("the broker closed the connection")
        assert int.from_bytes(answer[:4], "big") == expected
        return decode_response(request, bytes(skip_response_header(api, version, answer)))

    def send_produce(self, topic: str, partition: int, batch: Any, acks: int = -1, version: int = 12) -> int:
        """Send one batch; the request's correlation id."""
        body = produce_request(version, acks, 1000, None, [(topic, None, [(partition, batch)])])
        return self.send(Api.produce, version, body)

    def receive_produced(self, version: int = 12) -> PartitionAnswer:
        """The answer to `send_produce`."""
        answer = self.receive()
        assert answer is not None, "the broker closed the connection"
        return read_produce_response(version, skip_response_header(Api.produce, version, answer))[0]

    def produce(self, topic: str, partition: int, batch: Any, acks: int = -1, version: int = 12) -> PartitionAnswer:
        """Send one batch and read what became of it."""
        self.send_produce(topic, partition, batch, acks, version)
        return self.receive_produced(version)

    def metadata(self, *topics: str, create: bool = True) -> Any:
        """The Metadata response for `topics`."""
        asked = tuple(entity(Api.metadata, 12, "MetadataRequestTopic", topic_id=None, name=name) for name in topics)
        return self.ask(
            entity(
                Api.metadata, 12, "MetadataRequest", topics=asked, allow_auto_topic_creation=create,
                include_topic_authorized_operations=False,
            )
        )  # fmt: skip
