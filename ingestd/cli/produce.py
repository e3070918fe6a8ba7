"""`ingestd produce`: lines of a stream, as records, to a topic."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, BinaryIO

from ingestd.errors import BufferFull, ConfigurationError, IngestdError, UnsupportedCodec
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.codecs import Compression

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from ingestd.cli.configured import ClusterAccess
    from ingestd.client.client import Client
    from ingestd.producer.delivery import Delivery

__all__ = ["Produced", "Production", "open_input", "parse_headers", "produce", "producer_settings", "read_lines"]

_READ_BYTES = 1024 * 1024
_METADATA_TIMEOUT = 20.0
_LONGEST_LINE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Production:
    """Where lines go and what of them is the key."""

    topic: str
    partition: int | None = None
    """None: by the key's hash, as Kafka's own clients do; without a key, wherever the producer likes."""
    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    """What stands between a line's key and its value; None: a line is all value. A line without it has `key`."""
    key: bytes | None = None
    """The key of lines that have none of their own."""
    headers: Sequence[tuple[str, bytes]] = ()
    """Names and values that every record gets."""
    empty_is_null: bool = False
    """Whether an empty value is sent as null, which deletes its key from a compacted topic; an empty key is none."""

    def __post_init__(self) -> None:
        if not self.delimiter:
            raise ConfigurationError("delimiter: empty; expected at least one byte")
        if self.key_delimiter == b"":
            raise ConfigurationError("key delimiter: empty; expected at least one byte")

    def records(self, lines: Iterable[bytes]) -> Iterable[tuple[bytes | None, bytes | None]]:
        """Each line's key and value."""
        # A step for each line: no call that is not needed.
        records: Iterable[tuple[bytes | None, bytes | None]]
        if self.key_delimiter is None:
            records = zip(repeat(self.key), lines)
        else:
            records = _cut(lines, self.key_delimiter, self.key)
        return _without_empty(records, self.key) if self.empty_is_null else records


def _cut(lines: Iterable[bytes], delimiter: bytes, fixed: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    for line in lines:
        key, found, value = line.partition(delimiter)
        yield (key, value) if found else (fixed, line)


def _without_empty(
    records: Iterable[tuple[bytes | None, bytes | None]], fixed: bytes | None
) -> Iterator[tuple[bytes | None, bytes | None]]:
    for key, value in records:
        yield key or fixed, value or None


@dataclass(slots=True)
class Produced:
    """What became of the lines."""

    accepted: int = 0
    delivered: int = 0
    error: IngestdError | None = None
    """Why the first of those that were not delivered was not."""

    def done(self, delivery: Delivery) -> None:
        """Count one delivery."""
        if delivery.error is None:
            self.delivered += delivery.records
        elif self.error is None:
            self.error = delivery.error


def producer_settings(compression: str, acks: int, linger: float) -> ProducerSettings:
    """Settings from `CODEC[:LEVEL]`, acks (-1, 1, 0) and seconds. Raises `ConfigurationError`."""
    codec, colon, level = compression.partition(":")
    if colon and not level.removeprefix("-").isdecimal():
        raise ConfigurationError(f"compression {compression!r}: expected CODEC or CODEC:LEVEL, as in zstd:3")
    try:
        parsed = Compression.parse(codec, int(level) if colon else None)
    except UnsupportedCodec as error:
        raise ConfigurationError(str(error)) from None
    return ProducerSettings(acks=acks, linger=linger, compression=parsed, metadata_timeout=_METADATA_TIMEOUT)


def parse_headers(texts: Iterable[str]) -> list[tuple[str, bytes]]:
    """Headers from `NAME=VALUE`, in order. Raises `ConfigurationError`."""
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not name.isprintable():
            raise ConfigurationError(f"--header {text!r}: expected NAME=VALUE, as in source=shop")
        headers.append((name, os.fsencode(value)))
    return headers


def open_input(path: Path | None) -> BinaryIO:
    """A file, or standard input for None or `-`; unbuffered: a read gives what has come. Raises `OSError`."""
    if path is None or str(path) == "-":
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return path.open("rb", buffering=0)


async def produce(
    access: ClusterAccess, production: Production, source: BinaryIO, settings: ProducerSettings | None = None
) -> Produced:
    """Send each line of `source` until its end, or until one can not be delivered; returns when all are decided.

    A topic that is not there is created where the broker does so on demand.

    Raises `ConfigurationError` for a partition that the topic does not have, `KafkaError` for a topic that is not
    there, `DeadlineExceeded` when no broker answers; what becomes of a line is in the value returned.
    """
    produced = Produced()
    async with access.client() as client:
        await _check_target(client, production.topic, production.partition)
        producer = AsyncProducer(client) if settings is None else AsyncProducer(client, settings)
        async with producer:
            async for lines in read_lines(source, production.delimiter):
                await _send(producer, production, lines, produced)
                if produced.error is not None:
                    break
            timeout = 120.0 if settings is None else settings.delivery_timeout + settings.request_timeout
            await producer.flush(timeout)
    return produced


async def _check_target(client: Client, topic: str, partition: int | None) -> None:
    """What is wrong with topic or brokers is said before anything is read."""
    await client.metadata.refresh((topic,), _METADATA_TIMEOUT, create=True)
    known = await client.partitions(topic, _METADATA_TIMEOUT)
    if partition is not None and partition not in known:
        raise ConfigurationError(f"{topic} has no partition {partition}; it has {len(known)}, from 0")


async def _send(producer: AsyncProducer, production: Production, lines: list[bytes], produced: Produced) -> None:
    topic, partition, headers, done = production.topic, production.partition, production.headers, produced.done
    for key, value in production.records(lines):
        while True:
            try:
                producer.send(topic, value, key=key, partition=partition, headers=headers, done=done)
            except BufferFull:
                await producer.room()
            else:
                break
        produced.accepted += 1
        if produced.error is not None:
            return


async def read_lines(source: BinaryIO, delimiter: bytes) -> AsyncIterator[list[bytes]]:
    """Lines as they come in, without their delimiter; the last needs none. Raises `IngestdError` for an endless one."""
    read = getattr(source, "read1", source.read)
    rest = b""
    while piece := await _in_thread(read, _READ_BYTES):
        lines = (rest + piece).split(delimiter)
        rest = lines.pop()
        if len(rest) > _LONGEST_LINE:
            raise IngestdError(f"a line is longer than {_LONGEST_LINE} bytes; nothing of it was sent")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _in_thread(read: Callable[[int], bytes], size: int) -> bytes:
    """What `read` gives, which may block for ever: its thread holds up neither the loop nor the process's end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def work() -> None:
        piece, error = b"", None
        try:
            piece = read(size)
        except Exception as failed:  # noqa: BLE001 - raised where it is awaited, which would wait for ever otherwise
            error = failed
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(finish, piece, error)

    def finish(piece: bytes, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(piece)
        else:
            answer.set_exception(error)

    threading.Thread(target=work, name="input", daemon=True).start()
    return await answer
