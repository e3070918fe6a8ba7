"""What each stage promises, shown on a cluster in memory and in simulated time."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import Fault, SimulatedCluster, SimulatedLog, ready_batch

from ingestd.client.metadata import TopicMetadata
from ingestd.errors import (
    BufferFull,
    Closed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    UnsupportedCodec,
)
from ingestd.producer.identity import ProducerIdentity, next_sequence
from ingestd.producer.partitioners import custom, manual, round_robin
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.batch import patch_producer, read_header
from ingestd.records.codecs import Codec, Compression

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ingestd.producer.delivery import Delivery

FOREVER = float("inf")


class Ends(list["Delivery"]):
    """Deliveries as they come."""

    @property
    def errors(self) -> list[IngestdError]:
        """Those that failed."""
        return [end.error for end in self if end.error is not None]

    @property
    def codes(self) -> list[ErrorCode]:
        """What brokers said."""
        return [error.code for error in self.errors if isinstance(error, KafkaError)]


class Recorder:
    """Events as they come."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def acknowledged(self, topic: str, partition: int, records: int, size: int, seconds: float) -> None:
        self.events.append(("acknowledged", topic, partition, records, size > 60, seconds > 0))

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        self.events.append(("retried", topic, partition, type(error)))

    def failed(self, topic: str, partition: int, records: int, error: IngestdError) -> None:
        self.events.append(("failed", topic, partition, records, type(error)))

    def throttled(self, node: int, seconds: float) -> None:
        self.events.append(("throttled", node, seconds))


@asynccontextmanager
async def producing(cluster: SimulatedCluster, **settings: Any) -> AsyncIterator[AsyncProducer]:
    """A producer that already has metadata, an identity and settled partitions."""
    events = settings.pop("events", None)
    warm = settings.pop("warm", True)
    settings = {"delivery_timeout": FOREVER, "request_timeout": 3.0} | settings
    async with AsyncProducer(cluster, ProducerSettings(**settings), events=events) as producer:  # type: ignore[arg-type]
        if warm:
            for partition in range(len(cluster.logs)):
                producer.send_batch(cluster.topic, partition, memoryview(ready_batch([b"warm"])), 1, lambda _: None)
            await producer.flush(10.0)
            cluster.requests = 0
        yield producer


def send(producer: AsyncProducer, ends: Ends, values: list[bytes], partition: int = 0) -> memoryview:
    """One ready batch."""
    batch = memoryview(ready_batch(values))
    producer.send_batch("events", partition, batch, len(values), ends.append)
    return batch


def in_simulation(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in simulated time."""

    def run() -> None:
        simulate(test)

    run.__name__ = test.__name__
    return run


@in_simulation
async def test_batches_of_several_partitions_share_a_request_up_to_its_limit() -> None:
    cluster = SimulatedCluster(6)
    cluster.leaders = [(1, 0)] * 6
    ends = Ends()
    async with producing(cluster, request_bytes=3 * len(ready_batch([b"x" * 100]))) as producer:
        for partition in range(6):
            send(producer, ends, [b"x" * 100], partition)
        await producer.flush(1.0)
    assert cluster.requests == 2
    assert not ends.errors


@in_simulation
async def test_one_partition_has_one_batch_in_a_request_and_five_requests_in_flight() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        for number in range(50):
            send(producer, ends, [b"%d" % number])
        await producer.flush(10.0)
    assert cluster.requests == 50
    assert cluster.connections[0].in_flight_peak == 5
    assert cluster.logs[0].values[1:] == [b"%d" % number for number in range(50)]
    assert [end.base_offset for end in ends] == list(range(1, 51))


@in_simulation
async def test_the_first_batch_goes_alone_because_a_broker_without_state_would_take_any_sequence() -> None:
    cluster = SimulatedCluster(1)
    cluster.faults.script.append(Fault(ErrorCode.not_enough_replicas, appended=False))
    ends = Ends()
    async with producing(cluster, warm=False) as producer:
        for number in range(4):
            send(producer, ends, [b"%d" % number])
        await producer.flush(10.0)
    assert cluster.logs[0].values == [b"0", b"1", b"2", b"3"]
    assert cluster.requests == 5


@in_simulation
async def test_producers_of_one_client_keep_to_the_limit_of_their_connection() -> None:
    """Neither is it exceeded, which would end the connection, nor does one wait for ever for what the other has."""
    cluster = SimulatedCluster(1)
    ends, others = Ends(), Ends()
    events = Recorder()
    async with producing(cluster, events=events) as producer, producing(cluster, events=events) as other:
        cluster.in_flight_limit = 2
        cluster.connections[0].in_flight_peak = 0
        for number in range(20):
            send(producer, ends, [b"%d" % number])
            send(other, others, [b"%d" % number])
        await producer.flush(10.0)
        await other.flush(10.0)
    assert len(cluster.connections) == 1
    assert cluster.connections[0].in_flight_peak == 2
    assert len(ends) == len(others) == 20
    assert {kind for kind, *_ in events.events} == {"acknowledged"}


@in_simulation
async def test_without_idempotence_a_partition_has_one_batch_in_flight() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, acks=1) as producer:
        for number in range(10):
            batch = send(producer, ends, [b"%d" % number])
        await producer.flush(10.0)
    assert read_header(batch).producer_id == -1
    assert cluster.connections[0].in_flight_peak == 1
    assert cluster.logs[0].values[1:] == [b"%d" % number for number in range(10)]


@in_simulation
async def test_a_leader_named_by_the_answer_is_followed_without_waiting_for_metadata() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.move(0, 2)
        cluster.metadata.wishes.clear()
        send(producer, ends, [b"a"])
        await producer.flush(1.0)
    assert cluster.metadata.taken == 1
    assert cluster.metadata.wishes == []
    assert cluster.logs[0].values == [b"warm", b"a"]


@in_simulation
async def test_without_a_named_leader_metadata_is_wanted() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.metadata.wishes.clear()
        cluster.faults.script.append(Fault(ErrorCode.not_leader_or_follower, appended=False))
        send(producer, ends, [b"a"])
        await producer.flush(1.0)
    assert cluster.metadata.wishes == [("events",)]
    assert not ends.errors


@in_simulation
async def test_what_follows_a_batch_that_is_retried_waits_and_stays_behind_it() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.faults.script.extend([Fault(), Fault(ErrorCode.not_enough_replicas, appended=False)])
        batches = [send(producer, ends, [b"%d" % number]) for number in range(4)]
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"warm", b"0", b"1", b"2", b"3"]
    assert [read_header(batch).base_sequence for batch in batches] == [1, 2, 3, 4]
    assert {read_header(batch).producer_epoch for batch in batches} == {0}


@in_simulation
async def test_a_connection_is_aborted_before_what_timed_out_on_it_is_handed_back() -> None:
    # The request's future fails and the connection would live on: a late write from the batch's memory is possible.
    cluster = SimulatedCluster(1)
    cluster.connections_end_themselves = False
    ends = Ends()
    async with producing(cluster, request_timeout=1.0, delivery_timeout=0.5) as producer:
        cluster.faults.script.append(Fault(hang=True))
        producer.send_batch(
            "events",
            0,
            memoryview(ready_batch([b"a"])),
            1,
            lambda end: ends.append(end) if cluster.connections[0].closed else pytest.fail("not aborted"),
        )
        await producer.flush(5.0)
    assert [type(error) for error in ends.errors] == [DeadlineExceeded]


@in_simulation
async def test_a_node_that_is_slow_to_connect_to_is_left_as_soon_as_the_leader_is_another() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.connections[0].abort(ConnectionLost("frozen"))
        cluster.frozen.add(1)
        started = time.monotonic()
        send(producer, ends, [b"a"])
        await asyncio.sleep(2.5)
        cluster.move(0, 2)
        await producer.flush(10.0)
        assert time.monotonic() - started < 4.0
    assert cluster.logs[0].values == [b"warm", b"a"]


@in_simulation
async def test_a_frozen_leader_is_left_when_there_is_another_and_not_only_after_the_request_timeout() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, request_timeout=30.0) as producer:
        cluster.faults.script.append(Fault(hang=True))
        for number in range(10):
            send(producer, ends, [b"%d" % number])
        await asyncio.sleep(1.5)
        cluster.move(0, 2)
        started = time.monotonic()
        await producer.flush(60.0)
        assert time.monotonic() - started < 5.0
    assert cluster.connections[0].closed
    assert cluster.logs[0].values == [b"warm", *(b"%d" % number for number in range(10))]


@in_simulation
async def test_a_frozen_leader_is_left_by_what_waits_behind_a_partition_that_has_no_other_leader() -> None:
    cluster = SimulatedCluster(3)
    cluster.leaders = [(1, 0)] * 3
    ends = Ends()
    async with producing(cluster, request_timeout=30.0, in_flight_requests=2) as producer:
        cluster.faults.script.append(Fault(hang=True, appended=False))
        for partition in range(3):
            send(producer, ends, [b"a"], partition)
            await asyncio.sleep(0.001)
        wishes = len(cluster.metadata.wishes)
        cluster.move(1, 2)
        cluster.move(2, 3)
        started = time.monotonic()
        await producer.flush(60.0)
        assert time.monotonic() - started < 8.0
        assert len(cluster.metadata.wishes) > wishes
    assert [log.values for log in cluster.logs] == [[b"warm", b"a"]] * 3
    assert not ends.errors


@in_simulation
async def test_a_leader_that_is_only_slow_is_waited_for() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, request_timeout=30.0, acknowledge_timeout=20.0) as producer:
        cluster.faults.trip = lambda: 8.0  # type: ignore[method-assign]
        send(producer, ends, [b"a"])
        await producer.flush(60.0)
    assert len(cluster.connections) == 1
    assert cluster.requests == 1


@in_simulation
async def test_a_duplicate_counts_as_success() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.faults.script.append(Fault(ErrorCode.duplicate_sequence_number))
        send(producer, ends, [b"a"])
        await producer.flush(1.0)
    assert [(end.error, end.base_offset) for end in ends] == [(None, -1)]
    assert cluster.requests == 1


@in_simulation
async def test_a_leader_that_lost_what_it_had_acknowledged_gets_the_rest_under_a_new_epoch() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        send(producer, ends, [b"a", b"b"])
        await producer.flush(1.0)
        cluster.logs[0].producers[1].batches.pop()
        batches = [send(producer, ends, [b"%d" % number]) for number in range(3)]
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"warm", b"a", b"b", b"0", b"1", b"2"]
    assert [(read_header(batch).producer_epoch, read_header(batch).base_sequence) for batch in batches] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert not ends.errors


@in_simulation
async def test_batches_appended_before_the_leader_restarted_with_a_snapshot_are_not_doubled() -> None:
    # Three batches are appended, no answer arrives, and the restarted leader remembers the last of them only:
    # it says OUT_OF_ORDER_SEQUENCE_NUMBER to the first, whose sequence it has in its log.
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.faults.script.extend([Fault(hang=True)])
        for number in range(3):
            send(producer, ends, [b"%d" % number])
        await asyncio.sleep(0.1)
        for number in (1, 2):
            batch = ready_batch([b"%d" % number])
            patch_producer(memoryview(batch), 1, 0, 1 + number)
            assert cluster.logs[0].append(bytes(batch))[0] is ErrorCode.none
        cluster.logs[0].restart()
        await producer.flush(30.0)
        send(producer, ends, [b"3"])
        await producer.flush(30.0)
    assert cluster.logs[0].values == [b"warm", b"0", b"1", b"2", b"3"]
    assert not ends.errors
    assert len(ends) == 4


def test_sequences_wrap_from_the_largest_to_zero() -> None:
    assert next_sequence(2**31 - 1, 1) == 0
    assert next_sequence(2**31 - 3, 5) == 2

    @in_simulation
    async def wrap() -> None:
        cluster = SimulatedCluster(1)
        ends = Ends()
        async with producing(cluster) as producer:
            partition = producer._dispatcher.topic("events").producer_of(0)
            partition._sequence = 2**31 - 2
            cluster.logs[0].producers[1].batches.append((0, 2**31 - 3, 0))
            for _ in range(4):
                send(producer, ends, [b"a", b"b", b"c"])
            await producer.flush(1.0)
        assert not ends.errors
        assert len(cluster.logs[0].values) == 13
        assert cluster.logs[0].producers[1].batches[-1][1] == 9

    wrap()


@in_simulation
async def test_a_batch_refused_for_good_does_not_block_its_partition() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.faults.script.extend([Fault(), Fault(ErrorCode.invalid_record, appended=False)])
        for number in range(5):
            send(producer, ends, [b"%d" % number])
        await producer.flush(5.0)
    assert ends.codes == [ErrorCode.invalid_record]
    assert cluster.logs[0].values == [b"warm", b"0", b"2", b"3", b"4"]
    assert cluster.logs[0].producers[1].epoch == 1


@in_simulation
async def test_a_refusal_waits_until_the_fate_of_what_was_sent_before_it_is_known() -> None:
    # In one window: the first is appended and answered REQUEST_TIMED_OUT, the second is refused for good. Renumbering
    # at once would append the first again under the new epoch.
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.faults.script.extend(
            [
                Fault(ErrorCode.request_timed_out),
                Fault(ErrorCode.invalid_record, appended=False),
                Fault(),
                Fault(),
                Fault(ErrorCode.invalid_record, appended=False),
            ]
        )
        for number in range(3):
            send(producer, ends, [b"%d" % number])
        await producer.flush(5.0)
    assert ends.codes == [ErrorCode.invalid_record]
    assert cluster.logs[0].values == [b"warm", b"0", b"2"]


@in_simulation
async def test_a_batch_too_large_is_halved_until_it_fits_and_keeps_its_order_and_codec() -> None:
    cluster = SimulatedCluster(1)
    cluster.logs[0].largest = 700
    values = [b"%03d" % number + bytes(100) for number in range(20)]
    ends = Ends()
    async with producing(cluster) as producer:
        first = ready_batch(values, Compression(Codec.none))
        producer.send_batch("events", 0, memoryview(first), len(values), ends.append)
        send(producer, ends, [b"after"])
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"warm", *values, b"after"]
    assert [(end.records, end.base_offset, end.error) for end in ends] == [(20, 1, None), (1, 21, None)]


@in_simulation
async def test_a_single_record_too_large_fails_and_its_neighbours_do_not() -> None:
    cluster = SimulatedCluster(1)
    cluster.logs[0].largest = 200
    ends = Ends()
    async with producing(cluster) as producer:
        for value in (b"a", bytes(1000), b"b"):
            producer.send("events", value, partition=0, done=ends.append)
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"warm", b"a", b"b"]
    assert ends.codes == [ErrorCode.message_too_large]


@in_simulation
async def test_a_delivery_timeout_ends_a_batch_that_never_got_through_and_the_next_one_goes() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, delivery_timeout=2.0, retry_maximum=0.2) as producer:
        cluster.down.update(cluster.nodes)
        send(producer, ends, [b"lost"])
        started = time.monotonic()
        await producer.flush(10.0)
        assert time.monotonic() - started < 6.0
        assert [type(error) for error in ends.errors] == [DeadlineExceeded]
        assert "events[0]" in str(ends.errors[0])
        assert "node 1: connection refused" in str(ends.errors[0])
        cluster.down.clear()
        send(producer, ends, [b"next"])
        await producer.flush(10.0)
    assert cluster.logs[0].values == [b"warm", b"next"]
    assert len(ends) == 2


@in_simulation
async def test_a_throttled_broker_is_left_alone_for_as_long_as_it_says() -> None:
    cluster = SimulatedCluster(1)
    recorder = Recorder()
    async with producing(cluster, events=recorder) as producer:
        cluster.throttle_ms = 700
        ends = Ends()
        send(producer, ends, [b"a"])
        await producer.flush(1.0)
        cluster.throttle_ms = 0
        started = time.monotonic()
        send(producer, ends, [b"b"])
        await producer.flush(2.0)
        assert 0.6 < time.monotonic() - started < 0.8
    assert ("throttled", 1, 0.7) in recorder.events


@in_simulation
async def test_records_are_sent_by_bytes_by_number_or_by_age_whichever_comes_first() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, batch_bytes=1000, batch_records=10, linger=0.5) as producer:
        started = time.monotonic()
        producer.send("events", bytes(2000), partition=0, done=ends.append)
        while len(ends) < 1:
            await asyncio.sleep(0.001)
        for _ in range(10):
            producer.send("events", b"x", partition=0, done=ends.append)
        while len(ends) < 11:
            await asyncio.sleep(0.001)
        assert time.monotonic() - started < 0.1
        producer.send("events", b"y", partition=0, done=ends.append)
        while len(ends) < 12:
            await asyncio.sleep(0.001)
        assert 0.5 < time.monotonic() - started < 0.7
    assert cluster.requests == 3


@pytest.mark.parametrize("codec", Codec)
def test_no_batch_is_larger_than_brokers_take_unless_told_otherwise(codec: Codec) -> None:
    async def work() -> None:
        cluster = SimulatedCluster(1)
        cluster.logs[0].largest = 1_048_588  # max.message.bytes of a topic that says nothing
        recorder = Recorder()
        values = [Random(number).randbytes(38) for number in range(50_000)]
        async with producing(cluster, events=recorder, compression=Compression(codec)) as producer:
            recorder.events.clear()
            for value in values:
                producer.send("events", value, partition=0)
            await producer.flush(10.0)
        assert cluster.logs[0].values[1:] == values
        assert [event[0] for event in recorder.events] == ["acknowledged"] * 3

    simulate(work)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_is_split_is_counted(codec: Codec) -> None:
    async def work() -> None:
        cluster = SimulatedCluster(1)
        recorder = Recorder()
        values = [Random(number).randbytes(50) for number in range(8)]
        async with producing(cluster, events=recorder, compression=Compression(codec)) as producer:
            recorder.events.clear()
            cluster.logs[0].largest = 400
            for value in values:
                producer.send("events", value, partition=0)
            await producer.flush(10.0)
        assert cluster.logs[0].values[1:] == values
        assert [event[0] for event in recorder.events] == ["retried", "acknowledged", "acknowledged"]

    simulate(work)


@in_simulation
async def test_a_record_that_is_too_large_is_said_once_however_often_its_batch_was_split() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.logs[0].largest = 200
        send(producer, ends, [b"%d" % number for number in range(8)] + [bytes(1000)])
        await producer.flush(10.0)
    assert cluster.logs[0].values[1:] == [b"%d" % number for number in range(8)]
    assert len(ends) == 1
    said = str(ends[0].error)
    assert said.startswith("MESSAGE_TOO_LARGE (10): events[")
    assert "]: part of a batch that was split because of its size failed" in said
    assert (said.count("part of a batch"), said.count("MESSAGE_TOO_LARGE")) == (1, 1)
    assert said.count("events[") == 1


@in_simulation
async def test_a_ready_batch_stays_behind_the_records_sent_before_it() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, linger=1.0) as producer:
        producer.send("events", b"record", partition=0)
        send(producer, ends, [b"batch"])
        producer.send("events", b"record after", partition=0)
        await producer.flush(1.0)
    assert cluster.logs[0].values == [b"warm", b"record", b"batch", b"record after"]


@in_simulation
async def test_a_full_buffer_refuses_and_room_comes_with_acknowledgements() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, buffer_bytes=1000, linger=0.1) as producer:
        while producer.buffered_bytes < 1000:
            producer.send("events", bytes(100), partition=0, done=ends.append)
        with pytest.raises(BufferFull):
            producer.send("events", b"too much", partition=0, done=ends.append)
        await asyncio.wait_for(producer.room(), 1.0)
        producer.send("events", b"fits", partition=0, done=ends.append)
        await producer.flush(1.0)
        assert producer.buffered_bytes == 0
    assert len(ends) == len(cluster.logs[0].values) - 1


@in_simulation
async def test_records_wait_for_the_topic_to_be_known_and_keep_their_order() -> None:
    cluster = SimulatedCluster(1)
    cluster.exists = False
    ends = Ends()
    async with producing(cluster, warm=False) as producer:
        for number in range(3):
            producer.send("events", b"%d" % number, done=ends.append)
        flush = asyncio.create_task(producer.flush(20.0))
        await asyncio.sleep(5.0)
        assert not ends
        cluster.exists = True
        await flush
    assert cluster.logs[0].values == [b"0", b"1", b"2"]
    assert [end.base_offset for end in ends] == [0, 1, 2]


@in_simulation
async def test_an_unknown_topic_fails_after_the_limit_and_then_the_breaker_refuses_at_once() -> None:
    cluster = SimulatedCluster(1)
    cluster.exists = False
    ends = Ends()
    async with producing(cluster, warm=False, metadata_timeout=2.0, breaker_failures=2) as producer:
        for _ in range(2):
            started = time.monotonic()
            producer.send("events", b"a", done=ends.append)
            await producer.flush(10.0)
            assert 1.9 < time.monotonic() - started < 2.5
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            producer.send("events", b"b")
        wishes = len(cluster.metadata.wishes)
        await asyncio.sleep(5.0)
        assert len(cluster.metadata.wishes) == wishes
        await asyncio.sleep(6.0)
        cluster.exists = True
        producer.send("events", b"c", done=ends.append)
        await producer.flush(10.0)
    assert ends.codes == [ErrorCode.unknown_topic_or_partition] * 2
    assert cluster.logs[0].values == [b"c"]


@in_simulation
async def test_a_partition_that_its_topic_does_not_have_is_given_up_soon_although_a_topic_would_be_waited_for() -> None:
    """The topic is there, so it has no more partitions, or was made again with fewer: waiting for long is in vain."""
    cluster = SimulatedCluster(2)
    ends = Ends()
    async with producing(cluster, metadata_timeout=FOREVER) as producer:
        started = time.monotonic()
        producer.send("events", b"never", partition=5, done=ends.append)
        producer.send("events", b"later", partition=2, done=ends.append)
        await asyncio.sleep(5.0)
        assert not ends
        cluster.leaders.append((1, 0))
        cluster.logs.append(SimulatedLog())
        await producer.flush(60.0)
        assert 9.9 < time.monotonic() - started < 11
    assert [str(error) for error in ends.errors] == [
        "UNKNOWN_TOPIC_OR_PARTITION (3): events[5]: the topic has 3 partitions"
    ]
    assert cluster.logs[2].values == [b"later"]


@in_simulation
async def test_a_topic_that_is_not_there_is_waited_for_as_long_as_is_wished() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster, metadata_timeout=FOREVER) as producer:
        cluster.exists = False
        cluster.logs[0].error = ErrorCode.unknown_topic_or_partition
        producer.send("events", b"patient", partition=0, done=ends.append)
        await asyncio.sleep(1800.0)
        assert not ends
        cluster.exists = True
        cluster.logs[0].error = ErrorCode.none
        await producer.flush(60.0)
    assert not ends.errors
    assert cluster.logs[0].values[-1:] == [b"patient"]


@in_simulation
async def test_a_partition_that_was_there_meanwhile_is_not_given_up_for_how_long_it_was_missing_before() -> None:
    cluster = SimulatedCluster(2)
    ends = Ends()
    async with producing(cluster, metadata_timeout=FOREVER) as producer:
        without, without_leader = cluster.leaders[:1], [cluster.leaders[0], (-1, 1)]
        cluster.leaders = without
        producer.send("events", b"patient", partition=1, done=ends.append)
        for leaders in (without, without_leader, without):
            cluster.leaders = leaders
            await asyncio.sleep(7.0)
        assert not ends
        cluster.leaders = [*without, (1, 2)]
        await producer.flush(60.0)
    assert not ends.errors
    assert cluster.logs[1].values[-1:] == [b"patient"]


@in_simulation
async def test_a_topic_that_may_not_be_written_fails_without_waiting_for_the_limit() -> None:
    cluster = SimulatedCluster(1)
    cluster.exists = False
    cluster.errors["events"] = TopicMetadata("events", None, (), error=ErrorCode.topic_authorization_failed)
    ends = Ends()
    async with producing(cluster, warm=False) as producer:
        producer.send("events", b"a", done=ends.append)
        send(producer, ends, [b"b"])
        started = time.monotonic()
        await producer.flush(30.0)
        assert time.monotonic() - started < 2.0
    assert ends.codes == [ErrorCode.topic_authorization_failed] * 2


@in_simulation
async def test_a_fatal_error_ends_everything_and_is_what_send_raises_from_then_on() -> None:
    cluster = SimulatedCluster(2)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.faults.script.append(Fault(ErrorCode.cluster_authorization_failed, appended=False))
        for number in range(10):
            send(producer, ends, [b"%d" % number], number % 2)
        producer.send("events", b"collected", partition=1, done=ends.append)
        await asyncio.sleep(1.0)
        assert len(ends) == 11
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            producer.send("events", b"a")
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            send(producer, ends, [b"b"])
    assert set(ends.codes) == {ErrorCode.cluster_authorization_failed}


@in_simulation
async def test_a_producer_that_may_have_no_identity_fails_clearly() -> None:
    cluster = SimulatedCluster(1)
    cluster.identity_error = ErrorCode.cluster_authorization_failed
    ends = Ends()
    async with producing(cluster, warm=False) as producer:
        send(producer, ends, [b"a"])
        await producer.flush(5.0)
    assert ends.codes == [ErrorCode.cluster_authorization_failed]


@in_simulation
async def test_an_injected_identity_is_used_and_asked_for_the_next_one() -> None:
    class Supervisor:
        def __init__(self) -> None:
            self.asked: list[ProducerIdentity | None] = []

        async def acquire(self, previous: ProducerIdentity | None) -> ProducerIdentity:
            self.asked.append(previous)
            if len(self.asked) == 1:
                raise DeadlineExceeded("the supervisor is busy")
            return ProducerIdentity(4000 + len(self.asked), 3)

    cluster = SimulatedCluster(2)
    supervisor = Supervisor()
    ends = Ends()
    settings = ProducerSettings(delivery_timeout=FOREVER)
    async with AsyncProducer(cluster, settings, identities=supervisor) as producer:  # type: ignore[arg-type]
        for partition in range(2):
            send(producer, ends, [b"a"], partition)
        await producer.flush(5.0)
        cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        send(producer, ends, [b"refused"])
        send(producer, ends, [b"b"])
        await producer.flush(5.0)
    assert supervisor.asked == [None, None, ProducerIdentity(4002, 3)]
    assert set(cluster.logs[0].producers) == {4002, 4003}
    assert cluster.logs[0].values == [b"a", b"b"]


@in_simulation
async def test_a_source_of_identities_that_is_broken_ends_the_producer_instead_of_holding_it_up() -> None:
    class Broken:
        async def acquire(self, previous: ProducerIdentity | None) -> ProducerIdentity:
            raise RuntimeError(f"no identity after {previous}")

    ends = Ends()
    settings = ProducerSettings(delivery_timeout=FOREVER)
    async with AsyncProducer(SimulatedCluster(1), settings, identities=Broken()) as producer:  # type: ignore[arg-type]
        send(producer, ends, [b"a"])
        await producer.flush(5.0)
        with pytest.raises(IngestdError, match="no identity after None"):
            send(producer, ends, [b"b"])
    assert len(ends.errors) == 1


@in_simulation
async def test_close_ends_by_its_deadline_with_every_broker_down_and_each_batch_ends_once() -> None:
    cluster = SimulatedCluster(3)
    ends = Ends()
    producer = AsyncProducer(cluster, ProducerSettings(delivery_timeout=FOREVER))  # type: ignore[arg-type]
    send(producer, ends, [b"a"], 0)
    await producer.flush(5.0)
    cluster.faults.script.extend([Fault(hang=True)] * 3)
    for number in range(30):
        send(producer, ends, [b"%d" % number], number % 3)
    producer.send("events", b"collected", partition=0, done=ends.append)
    await asyncio.sleep(0.01)
    cluster.down.update(cluster.nodes)
    started = time.monotonic()
    await producer.close(4.0)
    assert time.monotonic() - started == pytest.approx(4.0)
    assert len(ends) == 32
    assert {type(error) for error in ends.errors} == {Closed}
    assert all(connection.closed for connection in cluster.connections)
    with pytest.raises(Closed):
        send(producer, ends, [b"late"])
    with pytest.raises(Closed):
        producer.send("events", b"late")
    await producer.room()
    await producer.close(4.0)


@in_simulation
async def test_what_was_never_sent_is_recalled_and_what_was_sent_goes_on_to_its_end() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        send(producer, ends, [b"first"])
        await producer.flush(5.0)
        cluster.faults.script.append(Fault(hang=True))
        for number in range(30):
            send(producer, ends, [b"%d" % number])
        await asyncio.sleep(0.01)
        producer.recall("events", 0)
        recalled = len(ends) - 1
        assert 20 <= recalled < 30
        assert {type(error) for error in ends.errors} == {Closed}
        producer.recall("events", 0)
        assert len(ends) - 1 == recalled, "the rest is under way"
        await producer.flush(60.0)
        assert len(ends) == 31
        send(producer, ends, [b"last"])
        await producer.flush(5.0)
        values = [b"warm", b"first", *(b"%d" % number for number in range(30 - recalled)), b"last"]
        assert cluster.logs[0].values == values


@in_simulation
async def test_closing_a_producer_that_is_drained_does_not_disturb_another_one_of_the_same_client() -> None:
    cluster = SimulatedCluster(1)
    recorder = Recorder()
    ends = Ends()
    async with producing(cluster), producing(cluster, events=recorder) as other:
        async with producing(cluster):
            send(other, ends, [b"a"])
            await asyncio.sleep(0)
        await other.flush(5.0)
        assert len(cluster.connections) == 1
    assert not [event for event in recorder.events if event[0] == "retried"]


@in_simulation
async def test_a_flush_that_is_too_slow_raises_and_what_it_waited_for_goes_on() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        cluster.down.update(cluster.nodes)
        send(producer, ends, [b"a"])
        with pytest.raises(DeadlineExceeded):
            await producer.flush(1.0)
        assert not ends
        cluster.down.clear()
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"warm", b"a"]


@in_simulation
async def test_an_idle_producer_has_no_task_and_no_timer() -> None:
    cluster = SimulatedCluster(2)
    ends = Ends()
    async with producing(cluster) as producer:
        for number in range(10):
            producer.send("events", b"%d" % number, done=ends.append)
        await producer.flush(5.0)
        await asyncio.sleep(2.5)
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() < loop.time() + 3000] == []
        assert len(asyncio.all_tasks()) == 2


@in_simulation
async def test_events_tell_of_acknowledgements_retries_and_failures() -> None:
    cluster = SimulatedCluster(1)
    recorder = Recorder()
    ends = Ends()
    async with producing(cluster, events=recorder) as producer:
        recorder.events.clear()
        cluster.faults.script.extend([Fault(lost=True), Fault(ErrorCode.invalid_record, appended=False)])
        send(producer, ends, [b"a", b"b"])
        await producer.flush(5.0)
    assert [event[0] for event in recorder.events] == ["retried", "failed"]


@in_simulation
async def test_zstd_for_a_broker_that_does_not_know_it_is_refused_before_it_is_sent() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    cluster.produce_version = 6
    async with producing(cluster, warm=False) as producer:
        batch = memoryview(ready_batch([bytes(1000)], Compression(Codec.zstd)))
        producer.send_batch("events", 0, batch, 1, ends.append)
        await producer.flush(5.0)
    assert [type(error) for error in ends.errors] == [UnsupportedCodec]
    assert cluster.requests == 0


@in_simulation
async def test_an_index_outside_the_partitions_offered_is_an_invalid_partition() -> None:
    cluster = SimulatedCluster(2)
    outside = custom(lambda key, value, partitions: len(partitions), consistent=True)
    async with producing(cluster, partitioner=outside) as producer:
        with pytest.raises(KafkaError, match="invalid partition"):
            producer.send("events", b"a")
        with pytest.raises(KafkaError, match="invalid partition"):
            producer.send("events", b"a", partition=-3)
    async with producing(cluster, partitioner=manual) as producer:
        with pytest.raises(KafkaError, match="invalid partition"):
            producer.send("events", b"a")
        assert producer.outstanding == 0


@in_simulation
async def test_memory_that_no_batch_can_be_sent_from_is_refused_at_once() -> None:
    cluster = SimulatedCluster(1)
    ends = Ends()
    async with producing(cluster) as producer:
        batch = ready_batch([b"a"])
        for wrong in (memoryview(bytes(batch)), memoryview(bytearray(200))[::2], memoryview(batch)[:61]):
            with pytest.raises(ValueError, match=r"events\[0\]"):
                producer.send_batch("events", 0, wrong, 1, ends.append)
        assert producer.outstanding == 0


@in_simulation
async def test_partitioners_without_a_need_for_consistency_see_only_writable_partitions() -> None:
    cluster = SimulatedCluster(3)
    async with producing(cluster, partitioner=round_robin) as producer:
        cluster.leaders[1] = (-1, 5)
        cluster.metadata.learn()
        for number in range(4):
            producer.send("events", b"%d" % number)
        await producer.flush(5.0)
    assert [len(log.values) for log in cluster.logs] == [3, 1, 3]


def test_a_callback_that_raises_is_reported_and_hurts_nobody_else() -> None:
    reported: list[Any] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        cluster = SimulatedCluster(1)
        ends = Ends()
        async with producing(cluster) as producer:
            producer.send("events", b"a", partition=0, done=lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
            producer.send("events", b"b", partition=0, done=ends.append)
            await producer.flush(5.0)
        assert len(ends) == 1

    simulate(work)
    assert [type(error) for error in reported] == [ZeroDivisionError]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"acks": 2}, "acks"),
        ({"acks": 1, "idempotent": True}, "idempotent"),
        ({"in_flight_requests": 6}, "in_flight_requests"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"linger": -1.0}, "linger"),
        ({"delivery_timeout": 0.0}, "delivery_timeout"),
        ({"request_timeout": float("nan")}, "request_timeout"),
        ({"acknowledge_timeout": float("inf")}, "acknowledge_timeout"),
        ({"retry_initial": 0.0}, "retry_initial"),
        ({"retry_maximum": 0.0}, "retry_maximum"),
        ({"breaker_failures": 0}, "breaker_failures"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        ProducerSettings(**wrong)
