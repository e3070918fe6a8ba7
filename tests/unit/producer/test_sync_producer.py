"""The synchronous producer, from plain threads, on a cluster in memory."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from simulated_cluster import SimulatedCluster

from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.producer.interceptors import Interceptor
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import OutgoingMessage, SendFailed, SentMessage, SyncProducer

if TYPE_CHECKING:
    from collections.abc import Callable


def producer_on(clusters: list[SimulatedCluster], settings: ProducerSettings | None = None) -> SyncProducer:
    """A producer on a new cluster, which is put into `clusters`."""

    def make() -> SimulatedCluster:
        clusters.append(SimulatedCluster(2))
        return clusters[0]

    return SyncProducer([], settings, make_client=make)  # type: ignore[arg-type]


def test_send_gives_partition_and_offset() -> None:
    with producer_on([]) as producer:
        assert [producer.send("events", b"%d" % n, partition=1, timestamp_ms=5) for n in range(3)] == [
            SentMessage("events", 1, 0, 5),
            SentMessage("events", 1, 1, 5),
            SentMessage("events", 1, 2, 5),
        ]
        assert producer.send_many([]) == []


def test_send_many_shares_batches_and_says_which_records_failed() -> None:
    clusters: list[SimulatedCluster] = []
    with producer_on(clusters) as producer:
        sent = producer.send_many([OutgoingMessage("events", b"%d" % n, partition=n % 2) for n in range(100)])
        assert [(each.partition, each.offset) for each in sent] == [(n % 2, n // 2) for n in range(100)]
        assert clusters[0].requests <= 4
        clusters[0].logs[1].error = ErrorCode.topic_authorization_failed
        messages = [OutgoingMessage("events", b"x", partition=n % 2) for n in range(4)]
        with pytest.raises(SendFailed) as raised:
            producer.send_many([*messages, OutgoingMessage("events", b"y", partition=-5)])
        assert [each.index for each in raised.value.failures] == [1, 3, 4]
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.send("events", b"x", partition=1)


def test_where_many_records_are_is_a_sequence() -> None:
    with producer_on([]) as producer:
        messages = [OutgoingMessage("events", b"%d" % n, partition=n % 2, timestamp_ms=5) for n in range(6)]
        sent = producer.send_many(messages)
        expected = [SentMessage("events", n % 2, n // 2, 5) for n in range(6)]
        assert list(sent) == expected
        assert sent == expected
        assert sent != expected[:5]
        assert (sent[0], sent[-1], sent[1:3]) == (expected[0], expected[-1], expected[1:3])
        assert SentMessage("events", 1, 2, 5) in sent
        assert SentMessage("events", 1, 3, 5) not in sent
        assert repr(sent[:1]) == "[SentMessage(topic='events', partition=0, offset=0, timestamp_ms=5)]"
        assert (sent.partitions, sent.offsets) == ([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2])
        with pytest.raises(IndexError):
            sent[6]


@pytest.mark.parametrize("wrong", [b"value", ("events", b"value"), None])
def test_what_is_no_message_among_many_is_named(wrong: object) -> None:
    clusters: list[SimulatedCluster] = []
    with producer_on(clusters) as producer:
        messages = [OutgoingMessage("events", b"a", partition=0), wrong, OutgoingMessage("events", b"b", partition=0)]
        with pytest.raises(TypeError, match=r"messages\[1\]: .*; expected an OutgoingMessage"):
            producer.send_many(messages)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="value: 'text'; expected bytes"):
            producer.send_many([OutgoingMessage("events", "text")])  # type: ignore[arg-type]
    assert clusters[0].logs[0].values == [b"a"]


def test_many_records_have_the_time_of_the_call_or_the_logs_own() -> None:
    clusters: list[SimulatedCluster] = []
    with producer_on(clusters) as producer:
        before = time.time_ns() // 1_000_000
        first, own = producer.send_many(
            [OutgoingMessage("events", b"a"), OutgoingMessage("events", b"b", None, 0, (), 5)]
        )
        assert before <= first.timestamp_ms <= time.time_ns() // 1_000_000
        assert own.timestamp_ms == 5
        clusters[0].appended_at_ms = 77
        sent = producer.send_many([OutgoingMessage("events", b"c")] * 3)
        assert [each.timestamp_ms for each in sent] == [77] * 3


def test_records_of_several_calls_in_one_batch_each_come_back_to_their_own() -> None:
    clusters: list[SimulatedCluster] = []
    found: dict[int, list[SentMessage]] = {}
    with producer_on(clusters, ProducerSettings(linger=0.3)) as producer:

        def work(number: int) -> None:
            values = [b"%d %d" % (number, n) for n in range(50)]
            found[number] = list(
                producer.send_many([OutgoingMessage("events", value, partition=0) for value in values])
            )

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        log = clusters[0].logs[0].values
        for number, sent in found.items():
            assert [log[each.offset] for each in sent] == [b"%d %d" % (number, n) for n in range(50)]
    assert sorted(found) == [0, 1, 2, 3]


def test_more_records_than_the_buffer_holds_wait_for_room() -> None:
    clusters: list[SimulatedCluster] = []
    with producer_on(clusters, ProducerSettings(buffer_bytes=500, linger=0.0)) as producer:
        producer.send_many([OutgoingMessage("events", bytes(50), partition=0) for _ in range(100)])
    assert len(clusters[0].logs[0].values) == 100


def test_closing_ends_the_calls_of_other_threads_and_the_thread() -> None:
    clusters: list[SimulatedCluster] = []
    producer = producer_on(clusters, ProducerSettings(linger=0.0))
    producer.send("events", b"a", partition=0)
    clusters[0].down.update(clusters[0].nodes)
    raised: list[BaseException] = []
    sending = threading.Event()

    def work() -> None:
        sending.set()
        try:
            producer.send("events", b"b", partition=0)
        except Closed as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    sending.wait(30)
    producer.close(0.2)
    thread.join(30)
    assert [type(error) for error in raised] == [Closed]
    assert not producer._host._thread.is_alive()
    with pytest.raises(Closed):
        producer.send("events", b"c")
    producer.close()


def test_a_record_that_is_none_is_refused_after_those_before_it_have_ended() -> None:
    clusters: list[SimulatedCluster] = []
    with producer_on(clusters, ProducerSettings(linger=0.1)) as producer:
        messages = [OutgoingMessage("events", value, partition=0) for value in (b"a", "not bytes", b"c")]  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            producer.send_many(messages)
        assert clusters[0].logs[0].values == [b"a"]


def test_closing_ends_although_an_interceptor_blocks_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, free = threading.Event(), threading.Event()

    class Blocking(Interceptor):
        def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
            blocked.set()
            free.wait()
            return message

    monkeypatch.setattr("ingestd.client.loop_thread.CLOSE_MARGIN", 0.1)
    producer = producer_on([], ProducerSettings(linger=0.0, interceptors=(Blocking(),)))
    thread = threading.Thread(target=_send_in_vain, args=(producer,))
    thread.start()
    assert blocked.wait(30)
    try:
        with pytest.raises(DeadlineExceeded, match="closing"):
            producer.close(0.1)
    finally:
        free.set()
        thread.join(30)
        producer._host._thread.join(30)
    assert not thread.is_alive()
    assert not producer._host._thread.is_alive()


def _send_in_vain(producer: SyncProducer) -> None:
    with suppress(IngestdError):
        producer.send("events", b"a", partition=0)


def test_one_dropped_unclosed_warns_and_takes_its_thread_down() -> None:
    producer = producer_on([])
    thread = producer._host._thread
    holder = [producer]
    del producer
    with pytest.warns(ResourceWarning, match="unclosed"):
        holder.clear()
    thread.join(30)
    assert not thread.is_alive()


def test_a_client_that_can_not_be_made_leaves_no_thread() -> None:
    def make() -> None:
        raise ValueError("no address")

    before = set(threading.enumerate())
    failing: Callable[[], SyncProducer] = lambda: SyncProducer([], make_client=make)  # type: ignore[arg-type,return-value]  # noqa: E731
    with pytest.raises(ValueError, match="no address"):
        failing()
    assert set(threading.enumerate()) <= before
