"""What a synchronous consumer's calls leave behind when they end early, and from which threads they can be made."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from scripted_cluster import Cluster, part

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.settings import Edge
from ingestd.consumer.sync import SyncConsumer, SyncPartition
from ingestd.errors import DeadlineExceeded, IngestdError, WrongLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine

NOBODY = ["127.0.0.1:9"]
PATIENCE = 30.0


async def test_what_comes_as_the_patience_ends_is_read_by_the_next_call(make_batch: Any) -> None:
    # The batches are taken on the loop, and the caller's wait ends before it hears of them.
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        loop = asyncio.get_running_loop()
        too_late = iter([True])

        def call(work: Coroutine[Any, Any, Any], doing: str, why: Any = None) -> Any:
            outcome = asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)
            if next(too_late, False):
                raise DeadlineExceeded(doing)
            return outcome

        reading = SyncPartition(await consumer.consume_partition("t", 0, 0, 2), call, check_crcs=True)
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a", b"b"])))
        with pytest.raises(DeadlineExceeded):
            await asyncio.to_thread(list, reading.records())
        assert [record.offset for record in await asyncio.to_thread(list, reading.records())] == [0, 1]


def test_a_question_that_is_not_answered_in_time_says_why() -> None:
    # "not done within 0.2 s" was all that it said of a broker that refuses.
    with SyncConsumer(NOBODY, patience=0.2) as consumer:
        for ask in (consumer.topics, lambda: consumer.partitions("t"), lambda: consumer.consume_partition("t", 0, 0)):
            with pytest.raises(DeadlineExceeded, match=r"not done within 0.2 s; .*127\.0\.0\.1:9: Connection refused"):
                ask()


async def test_pausing_from_another_thread_is_refused() -> None:
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = await consumer.consume_partition("t", 0, 0)
        for call in (consumer.pause_all, consumer.resume_all):
            with pytest.raises(WrongLoop, match=r"the consumer was called in thread .* which runs no event loop"):
                await asyncio.to_thread(call)
        assert not reading.paused


async def test_the_ends_of_a_log_are_asked_for_by_name() -> None:
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        by_name = await consumer.offsets({TopicPartition("t", 0): "earliest"})
        assert by_name == await consumer.offsets({TopicPartition("t", 0): Edge.earliest})
        by_name = await consumer.offsets({TopicPartition("t", 0): "latest"})
        assert by_name == await consumer.offsets({TopicPartition("t", 0): Edge.latest})


async def test_a_read_to_which_nothing_comes_says_what_it_waits_for() -> None:
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = await consumer.consume_partition("t", 0, 5)
        assert reading.awaits == "its broker has not answered yet"
        (await cluster.asked()).answer(part(0, high_watermark=5))
        await cluster.asked()
        assert reading.awaits == "there is no record at offset 5 yet"
        reading.pause()
        assert reading.awaits == "it is paused"
        reading.report(IngestdError("refused"))
        assert reading.awaits == "refused"


def test_an_interrupted_call_waits_no_more() -> None:
    # Left alone it would take the batches that the next call waits for, or be the second reader that is refused.
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait(PATIENCE)
        caller = threading.main_thread().ident or 0
        while sys._current_frames()[caller].f_code is not threading.Condition.wait.__code__:
            time.sleep(0.001)  # not yet waiting
        signal.pthread_kill(caller, signal.SIGINT)

    with SyncConsumer(NOBODY, patience=10.0) as consumer:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            consumer._call(wait(), "waiting")
        assert ended.wait(PATIENCE)


def test_a_call_in_the_consumers_own_thread_is_refused_and_closing_there_waits_for_nothing() -> None:
    # A generator in a reference cycle is closed by whichever thread collects it.
    consumer = SyncConsumer(NOBODY)
    found: list[IngestdError] = []
    tried = threading.Event()

    def work() -> None:
        for call in (consumer.status, consumer.close):
            try:
                call()
            except IngestdError as error:
                found.append(error)
        tried.set()

    consumer._host._loop.call_soon_threadsafe(work)
    assert tried.wait(PATIENCE)
    assert [type(error) for error in found] == [IngestdError]
    consumer._host._thread.join(PATIENCE)
    assert not consumer._host._thread.is_alive()
