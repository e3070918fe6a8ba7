"""The client against each release of the test matrix: the current one, 3.9, 2.8, and 0.10, which has no batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer, Producer, TopicPartition

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer as OurConsumer
from ingestd.consumer.settings import AtTime, Edge
from ingestd.errors import ErrorCode, KafkaError, UnsupportedCodec, UnsupportedVersion
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import Record, TimestampType, decode_records
from ingestd.records.message_set import batches_of, encode_message_set
from ingestd.wire import fetch, produce
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cluster import KafkaCluster

    from ingestd.consumer.settings import Start
    from ingestd.producer.delivery import Delivery

NOW = time.time_ns() // 1_000_000
RECORDS = [(b"key %d" % n if n % 3 else None, b"value %d " % n * 20 if n % 5 else None, NOW + n) for n in range(300)]
"""Key, value, time. Large enough to be compressed, with and without keys, with tombstones."""


def has_batches(cluster: KafkaCluster) -> bool:
    """Whether it knows record batches, and with them headers, idempotence and transactions."""
    return cluster.release != "0.10"


def codecs(cluster: KafkaCluster) -> Sequence[Codec]:
    return [codec for codec in Codec if codec is not Codec.zstd or has_batches(cluster)]


async def write(cluster: KafkaCluster, topic: str, codec: Codec, *, idempotent: bool) -> list[Delivery]:
    ends: list[Delivery] = []
    settings = ProducerSettings(compression=Compression(codec), idempotent=idempotent, batch_records=100)
    async with Client(cluster.bootstrap) as client, AsyncProducer(client, settings) as producer:
        for key, value, time_ms in RECORDS:
            producer.send(topic, value, key=key, partition=0, timestamp_ms=time_ms, done=ends.append)
        await producer.flush(20)
    return ends


async def read(cluster: KafkaCluster, topic: str, start: Start = Edge.earliest) -> list[Record]:
    async with Client(cluster.bootstrap) as client, OurConsumer(client) as consumer:
        reading = await consumer.consume_partition(topic, 0, start, Edge.latest)
        return [record async for record in reading]


def read_elsewhere(
    cluster: KafkaCluster, topics: Sequence[str], count: int
) -> list[list[tuple[bytes | None, bytes | None, int]]]:
    """What librdkafka finds in each topic: one reader for all, since it takes half a second to come and go."""
    reader = Consumer({"bootstrap.servers": cluster.servers, "group.id": "reader", "check.crcs": True})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
    found: dict[str | None, list[tuple[bytes | None, bytes | None, int]]] = {topic: [] for topic in topics}
    for message in reader.consume(count * len(topics), timeout=20):
        kind, time_ms = message.timestamp()
        stamp = -1 if kind == TIMESTAMP_NOT_AVAILABLE else time_ms
        found[message.topic()].append((message.key(), message.value(), stamp))
    reader.close()
    return list(found.values())


async def test_what_we_write_in_every_codec_is_read_by_librdkafka_and_by_us(kafka_of_release: KafkaCluster) -> None:
    topics = {codec: kafka_of_release.create_topic() for codec in codecs(kafka_of_release)}
    for codec, topic in topics.items():
        ends = await write(kafka_of_release, topic, codec, idempotent=has_batches(kafka_of_release))
        assert [(end.base_offset, end.error) for end in ends] == [(n, None) for n in range(len(RECORDS))], codec
        records = await read(kafka_of_release, topic)
        assert [record.offset for record in records] == list(range(len(RECORDS)))
        assert [(record.key, record.value, record.timestamp_ms) for record in records] == RECORDS, codec
    assert read_elsewhere(kafka_of_release, list(topics.values()), len(RECORDS)) == [RECORDS] * len(topics)


async def test_what_librdkafka_writes_in_every_codec_is_read_from_anywhere(kafka_of_release: KafkaCluster) -> None:
    for codec in codecs(kafka_of_release):
        topic = kafka_of_release.create_topic()
        writer = Producer({"bootstrap.servers": kafka_of_release.servers, "compression.type": codec.name})
        for key, value, time_ms in RECORDS:
            writer.produce(topic, value, key, partition=0, timestamp=time_ms)
        assert writer.flush(20) == 0
        for start, first in ((Edge.earliest, 0), (150, 150), (AtTime(NOW + 70), 70)):
            records = await read(kafka_of_release, topic, start)
            assert records[0].offset == first
            assert [(record.key, record.value, record.timestamp_ms) for record in records] == RECORDS[first:]


async def test_headers_need_batches_and_are_refused_where_there_are_none(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic()
    headers = [("name", b"value"), ("none", None)]
    ends: list[Delivery] = []
    async with (
        Client(kafka_of_release.bootstrap) as client,
        AsyncProducer(client, ProducerSettings(idempotent=has_batches(kafka_of_release))) as producer,
    ):
        producer.send(topic, b"with", headers=headers, partition=0, done=ends.append)
        await producer.flush(20)
        producer.send(topic, b"without", partition=0, done=ends.append)
        await producer.flush(20)
    records = await read(kafka_of_release, topic)
    if has_batches(kafka_of_release):
        assert [end.error for end in ends] == [None, None]
        assert [(record.value, list(record.headers)) for record in records] == [(b"with", headers), (b"without", [])]
    else:
        assert isinstance(ends[0].error, UnsupportedVersion)
        assert f"{topic}[0]: node 1: headers need record batches" in str(ends[0].error)
        assert [record.value for record in records] == [b"without"]


async def test_zstd_and_idempotence_are_refused_by_name_before_anything_is_sent_to_a_broker_without_them(
    kafka_of_release: KafkaCluster,
) -> None:
    topic = kafka_of_release.create_topic()
    zstd = await write(kafka_of_release, topic, Codec.zstd, idempotent=False)
    idempotent = await write(kafka_of_release, topic, Codec.none, idempotent=True)
    if has_batches(kafka_of_release):
        assert {end.error for end in (*zstd, *idempotent)} == {None}
        return
    assert {type(end.error) for end in zstd} == {UnsupportedCodec}
    assert f"{topic}[0]: node 1: too old for zstd" in str(zstd[0].error)
    assert {type(end.error) for end in idempotent} == {UnsupportedVersion}
    assert "idempotence needs Kafka 0.11 (idempotent=False does without)" in str(idempotent[0].error)
    assert await read(kafka_of_release, topic) == []


@pytest.mark.parametrize("kafka_of_release", ["2.8", "0.10"], indirect=True)
async def test_javas_own_clients_of_old_releases_read_what_we_write_and_we_what_they_write(
    kafka_of_release: KafkaCluster,
) -> None:
    lines = [b"line %d of plain text" % number for number in range(100)]
    ours, theirs = (old_topic(kafka_of_release) for _ in range(2))
    settings = ProducerSettings(compression=Compression(Codec.lz4), idempotent=False)
    async with Client(kafka_of_release.bootstrap) as client, AsyncProducer(client, settings) as producer:
        for line in lines:
            producer.send(ours, line, partition=0)
        await producer.flush(20)
    there = ("--topic", ours, "--from-beginning", "--max-messages", str(len(lines)))
    read_by_java = kafka_of_release.tool(
        "kafka.tools.ConsoleConsumer", "--bootstrap-server", kafka_of_release.servers, *there
    )
    assert read_by_java.encode().splitlines() == lines
    writing = ("--broker-list", kafka_of_release.servers, "--topic", theirs, "--compression-codec", "lz4")
    kafka_of_release.tool("kafka.tools.ConsoleProducer", *writing, stdin=b"\n".join(lines))
    assert [record.value for record in await read(kafka_of_release, theirs)] == lines


@pytest.mark.parametrize("kafka_of_release", ["2.8", "0.10"], indirect=True)
async def test_message_sets_in_every_version_of_produce_and_fetch_that_carries_them(
    kafka_of_release: KafkaCluster,
) -> None:
    topic = old_topic(kafka_of_release)
    sent: list[tuple[bytes | None, bytes | None]] = []
    async with Client(kafka_of_release.bootstrap) as client:
        connection = await (await client.leader(topic, 0, 30.0)).connection(30.0)
        for version in range(produce.FIRST_WITH_BATCHES):
            for codec in OLD_CODECS:
                records = [Record(0, NOW, TimestampType.create_time, b"%d" % version, b"value " * 50)] * 5
                message_set = encode_message_set(records, 1 if version >= 2 else 0, Compression(codec))
                body = produce.produce_request(version, -1, 10_000, None, [(topic, None, [(0, message_set)])])
                answer = await connection.send(Api.produce, version, body, timeout=30)
                (partition,) = produce.read_produce_answer(version, answer).partitions
                assert (partition.error, partition.base_offset) == (ErrorCode.none, len(sent)), (version, codec)
                sent += [(record.key, record.value) for record in records]
        for version in range(min(4, connection.versions.ranges[Api.fetch][1]) + 1):
            body = fetch.fetch_request(version, [(topic, None, [fetch.FetchPartition(0, 0)])], max_wait_ms=1000)
            answer = await connection.send(Api.fetch, version, body, timeout=30)
            (fetched,) = fetch.read_fetch_response(version, answer).partitions
            assert (fetched.error, fetched.high_watermark) == (ErrorCode.none, len(sent))
            read_now = [record for batch in batches_of(fetched.records) for record in decode_records(batch)]
            assert [(record.key, record.value) for record in read_now] == sent, version


def old_topic(cluster: KafkaCluster) -> str:
    """A topic that keeps messages of magic 1."""
    return cluster.create_topic(**({"message_format_version": "0.10.2"} if has_batches(cluster) else {}))


# Old formats in the logs of a broker that knows batches: 2.8 is the last that keeps them.

only_2_8 = pytest.mark.parametrize("kafka_of_release", ["2.8"], indirect=True)
OLD_CODECS = (Codec.none, Codec.gzip, Codec.snappy, Codec.lz4)
FORMATS = pytest.mark.parametrize("message_format", ["0.10.2", "0.9.0"])


def as_kept(message_format: str) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(key, value, -1 if message_format == "0.9.0" else time_ms) for key, value, time_ms in RECORDS]


@only_2_8
@FORMATS
async def test_a_topic_of_an_old_format_is_written_and_read(
    kafka_of_release: KafkaCluster, message_format: str
) -> None:
    topics = {codec: kafka_of_release.create_topic(message_format_version=message_format) for codec in OLD_CODECS}
    for codec, topic in topics.items():
        ends = await write(kafka_of_release, topic, codec, idempotent=False)
        assert [(end.base_offset, end.error) for end in ends] == [(n, None) for n in range(len(RECORDS))], codec
        for start, first in ((Edge.earliest, 0), (150, 150)):
            records = await read(kafka_of_release, topic, start)
            kept = [(record.offset, record.key, record.value, record.timestamp_ms) for record in records]
            assert kept == [(n, *record) for n, record in enumerate(as_kept(message_format))][first:], codec
    expected = [as_kept(message_format)] * len(topics)
    assert read_elsewhere(kafka_of_release, list(topics.values()), len(RECORDS)) == expected


@only_2_8
@FORMATS
async def test_what_librdkafka_writes_to_a_topic_of_an_old_format_is_read(
    kafka_of_release: KafkaCluster, message_format: str
) -> None:
    for codec in OLD_CODECS:
        topic = kafka_of_release.create_topic(message_format_version=message_format)
        writer = Producer({"bootstrap.servers": kafka_of_release.servers, "compression.type": codec.name})
        for key, value, time_ms in RECORDS:
            writer.produce(topic, value, key, partition=0, timestamp=time_ms)
        assert writer.flush(20) == 0
        records = await read(kafka_of_release, topic)
        assert [(record.key, record.value, record.timestamp_ms) for record in records] == as_kept(message_format), codec


@only_2_8
async def test_a_log_whose_format_changed_is_read_through(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(message_format_version="0.9.0")
    for message_format in ("0.9.0", "0.10.2", "2.8", "0.10.2"):
        set_format(kafka_of_release, topic, message_format)
        await write(kafka_of_release, topic, Codec.gzip, idempotent=False)
    records = await read(kafka_of_release, topic)
    assert [record.offset for record in records] == list(range(4 * len(RECORDS)))
    assert [(record.key, record.value) for record in records] == 4 * [(key, value) for key, value, _ in RECORDS]
    assert [record.timestamp_ms for record in records[len(RECORDS) :]] == 3 * [time_ms for *_, time_ms in RECORDS]


def set_format(cluster: KafkaCluster, topic: str, message_format: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("message.format.version", message_format, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    # The node hears of it from ZooKeeper, later than it has answered; its log says when it begins to do it. It does one
    # thing after the other: when it begins with the second the first is done.
    heard = f"Processing override for entityPath: topics/{topic} with config: HashMap(message.format.version -> "
    for _ in range(2):
        before = cluster.log.read_text().count(heard)
        cluster.admin.incremental_alter_configs([resource])[resource].result(timeout=60)
        deadline = time.monotonic() + 30
        while cluster.log.read_text().count(heard) == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@only_2_8
async def test_idempotence_on_a_topic_of_an_old_format_fails_that_topic_alone(kafka_of_release: KafkaCluster) -> None:
    old = kafka_of_release.create_topic(message_format_version="0.10.2")
    new = kafka_of_release.create_topic()
    ends: list[Delivery] = []
    async with Client(kafka_of_release.bootstrap) as client, AsyncProducer(client) as producer:
        for topic in (old, new, old, new):
            producer.send(topic, b"value", partition=0, done=ends.append)
            await producer.flush(20)
    errors = {end.topic: end.error for end in ends}
    assert errors[new] is None
    assert isinstance(errors[old], KafkaError)
    assert errors[old].code is ErrorCode.unsupported_for_message_format
    assert [record.offset for record in await read(kafka_of_release, new)] == [0, 1]
