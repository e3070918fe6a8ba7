"""`AsyncProducer.send` for every line of a file: LOG SERVERS TOPIC CODEC [keys | headers | callbacks]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from ingestd.client.client import Client
from ingestd.errors import BufferFull
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.codecs import Compression

if TYPE_CHECKING:
    from typing import BinaryIO

    from ingestd.producer.delivery import Delivery

LEVELS = {"zstd": 1}
READ_BYTES = 1 << 18
LINGER = 0.05
KEY_BYTES = 12
HEADERS = [("source", b"access.log")]


class Count:
    """Of what was delivered, one call for each record."""

    def __init__(self) -> None:
        self.delivered = 0

    def done(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            raise delivery.error
        self.delivered += 1


async def send_plain(producer: AsyncProducer, topic: str, lines: BinaryIO) -> None:
    send = producer.send
    for line in lines:
        value = line[:-1]
        try:
            send(topic, value)
        except BufferFull:
            await producer.room()
            send(topic, value)


async def send_keys(producer: AsyncProducer, topic: str, lines: BinaryIO) -> None:
    send = producer.send
    for line in lines:
        value = line[:-1]
        try:
            send(topic, value, key=line[:KEY_BYTES])
        except BufferFull:
            await producer.room()
            send(topic, value, key=line[:KEY_BYTES])


async def send_headers(producer: AsyncProducer, topic: str, lines: BinaryIO) -> None:
    send = producer.send
    for line in lines:
        value = line[:-1]
        try:
            send(topic, value, headers=HEADERS)
        except BufferFull:
            await producer.room()
            send(topic, value, headers=HEADERS)


async def send_callbacks(producer: AsyncProducer, topic: str, lines: BinaryIO) -> None:
    send = producer.send
    counted = Count()
    done = counted.done
    sent = 0
    for line in lines:
        value = line[:-1]
        try:
            send(topic, value, done=done)
        except BufferFull:
            await producer.room()
            send(topic, value, done=done)
        sent += 1
    await producer.flush(60)
    if counted.delivered != sent:
        raise RuntimeError(f"{counted.delivered} callbacks for {sent} records")


WAYS = {"plain": send_plain, "keys": send_keys, "headers": send_headers, "callbacks": send_callbacks}


async def send_all(lines: BinaryIO, servers: str, topic: str, codec: str, way: str) -> None:
    settings = ProducerSettings(linger=LINGER, compression=Compression.parse(codec, LEVELS.get(codec)))
    async with Client(servers.split(",")) as client, AsyncProducer(client, settings) as producer:
        await WAYS[way](producer, topic, lines)
        await producer.flush(60)


with Path(sys.argv[1]).open("rb", READ_BYTES) as opened:
    uvloop.run(send_all(opened, *sys.argv[2:]))
