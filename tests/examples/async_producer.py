"""Send records without waiting for each: `python async_producer.py BOOTSTRAP TOPIC`."""

import asyncio
import sys

from ingestd import AsyncProducer, BufferFull, Client, Delivery, ProducerSettings

COUNT = 10_000


async def main(bootstrap: str, topic: str) -> None:
    """Send COUNT records with keys, and say how each of them ended."""
    failed: list[Delivery] = []
    delivered = 0

    def done(delivery: Delivery) -> None:
        nonlocal delivered
        if delivery.error is None:
            delivered += 1
        else:
            failed.append(delivery)

    settings = ProducerSettings(compression="lz4", linger=0.005)
    async with Client([bootstrap]) as client, AsyncProducer(client, settings) as producer:
        for number in range(COUNT):
            while True:
                try:
                    producer.send(topic, b"event %d" % number, key=b"user-%d" % (number % 100), done=done)
                    break
                except BufferFull:
                    await producer.room()
        await producer.flush(timeout=30)
    print(f"{delivered} delivered, {len(failed)} failed")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
