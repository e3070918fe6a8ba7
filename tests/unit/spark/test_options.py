import pickle
import re

import pytest

from ingestd.consumer.settings import AtTime, Edge, Isolation, TopicPartition
from ingestd.errors import ConfigurationError
from ingestd.spark.options import Assigned, RangeBounds, Subscribed, SubscribedPattern, parse_options

LEAST = {"kafka.bootstrap.servers": "a:9092, b:9093", "subscribe": "t"}


def parse(**options: str):
    return parse_options(LEAST | options)


def test_the_defaults_are_those_of_the_official_connector() -> None:
    options = parse_options(LEAST)
    assert options.bootstrap == ("a:9092", "b:9093")
    assert options.subscription == Subscribed(("t",))
    assert options.starting == RangeBounds("startingOffsets", Edge.earliest)
    assert options.ending == RangeBounds("endingOffsets", Edge.latest)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.isolation is Isolation.read_uncommitted


def test_names_are_known_in_any_case_as_spark_hands_them_over() -> None:
    options = parse_options({"BOOTSTRAP": "a:1", "subscribepattern": "t.*", "INCLUDEHEADERS": "True"})
    assert options.subscription == SubscribedPattern("t.*")
    assert options.include_headers


def test_every_option_is_read() -> None:
    options = parse_options(
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
    assert options.isolation is Isolation.read_committed
    assert pickle.loads(pickle.dumps(options)) == options


def test_timestamps_may_be_given_for_each_partition() -> None:
    options = parse(startingOffsetsByTimestamp='{"t": {"0": 5}}', endingOffsetsByTimestamp='{"t": {"0": 9}}')
    assert options.starting.each == {TopicPartition("t", 0): AtTime(5)}
    assert options.ending.each == {TopicPartition("t", 0): AtTime(9)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.group.id": "g"}, "unknown option kafka.group.id; expected some of bootstrap"),
        ({"kafka.bootstrap.servers": "nowhere"}, "option kafka.bootstrap.servers = 'nowhere'; expected HOST:PORT"),
        ({"bootstrap": "b:1"}, "options kafka.bootstrap.servers and bootstrap exclude each other"),
        ({"assign": '{"t": [0]}'}, "options assign and subscribe exclude each other"),
        ({"subscribe": " , "}, "option subscribe = ','; expected topics"),
        ({"startingOffsets": "latest"}, "option startingOffsets = 'latest'; expected earliest, or JSON"),
        ({"endingOffsets": "earliest"}, "option endingOffsets = 'earliest'; expected latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": [1]}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "option startingOffsets"),
        ({"startingOffsets": "[]"}, "option startingOffsets"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp = 'yesterday'; expected milliseconds"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "startingTimestamp and startingOffsets exclude"),
        ({"minPartitions": "0"}, "option minPartitions = '0'; expected a whole number above 0"),
        ({"includeHeaders": "yes"}, "option includeHeaders = 'yes'; expected true or false"),
        ({"kafka.isolation.level": "none"}, "expected read_uncommitted or read_committed"),
    ],
)
def test_what_is_wrong_is_refused_naming_the_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_options(LEAST | options)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="subscribePattern"):
        parse_options({"bootstrap": "a:1", "subscribePattern": "("})


def test_partitions_to_assign_are_named_once() -> None:
    for wrong in ('{"t": [0, 0]}', '{"t": []}', '{"t": 0}', "{}", "t"):
        with pytest.raises(ConfigurationError, match="option assign"):
            parse_options({"bootstrap": "a:1", "assign": wrong})


def test_without_a_cluster_or_topics_there_is_nothing_to_read() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_options({"subscribe": "t"})
    with pytest.raises(ConfigurationError, match="none of assign, subscribe, subscribePattern"):
        parse_options({"bootstrap": "a:1"})
