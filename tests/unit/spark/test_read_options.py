import pickle
import re
from pathlib import Path

import pytest

from ingestd.consumer.settings import AtTime, Edge, Isolation, TopicPartition
from ingestd.errors import ConfigurationError
from ingestd.spark.read_options import (
    Assigned,
    Committed,
    RangeBounds,
    Rows,
    Subscribed,
    SubscribedPattern,
    batch_options,
    read_options,
    stream_options,
)

LEAST = {"kafka.bootstrap.servers": "a:9092, b:9093", "subscribe": "t"}


def parse(**options: str):
    return batch_options(LEAST | options)


def test_the_defaults_are_those_of_the_official_connector() -> None:
    options = batch_options(LEAST)
    assert options.cluster.bootstrap == ("a:9092", "b:9093")
    assert options.subscription == Subscribed(("t",))
    assert options.starting == RangeBounds("startingOffsets", Edge.earliest)
    assert options.ending == RangeBounds("endingOffsets", Edge.latest)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.consumer.isolation is Isolation.read_uncommitted


def test_names_are_known_in_any_case_as_spark_hands_them_over() -> None:
    options = batch_options({"BOOTSTRAP": "a:1", "subscribepattern": "t.*", "INCLUDEHEADERS": "True"})
    assert options.subscription == SubscribedPattern("t.*")
    assert options.include_headers


def test_every_option_is_read() -> None:
    options = batch_options(
        {
            "bootstrap": "a:1",
            "assign": '{"t": [0, 2]}',
            "startingOffsets": '{"t": {"0": 23, "2": -2}}',
            "endingTimestamp": "1700000000000",
            "startingOffsetsByTimestampStrategy": "latest",
            "minPartitions": "10",
            "maxRecordsPerPartition": "1000",
            "failOnDataLoss": "false",
            "kafka.isolation.level": "read_committed",
        }
    )
    zero, two = TopicPartition("t", 0), TopicPartition("t", 2)
    assert options.subscription == Assigned((zero, two))
    assert options.starting.each == {zero: 23, two: Edge.earliest}
    assert options.ending == RangeBounds("endingTimestamp", AtTime(1_700_000_000_000))
    assert options.latest_if_no_timestamp
    assert (options.min_partitions, options.max_records_per_partition) == (10, 1000)
    assert not options.fail_on_data_loss
    assert options.consumer.isolation is Isolation.read_committed
    assert pickle.loads(pickle.dumps(options)) == options


def test_timestamps_may_be_given_for_each_partition() -> None:
    options = parse(startingOffsetsByTimestamp='{"t": {"0": 5}}', endingOffsetsByTimestamp='{"t": {"0": 9}}')
    assert options.starting.each == {TopicPartition("t", 0): AtTime(5)}
    assert options.ending.each == {TopicPartition("t", 0): AtTime(9)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max.poll.records": "1"}, "unknown option max.poll.records; expected some of kafka.bootstrap.servers"),
        ({"startingOffset": "latest"}, "unknown option startingOffset; did you mean 'startingOffsets'?"),
        ({"subscribed": "t", "x": "1"}, "unknown option subscribed, x; expected some of kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "nowhere"}, "option kafka.bootstrap.servers = 'nowhere'; expected HOST:PORT"),
        ({"bootstrap": "b:1"}, "options kafka.bootstrap.servers and bootstrap exclude each other"),
        ({"assign": '{"t": [0]}'}, "options assign and subscribe exclude each other"),
        ({"subscribe": " , "}, "option subscribe = ','; expected topics"),
        ({"startingOffsets": "latest"}, "option startingOffsets = 'latest'; expected earliest, group, or JSON"),
        ({"startingOffsets": "group"}, "option startingOffsets = group: kafka.group.id is missing"),
        ({"startingOffsets": "group", "kafka.group.id": "g", "startingOffsetsByGroupStrategy": "none"}, "or latest"),
        ({"commitTo": "g"}, "option commitTo is for streaming queries"),
        ({"endingOffsets": "earliest"}, "option endingOffsets = 'earliest'; expected latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": [1]}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "option startingOffsets"),
        ({"startingOffsets": "[]"}, "option startingOffsets"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp = 'yesterday'; expected milliseconds"),
        ({"kafka.auto.offset.reset": "latest"}, "option kafka.auto.offset.reset is not supported; expected start"),
        ({"minPartitions": "0"}, "option minPartitions = '0'; expected a whole number, 1 or more"),
        ({"includeHeaders": "yes"}, "option includeHeaders = 'yes'; expected true or false"),
        ({"kafka.isolation.level": "none"}, "expected read_uncommitted or read_committed"),
    ],
)
def test_what_is_wrong_is_refused_naming_the_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        batch_options(LEAST | options)


def test_a_time_counts_before_offsets_as_with_the_official_connector() -> None:
    given = {"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"t": {"0": 2}}', "startingOffsets": "earliest"}
    assert parse(**given).starting == RangeBounds("startingTimestamp", AtTime(1))
    del given["startingTimestamp"]
    assert parse(**given).starting.option == "startingOffsetsByTimestamp"


def test_options_of_javas_client_that_have_no_effect_are_told_once_by_name(caplog: pytest.LogCaptureFixture) -> None:
    read_options(LEAST | {"kafka.max.poll.records": "1", "groupIdPrefix": "p"})
    assert [record.getMessage() for record in caplog.records] == [
        "ingestd source: these options have no effect here: groupIdPrefix, kafka.max.poll.records"
    ]


def test_a_groups_offsets_may_be_the_start_and_a_group_is_told_of_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    given = LEAST | {"startingOffsets": "Group", "kafka.group.id": "g"}
    assert batch_options(given).starting == RangeBounds("startingOffsets", Committed("g", None))
    found = stream_options(given | {"startingOffsetsByGroupStrategy": "earliest", "commitTo": "h"})
    assert found.starting == RangeBounds("startingOffsets", Committed("g", Edge.earliest))
    assert found.commit_to == "h"
    read_options(given)
    assert not caplog.records
    read_options(LEAST | {"kafka.group.id": "g"})
    assert caplog.records[0].getMessage().endswith("no effect here: kafka.group.id")
    with pytest.raises(ConfigurationError, match="option commitTo = ''; expected a consumer group's name"):
        stream_options(LEAST | {"commitTo": " "})


def test_batches_are_those_of_committed_records() -> None:
    found = parse(rows="batches")
    assert (found.rows, found.consumer.isolation) == (Rows.batches, Isolation.read_committed)
    for wrong, message in (
        ({"kafka.isolation.level": "read_uncommitted"}, "expected read_committed beside rows = batches"),
        ({"includeHeaders": "true"}, "option includeHeaders is for rows = records"),
        ({"rows": "slabs"}, "option rows = 'slabs'; expected records or batches"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            parse(**{"rows": "batches"} | wrong)


@pytest.mark.parametrize(("partition", "prefetch"), [({}, 16), ({"kafka.max.partition.fetch.bytes": "33554432"}, 64)])
def test_an_answer_is_fetched_while_another_one_is_read(partition: dict[str, str], prefetch: int) -> None:
    assert parse(**partition).consumer.prefetch_bytes == prefetch * 1024 * 1024


def test_a_stream_starts_at_the_end_and_has_none() -> None:
    assert stream_options(LEAST).starting == RangeBounds("startingOffsets", Edge.latest)
    latest = LEAST | {"startingOffsets": "latest"}
    assert stream_options(latest).starting == read_options(latest).starting == stream_options(LEAST).starting
    both = stream_options(LEAST | {"startingOffsets": '{"t": {"0": -1, "1": -2}}'})
    assert list(both.starting.each.values()) == [Edge.latest, Edge.earliest]
    with pytest.raises(ConfigurationError, match="option endingTimestamp is for batch queries"):
        stream_options(LEAST | {"endingTimestamp": "1"})


def test_the_limits_of_a_stream_are_read() -> None:
    given = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "2m"}
    options = stream_options(LEAST | given)
    assert (options.max_offsets, options.min_offsets, options.max_delay) == (10, 3, 120)
    assert stream_options(LEAST | {"maxTriggerDelay": "500"}).max_delay == 0.5
    assert stream_options(LEAST | {"minOffsetsFile": "/least"}).min_offsets_file == Path("/least")
    for wrong in (
        {"maxTriggerDelay": "soon"},
        {"minOffsetsPerTrigger": "5", "minOffsetsFile": "/least"},
        {"minOffsetsPerTrigger": "11"},
    ):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            stream_options(LEAST | given | wrong)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="subscribePattern"):
        batch_options({"bootstrap": "a:1", "subscribePattern": "("})


def test_partitions_to_assign_are_named_once() -> None:
    for wrong in ('{"t": [0, 0]}', '{"t": []}', '{"t": 0}', "{}", "t"):
        with pytest.raises(ConfigurationError, match="option assign"):
            batch_options({"bootstrap": "a:1", "assign": wrong})


def test_without_a_cluster_or_topics_there_is_nothing_to_read() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        batch_options({"subscribe": "t"})
    with pytest.raises(ConfigurationError, match="none of assign, subscribe, subscribePattern"):
        batch_options({"bootstrap": "a:1"})
