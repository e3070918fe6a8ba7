"""Closing a blocking consumer ends, whatever holds its thread."""

import threading

import pytest

from ingestd.consumer.blocking import BlockingConsumer
from ingestd.errors import DeadlineExceeded


def test_closing_ends_although_the_thread_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, free = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        free.wait()

    consumer = BlockingConsumer(["127.0.0.1:9"])
    monkeypatch.setattr("ingestd.consumer.blocking._CLOSE_TIMEOUT", 0.1)
    consumer._loop.call_soon_threadsafe(block)
    assert blocked.wait(30)
    try:
        with pytest.raises(DeadlineExceeded, match="closing the consumer"):
            consumer.close()
    finally:
        free.set()
        consumer._thread.join(30)
    assert not consumer._thread.is_alive()
