"""Read a topic without an event loop: `python sync_consumer.py BOOTSTRAP TOPIC`."""

import sys

from ingestd import SyncConsumer


def main(bootstrap: str, topic: str) -> None:
    """Count records and their bytes, batch by batch, decoding nothing."""
    with SyncConsumer([bootstrap], patience=30) as consumer:
        records = size = 0
        for partition in consumer.partitions(topic):
            for batch in consumer.batches(topic, partition, "earliest", "latest"):
                records += batch.header.records
                size += len(batch.data)
    print(f"{records} records, {size} bytes as the broker keeps them")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
