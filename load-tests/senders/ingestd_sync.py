"""`SyncProducer.send_many`, ten thousand lines of a file at a time: LOG SERVERS TOPIC CODEC plain."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from ingestd.producer.message import OutgoingMessage
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import SyncProducer
from ingestd.records.codecs import Compression

LEVELS = {"zstd": 1}
READ_BYTES = 1 << 18
AT_ONCE = 10_000


def main() -> None:
    path, servers, topic, codec, _ = sys.argv[1:]
    # Its own default: who waits for each record gains nothing from lingering.
    settings = ProducerSettings(linger=0.0, compression=Compression.parse(codec, LEVELS.get(codec)))
    with Path(path).open("rb", READ_BYTES) as lines, SyncProducer(servers.split(","), settings) as producer:
        while some := [OutgoingMessage(topic, line[:-1]) for line in itertools.islice(lines, AT_ONCE)]:
            producer.send_many(some)


main()
