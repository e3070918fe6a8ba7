"""The versions of Produce and Fetch that kio does not have, against kafka-python's own layouts of them."""

from __future__ import annotations

import random
import warnings

import pytest

from ingestd.errors import ErrorCode, ProtocolError
from ingestd.wire import fetch, produce

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    from kafka.protocol.old import fetch as peer_fetch
    from kafka.protocol.old import produce as peer_produce

PRODUCE_VERSIONS = range(3)
FETCH_VERSIONS = range(4)
SETS = [("a", [(0, b"set 0"), (7, b"")]), ("bé", [(1, b"x" * 300)])]


def joined(parts):
    return b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_request_is_byte_for_byte_what_kafka_python_writes(version):
    ours = produce.produce_request(version, -1, 1234, None, [(name, None, sets) for name, sets in SETS])
    assert joined(ours) == peer_produce.ProduceRequest[version](-1, 1234, SETS).encode()


def produce_answer(version):
    time = (1_700_000_000_000,) if version >= 2 else ()
    topics = [("a", [(0, 0, 1 << 40, *time), (7, 6, -1, *time)])]
    return peer_produce.ProduceResponse[version](topics, *((55,) if version >= 1 else ())).encode()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_answer_means_what_kafka_python_wrote(version):
    answer = produce.read_produce_answer(version, memoryview(produce_answer(version)))
    assert answer.throttle_ms == (55 if version >= 1 else 0)
    assert [(each.topic, each.partition, each.error, each.base_offset) for each in answer.partitions] == [
        ("a", 0, ErrorCode.none, 1 << 40),
        ("a", 7, ErrorCode.not_leader_or_follower, -1),
    ]
    assert answer.partitions[0].log_append_time_ms == (1_700_000_000_000 if version >= 2 else -1)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_request_is_byte_for_byte_what_kafka_python_writes(version):
    asked = [fetch.FetchPartition(3, 1 << 33, 77, leader_epoch=4), fetch.FetchPartition(4, 0, 78)]
    ours = fetch.fetch_request(
        version, [("bé", None, asked)], max_wait_ms=500, min_bytes=2, max_bytes=999, read_committed=True, rack="r"
    )
    topics = [("bé", [(3, 1 << 33, 77), (4, 0, 78)])]
    limits = (-1, 500, 2, *((999,) if version >= 3 else ()))
    assert joined(ours) == peer_fetch.FetchRequest[version](*limits, topics).encode()


def fetch_answer(version):
    topics = [("bé", [(3, 0, 100, b"records"), (4, 1, -1, b"")])]
    return peer_fetch.FetchResponse[version](*((9,) if version >= 1 else ()), topics).encode()


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_answer_means_what_kafka_python_wrote_and_all_of_it_is_stable(version):
    answer = fetch.read_fetch_response(version, memoryview(fetch_answer(version)))
    assert (answer.throttle_ms, answer.session_id, answer.error) == (9 if version else 0, 0, ErrorCode.none)
    first, second = answer.partitions
    assert (first.topic, first.partition, first.error, first.records) == ("bé", 3, ErrorCode.none, b"records")
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (100, 100, -1)
    assert (second.error, len(second.records)) == (ErrorCode.offset_out_of_range, 0)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_answers_that_are_cut_or_damaged_are_protocol_errors_or_answers(version):
    source = random.Random(version)
    answers = [(fetch.read_fetch_response, version, fetch_answer(version))]
    if version in PRODUCE_VERSIONS:
        answers.append((produce.read_produce_answer, version, produce_answer(version)))
    for read, asked, body in answers:
        for cut in range(len(body)):
            with pytest.raises(ProtocolError):
                read(asked, memoryview(body[:cut]))
        for _ in range(300):
            damaged = bytearray(body)
            damaged[source.randrange(len(damaged))] = source.choice([0, 1, 0x7F, 0x80, 0xFF])
            try:
                read(asked, memoryview(damaged))
            except ProtocolError:
                continue
