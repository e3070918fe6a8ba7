"""Send from plain threads, and wait for each record: `python sync_producer.py BOOTSTRAP TOPIC`."""

import sys
from concurrent.futures import ThreadPoolExecutor

from ingestd import OutgoingMessage, SendFailed, SyncProducer


def main(bootstrap: str, topic: str) -> None:
    """Send one record, then many at once, from several threads that share the producer."""
    with SyncProducer([bootstrap]) as producer:
        sent = producer.send(topic, b"one", headers=[("source", b"example")])
        print(f"one is at partition {sent.partition}, offset {sent.offset}")

        def work(thread: int) -> int:
            messages = [OutgoingMessage(topic, b"%d from thread %d" % (number, thread)) for number in range(100)]
            try:
                return len(producer.send_many(messages))
            except SendFailed as failed:
                for failure in failed.failures:
                    print(f"message {failure.index}: {failure.error}", file=sys.stderr)
                raise

        with ThreadPoolExecutor(4) as threads:
            print(f"{sum(threads.map(work, range(4)))} from four threads")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
