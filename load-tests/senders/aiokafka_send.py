"""aiokafka on uvloop, `await send` for every line: LOG SERVERS TOPIC CODEC plain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import uvloop
from aiokafka import AIOKafkaProducer

READ_BYTES = 1 << 18
LINGER_MS = 50
BATCH_BYTES = 1 << 20


async def send_all(lines: BinaryIO, servers: str, topic: str, codec: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
        compression_type=None if codec == "none" else codec,
    )
    async with producer:
        for line in lines:
            await producer.send(topic, line[:-1])
        await producer.flush()


with Path(sys.argv[1]).open("rb", READ_BYTES) as opened:
    uvloop.run(send_all(opened, *sys.argv[2:5]))
