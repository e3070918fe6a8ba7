"""A member of a group in a plain thread: `python sync_consumer_group.py BOOTSTRAP TOPIC GROUP COUNT`."""

import sys
from collections.abc import Sequence

from ingestd import GroupSettings, SyncConsumerGroup, TopicPartition


def assigned(partitions: Sequence[TopicPartition]) -> None:
    """Called from within `poll`, in the thread that polls."""
    print("assigned:", ", ".join(map(str, partitions)))


def main(bootstrap: str, topic: str, group_id: str, count: str) -> None:
    """Read COUNT records, the first by itself, the others many at once; commit after each."""
    settings = GroupSettings(no_offset="earliest", auto_commit_interval=None)
    left = int(count)
    with SyncConsumerGroup([bootstrap], group_id, [topic], settings, assigned=assigned) as group:
        while left == int(count):
            record = group.poll(timeout=1.0)  # None: there was none for a second
            if record is not None:
                left -= 1
        group.commit()
        while left:
            for records in group.take_chunks(timeout=1.0, max_records=left).values():
                left -= len(records)
            group.commit()
    print(f"{count} records")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
