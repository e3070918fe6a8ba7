"""Interceptors, on a cluster in memory: what they see, what they change, and what they cannot break."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import Fault, SimulatedCluster

from ingestd.errors import Closed, ErrorCode, KafkaError
from ingestd.producer.failures import SendFailed
from ingestd.producer.interceptors import Interceptor
from ingestd.producer.partitioners import custom, murmur2_partition
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ingestd.producer.delivery import Delivery
    from ingestd.producer.message import OutgoingMessage


class Prefix(Interceptor):
    """Puts a word before every value."""

    def __init__(self, word: bytes) -> None:
        self.word = word

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        return message._replace(value=self.word + (message.value or b""))


class Witness(Interceptor):
    """Remembers what it sees."""

    def __init__(self) -> None:
        self.sent: list[bytes | None] = []
        self.ends: list[tuple[bytes | None, Delivery]] = []

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        self.sent.append(message.value)
        return message

    def on_acknowledgement(self, message: OutgoingMessage, delivery: Delivery) -> None:
        self.ends.append((message.value, delivery))


class Broken(Interceptor):
    """Raises at everything."""

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        raise RuntimeError("on_send is broken")

    def on_acknowledgement(self, message: OutgoingMessage, delivery: Delivery) -> None:
        raise RuntimeError("on_acknowledgement is broken")


class Forgetful(Interceptor):
    """Returns nothing."""

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        return None  # type: ignore[return-value]


def in_simulation(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        simulate(test)

    run.__name__ = test.__name__
    return run


@asynccontextmanager
async def producing(
    cluster: SimulatedCluster, *interceptors: Interceptor, **settings: Any
) -> AsyncIterator[AsyncProducer]:
    made = ProducerSettings(interceptors=interceptors, **settings)
    async with AsyncProducer(cluster, made) as producer:  # type: ignore[arg-type]
        yield producer


@in_simulation
async def test_each_sees_what_the_one_before_it_made_of_the_record() -> None:
    cluster, witness = SimulatedCluster(1), Witness()
    async with producing(cluster, Prefix(b"inner "), witness, Prefix(b"outer ")) as producer:
        for number in range(10):
            producer.send("events", b"%d" % number, partition=0)
        await producer.flush(10.0)
    assert witness.sent == [b"inner %d" % number for number in range(10)]
    assert cluster.logs[0].values == [b"outer inner %d" % number for number in range(10)]


@in_simulation
async def test_the_partitioner_sees_the_changed_record() -> None:
    class Keyed(Interceptor):
        def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
            return message._replace(key=message.value)

    cluster = SimulatedCluster(4)
    values = [b"value %d" % number for number in range(40)]
    async with producing(cluster, Keyed()) as producer:
        for value in values:
            producer.send("events", value)
        await producer.flush(10.0)
    expected = {partition: [v for v in values if murmur2_partition(v, 4) == partition] for partition in range(4)}
    assert {partition: cluster.logs[partition].values for partition in range(4)} == expected


@in_simulation
async def test_acknowledgements_come_with_the_record_as_it_was_sent_and_before_its_own_callback() -> None:
    cluster, witness = SimulatedCluster(1), Witness()
    order: list[str] = []

    class First(Interceptor):
        def on_acknowledgement(self, message: OutgoingMessage, delivery: Delivery) -> None:
            order.append("interceptor")

    async with producing(cluster, Prefix(b"x "), witness, First()) as producer:
        producer.send("events", b"told", partition=0, done=lambda _: order.append("callback"))
        producer.send("events", b"untold", partition=0)
        await producer.flush(10.0)
    assert order == ["interceptor", "callback", "interceptor"]
    assert [(value, end.base_offset, end.records) for value, end in witness.ends] == [
        (b"x told", 0, 1),
        (b"x untold", 1, 1),
    ]


@in_simulation
async def test_failures_and_refusals_are_acknowledged_too_once_each() -> None:
    cluster, witness = SimulatedCluster(1), Witness()
    nowhere = custom(lambda key, value, partitions: -1, consistent=True)
    cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
    async with producing(cluster, witness, partitioner=nowhere) as producer:
        producer.send("events", b"refused by the broker", partition=0)
        with pytest.raises(SendFailed):
            await producer.flush(10.0)
        with pytest.raises(KafkaError, match="invalid partition"):
            producer.send("events", b"refused by send")
    with pytest.raises(Closed):
        producer.send("events", b"never seen")
    assert [(value, type(end.error)) for value, end in witness.ends] == [
        (b"refused by the broker", KafkaError),
        (b"refused by send", KafkaError),
    ]
    assert witness.sent == [value for value, _ in witness.ends]


@in_simulation
async def test_one_that_raises_is_passed_over_counted_and_logged() -> None:
    cluster, witness = SimulatedCluster(1), Witness()
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    log = logging.getLogger("ingestd.producer.interceptors")
    log.addHandler(handler)
    log.propagate = False
    try:
        async with producing(cluster, Broken(), Prefix(b"x "), Forgetful(), witness) as producer:
            ends: list[Delivery] = []
            for number in range(4):
                producer.send("events", b"%d" % number, partition=0, done=ends.append)
            await producer.flush(10.0)
            assert producer.interceptor_failures == 12
    finally:
        log.removeHandler(handler)
        log.propagate = True
    assert [end.error for end in ends] == [None] * 4
    assert cluster.logs[0].values == witness.sent == [b"x %d" % number for number in range(4)]
    assert len(witness.ends) == 4
    assert len(logged) == 4  # the 1st, 2nd, 4th and 8th
    assert logged[0].exc_info is not None
    assert "Broken.on_send raised for a record of events" in logged[0].getMessage()
    assert "Forgetful.on_send" in logged[1].getMessage()


@in_simulation
async def test_without_interceptors_records_go_the_short_way_and_with_them_none_does() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster) as producer:
        producer.send("events", b"", partition=0)
        await producer.flush(10.0)
        assert producer._intakes
    async with producing(cluster, Witness()) as producer:
        producer.send("events", b"", partition=0)
        await producer.flush(10.0)
        assert not producer._intakes
