"""Closing a synchronous consumer ends, whatever holds its thread."""

import threading

import pytest

from ingestd.consumer.sync import SyncConsumer
from ingestd.errors import DeadlineExceeded


def test_closing_ends_although_the_thread_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, free = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        free.wait()

    consumer = SyncConsumer(["127.0.0.1:9"])
    monkeypatch.setattr("ingestd.client.loop_thread.CLOSE_MARGIN", 0.1)
    consumer._host._loop.call_soon_threadsafe(block)
    assert blocked.wait(30)
    try:
        with pytest.raises(DeadlineExceeded, match="closing the consumer"):
            consumer.close(0.1)
    finally:
        free.set()
        consumer._host._thread.join(30)
    assert not consumer._host._thread.is_alive()


def test_one_dropped_unclosed_warns_and_takes_its_thread_down() -> None:
    # It lived on as long as the process, with its thread and its connections.
    holder = [SyncConsumer(["127.0.0.1:9"])]
    thread = holder[0]._host._thread
    with pytest.warns(ResourceWarning, match="unclosed"):
        holder.clear()
    thread.join(30)
    assert not thread.is_alive()
