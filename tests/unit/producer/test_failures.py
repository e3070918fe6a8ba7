"""No record is lost in silence: what nobody is told of by `done` is raised by `flush` or `close`, and in the log."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import Fault, SimulatedCluster, ready_batch

from ingestd.client.metadata import TopicMetadata
from ingestd.errors import Closed, ErrorCode, IngestdError, KafkaError
from ingestd.producer.failures import Failures, SendFailed
from ingestd.producer.interceptors import Interceptor
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ingestd.producer.delivery import Delivery
    from ingestd.producer.message import OutgoingMessage

LOGGER = "ingestd.producer.failures"


def in_simulation(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, LOGGER):
            simulate(lambda: test(caplog))

    run.__name__ = test.__name__
    return run


def producing(cluster: SimulatedCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer(cluster, ProducerSettings(**settings))  # type: ignore[arg-type]


def code(error: BaseException | None) -> ErrorCode:
    assert isinstance(error, KafkaError)
    return error.code


@in_simulation
async def test_flush_raises_what_a_broker_refused(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.logs[0].largest = 1000
    async with producing(cluster) as producer:
        producer.send("events", b"x" * 5000)
        producer.send("events", b"x" * 5000)
        told = r"2 records failed \(events: 2\), the first with: MESSAGE_TOO_LARGE"
        with pytest.raises(SendFailed, match=told) as raised:
            await producer.flush()
        assert code(raised.value.error) is ErrorCode.message_too_large
        assert raised.value.records == {"events": 2}
        assert raised.value.__cause__ is raised.value.error
        producer.send("events", b"small")
        await producer.flush()  # each failure is raised once
    assert cluster.logs[0].values == [b"small"]
    (said,) = caplog.messages  # the second was told by `flush`
    assert said.startswith("records not delivered: 1 for events: MESSAGE_TOO_LARGE")


@in_simulation
async def test_leaving_the_block_raises_what_failed_since_the_last_flush(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    with pytest.raises(SendFailed) as raised:
        async with producing(cluster) as producer:
            producer.send("events", b"nowhere", partition=99)
    assert code(raised.value.error) is ErrorCode.unknown_topic_or_partition
    with pytest.raises(Closed):
        producer.send("events", b"late")


@in_simulation
async def test_an_exception_of_the_block_goes_on_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.logs[0].error = ErrorCode.invalid_record

    async def fail() -> None:
        async with producing(cluster) as producer:
            producer.send("events", b"refused")
            raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body") as raised:
        await fail()
    assert raised.value.__notes__ == ["1 record failed (events: 1), the first with: INVALID_RECORD (87): events[0]"]
    assert len(caplog.messages) == 1


@in_simulation
async def test_an_unknown_topic_is_raised_by_name(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.exists = False
    cluster.errors["other"] = TopicMetadata("other", None, (), error=ErrorCode.unknown_topic_or_partition)
    async with producing(cluster, metadata_timeout=5.0) as producer:
        producer.send("other", b"one")
        producer.send("other", b"two", key=b"keyed")
        with pytest.raises(SendFailed, match=r"2 records failed \(other: 2\)"):
            await producer.flush()


@in_simulation
async def test_what_close_gives_up_is_raised_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.down = {1, 2, 3}
    producer = producing(cluster)
    producer.send("events", b"one")
    with pytest.raises(SendFailed, match="the producer was closed: draining the producer: not done within 2 s"):
        await producer.close(2.0)
    await producer.close()


@in_simulation
async def test_what_done_was_told_of_is_not_raised_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.logs[0].error = ErrorCode.invalid_record
    ends: list[Delivery] = []
    async with producing(cluster) as producer:
        producer.send("events", b"told", done=ends.append)
        producer.send_batch("events", 0, memoryview(ready_batch([b"a", b"b"])), 2, ends.append)
        with pytest.raises(KafkaError):
            await producer.send_and_wait("events", b"awaited")
        await producer.flush()
    assert len(ends) == 2
    assert caplog.messages == []


@in_simulation
async def test_of_a_batch_those_without_done_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.logs[0].error = ErrorCode.invalid_record
    ends: list[Delivery] = []
    async with producing(cluster) as producer:
        for number in range(6):
            producer.send("events", b"", done=ends.append if number in (1, 3) else None)
        with pytest.raises(SendFailed) as raised:
            await producer.flush()
    assert raised.value.records == {"events": 4}
    assert len(ends) == 2


@in_simulation
async def test_an_interceptor_that_looks_on_is_nobody_who_was_told(caplog: pytest.LogCaptureFixture) -> None:
    class Witness(Interceptor):
        def on_acknowledgement(self, message: OutgoingMessage, delivery: Delivery) -> None:
            pass

    cluster = SimulatedCluster(1)
    cluster.logs[0].error = ErrorCode.invalid_record
    async with producing(cluster, interceptors=(Witness(),)) as producer:
        producer.send("events", b"")
        with pytest.raises(SendFailed):
            await producer.flush()


@in_simulation
async def test_a_cancelled_close_leaves_what_it_gave_up_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(1)
    cluster.down = {1, 2, 3}
    producer = producing(cluster)
    producer.send("events", b"one")
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(1.0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [message.partition(":")[0] for message in caplog.messages] == ["records not delivered"]


@in_simulation
async def test_what_ends_the_producer_is_raised_for_all_that_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(2)
    cluster.leaders = [(1, 0)] * 2
    cluster.faults.script.append(Fault(ErrorCode.cluster_authorization_failed, appended=False))
    async with producing(cluster) as producer:
        producer.send("events", b"one", partition=0)
        producer.send("events", b"two", partition=1)
        with pytest.raises(SendFailed) as raised:
            await producer.flush()
    assert raised.value.records == {"events": 2}
    assert code(raised.value.error) is ErrorCode.cluster_authorization_failed


def test_a_producer_that_is_dropped_with_records_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        cluster = SimulatedCluster(1)
        producer = producing(cluster, linger=60.0)
        producer.send("events", b"never sent")

    simulate(work)
    gc.collect()
    assert caplog.messages == ["producer dropped without close: 1 batches were not delivered"]


@in_simulation
async def test_many_failures_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    error = IngestdError("because")
    for _ in range(1000):
        failures.note("events", 10, error)
        await asyncio.sleep(0.021)
    failures.say()
    assert caplog.messages[0] == "records not delivered: 10 for events: because"
    assert len(caplog.messages) == 4
    assert sum(int(message.split()[3]) for message in caplog.messages) == 10_000
    failed = failures.take()
    assert failed is not None
    assert failed.records == {"events": 10_000}
    assert failures.take() is None
