"""confluent-kafka-python (librdkafka), `produce` for every line: LOG SERVERS TOPIC CODEC [keys | headers | callbacks].

Its best way: a queue that holds what is under way, `poll` now and then and when the queue is full.
"""

from __future__ import annotations

import sys
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer

LEVELS = {"zstd": 1}
READ_BYTES = 1 << 18
LINGER_MS = 50
KEY_BYTES = 12
HEADERS = [("source", b"access.log")]
BETWEEN_POLLS = 1000


class Count:
    """Of what was delivered, one call for each record."""

    def __init__(self) -> None:
        self.delivered = 0

    def done(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.delivered += 1


def main() -> None:
    path, servers, topic, codec, way = sys.argv[1:]
    level = {"compression.level": LEVELS[codec]} if codec in LEVELS else {}
    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "linger.ms": LINGER_MS, "compression.codec": codec} | level
    )
    counted = Count()
    options = {"headers": {"headers": HEADERS}, "callbacks": {"on_delivery": counted.done}}.get(way, {})
    produce = producer.produce
    sent = 0
    with Path(path).open("rb", READ_BYTES) as lines:
        for line in lines:
            if way == "keys":
                options["key"] = line[:KEY_BYTES]
            value = line[:-1]
            while True:
                try:
                    produce(topic, value, **options)
                except BufferError:
                    producer.poll(0.05)
                else:
                    break
            sent += 1
            if sent % BETWEEN_POLLS == 0:
                producer.poll(0)
    left = producer.flush(60)
    if left or (way == "callbacks" and counted.delivered != sent):
        raise RuntimeError(f"{left} left, {counted.delivered} callbacks for {sent} records")


main()
