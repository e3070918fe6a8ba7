"""Record batches against the real thing: a broker takes ours, Java reads them, and ours reads what Java wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ingestd.errors import ErrorCode
from ingestd.records.batch import check_crc, patch_producer, read_header, split_batches
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import ControlKind, decode_columns, decode_control, decode_records
from ingestd.records.lines import LineEncoder
from ingestd.wire.apis import Api
from ingestd.wire.connection import Connection, ConnectionSettings
from ingestd.wire.produce import HIGHEST, LOWEST, produce_request, read_produce_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

SPARE = 64 * 1024
CODECS = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
TEXT = b"".join(
    b'10.%d.%d.7 - - [21/Nov/2026] "GET /page/%d HTTP/1.1" 200 %d\n' % (n % 7, n % 251, n, n * n) for n in range(9000)
)


async def produce(kafka: KafkaCluster, topic: str, batch: memoryview) -> int:
    """Send one batch as it is; its base offset."""
    node = kafka.node_of(kafka.leader(topic))
    host, port = node.address.split(":")
    connection = await Connection.open(host, int(port), settings=ConnectionSettings(), timeout=30)
    try:
        version = connection.versions.pick(Api.produce, LOWEST, HIGHEST)
        body = produce_request(version, -1, 10_000, None, [(topic, None, [(0, batch)])])
        (answer,) = read_produce_response(version, await connection.send(Api.produce, version, body, timeout=30))
    finally:
        await connection.close()
    assert answer.error is ErrorCode.none, answer.error_message
    return answer.base_offset


def stored(kafka: KafkaCluster, topic: str) -> list[memoryview]:
    """The batches as the broker keeps them."""
    (segment,) = (kafka.node_of(1).data / f"{topic}-0").glob("*.log")
    return list(split_batches(segment.read_bytes()))


@CODECS
async def test_a_broker_takes_the_line_encoders_batches_as_they_are_and_java_reads_them(
    codec: Codec, kafka: KafkaCluster, topic: Callable[..., str], java_tool: Callable[..., str]
) -> None:
    name = topic(retention_ms="-1")  # the records are old
    out = memoryview(bytearray(2 * len(TEXT)))
    consumed, batches = LineEncoder(Compression(codec), 150_000).encode(TEXT, out, timestamp_ms=1_700_000_000_000)
    assert consumed == len(TEXT)
    assert len(batches) >= 3
    sent = 0
    for made in batches:
        batch = out[made.start : made.start + made.length]
        patch_producer(batch, -1, -1, -1)
        assert await produce(kafka, name, batch) == sent
        sent += made.records
    lines = TEXT.split(b"\n")[:-1]
    assert kafka.read_back(name) == {0: lines}
    kept = stored(kafka, name)
    # Behind offset and leader epoch every byte is ours: the broker validated the records and recompressed none.
    assert [bytes(batch[16:]) for batch in kept] == [
        bytes(out[made.start + 16 : made.start + made.length]) for made in batches
    ]
    read = java_tool(
        "ConsoleConsumer", "--bootstrap-server", kafka.servers, "--topic", name, "--from-beginning",
        "--max-messages", str(len(lines)), "--timeout-ms", "20000",
    )  # fmt: skip
    assert read.encode().split(b"\n")[:-1] == lines


@CODECS
async def test_a_broker_takes_the_builders_batches(
    codec: Codec, kafka: KafkaCluster, topic: Callable[..., str], java_tool: Callable[..., str]
) -> None:
    name = topic(retention_ms="-1")  # the records are old
    builder = BatchBuilder(1 << 20)
    for number in range(500):
        builder.append(b"k%d" % number, b"v" * number, [("trace", b"%d" % number)], 1_700_000_000_000 + number)
    batch = builder.build(Compression(codec))
    patch_producer(memoryview(batch), -1, -1, -1)
    await produce(kafka, name, memoryview(batch))
    read = java_tool(
        "ConsoleConsumer", "--bootstrap-server", kafka.servers, "--topic", name, "--from-beginning",
        "--max-messages", "500", "--timeout-ms", "20000", "--formatter-property", "print.key=true",
        "--formatter-property", "print.headers=true", "--formatter-property", "print.timestamp=true",
    )  # fmt: skip
    assert read.splitlines() == [f"CreateTime:{1_700_000_000_000 + n}\ttrace:{n}\tk{n}\t{'v' * n}" for n in range(500)]


@CODECS
def test_what_javas_producer_wrote_is_read(
    codec: Codec, kafka: KafkaCluster, topic: Callable[..., str], java_tool: Callable[..., str]
) -> None:
    name = topic()
    java_tool(
        "ConsoleProducer", "--bootstrap-server", kafka.servers, "--topic", name, "--compression-codec", codec.name,
        "--batch-size", "200000", stdin=TEXT,
    )  # fmt: skip
    values = []
    for batch in stored(kafka, name):
        check_crc(batch)
        assert read_header(batch).codec is codec
        values += [record.value for record in decode_records(batch)]
    assert values == TEXT.split(b"\n")[:-1]


def test_markers_and_log_append_time_of_a_real_log_are_read(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name, "log_level": 2})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(name, b"value", key=b"key", headers=[("name", b"x")], timestamp=1)
        assert producer.flush(30) == 0
        end(30)
    kafka.wait_for_end_offsets(name, {0: 4})
    batches = stored(kafka, name)
    headers = [read_header(batch) for batch in batches]
    assert [header.control for header in headers] == [False, True, False, True]
    assert all(header.transactional for header in headers)
    markers = [marker for batch in (batches[1], batches[3]) for marker in decode_control(batch)]
    assert [(marker.kind, marker.offset) for marker in markers] == [(ControlKind.commit, 1), (ControlKind.abort, 3)]
    assert markers[0].producer_id == headers[0].producer_id
    (record,) = decode_records(batches[2])
    assert (record.offset, record.key, record.value, record.headers) == (2, b"key", b"value", (("name", b"x"),))
    assert record.timestamp_ms == headers[2].max_timestamp > 1_700_000_000_000
    assert decode_columns(batches[0]).count == 1
