import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.client.metadata import PartitionMetadata, TopicMetadata
from ingestd.consumer.settings import AtTime, Edge, TopicPartition
from ingestd.errors import ConfigurationError
from ingestd.spark.planning import DataLoss, OffsetRange, Ranges, plan, split, tasks
from ingestd.spark.read_options import batch_options


def described(name, partitions, topic_id=None):
    found = tuple(PartitionMetadata(number, 0, 0, (0,), (0,)) for number in range(partitions))
    return TopicMetadata(name, topic_id, found)


class Log:
    """Topics with a log start and an end for each partition; a time stands for the offset of the same number."""

    def __init__(self, **topics):
        self._topics = topics
        self.groups = {}

    def topics(self):
        return sorted(self._topics)

    def describe(self, topics):
        return {name: described(name, len(self._topics[name])) for name in topics if name in self._topics}

    def offsets(self, wanted):
        return {key: self._offset(*self._topics[key.topic][key.partition], start) for key, start in wanted.items()}

    def committed(self, group, partitions):
        return {key: offset for key, offset in self.groups.get(group, {}).items() if key in partitions}

    def _offset(self, oldest, newest, start):
        if isinstance(start, AtTime):
            return min(max(start.timestamp_ms, oldest), newest)
        return {Edge.earliest: oldest, Edge.latest: newest}[start]


LOG = Log(a=[(0, 100), (50, 80)], b=[(7, 7)], other=[(0, 9)])


def planned(**options):
    parsed = batch_options({"bootstrap": "x:1"} | options)
    return [(one.topic, one.partition, one.start, one.end) for one in plan(parsed, LOG)]


def test_every_partition_is_one_range_and_empty_ones_are_none():
    assert planned(subscribe="b,a") == [("a", 0, 0, 100), ("a", 1, 50, 80)]


def test_a_pattern_matches_whole_names():
    assert planned(subscribePattern="a|oth") == [("a", 0, 0, 100), ("a", 1, 50, 80)]
    assert planned(subscribePattern="none") == []


def test_assigned_partitions_are_read_alone_and_must_exist():
    assert planned(assign='{"a": [1]}') == [("a", 1, 50, 80)]
    with pytest.raises(ConfigurationError, match="assign names a-2; the topic has partitions 0 to 1"):
        planned(assign='{"a": [1, 2]}')


def test_given_offsets_and_edges_are_taken():
    found = planned(
        subscribe="a", startingOffsets='{"a": {"0": 10, "1": -2}}', endingOffsets='{"a": {"0": -1, "1": 60}}'
    )
    assert found == [("a", 0, 10, 100), ("a", 1, 50, 60)]


def test_offsets_must_be_given_for_all_partitions_and_no_others():
    with pytest.raises(ConfigurationError, match="startingOffsets leaves out a-1"):
        planned(subscribe="a", startingOffsets='{"a": {"0": 10}}')
    with pytest.raises(ConfigurationError, match="endingOffsets names b-0, which the query does not read"):
        planned(subscribe="a", endingOffsets='{"a": {"0": 10, "1": 60}, "b": {"0": 1}}')


def test_offsets_that_are_gone_are_data_loss_or_what_is_there():
    starts = '{"a": {"0": 0, "1": 3}}'
    with pytest.raises(DataLoss, match="startingOffsets asks for offset 3 of a-1, whose log has 50 to 80"):
        planned(subscribe="a", startingOffsets=starts)
    found = planned(subscribe="a", startingOffsets=starts, failOnDataLoss="false")
    assert found == [("a", 0, 0, 100), ("a", 1, 50, 80)]


def test_a_time_after_the_last_record_is_an_error_or_the_end():
    with pytest.raises(ConfigurationError, match="startingTimestamp: a-1 has no record at or after"):
        planned(subscribe="a", startingTimestamp="90")
    found = planned(subscribe="a", startingTimestamp="90", startingOffsetsByTimestampStrategy="latest")
    assert found == [("a", 0, 90, 100)]
    assert planned(subscribe="a", endingTimestamp="90") == [("a", 0, 0, 90), ("a", 1, 50, 80)]


def of_group(committed, **options):
    log = Log(a=[(0, 100), (50, 80)], b=[(7, 7)])
    log.groups["g"] = {TopicPartition(*key): offset for key, offset in committed.items()}
    given = {"bootstrap": "x:1", "subscribe": "a,b", "startingOffsets": "group", "kafka.group.id": "g"} | options
    return [(one.topic, one.partition, one.start, one.end) for one in plan(batch_options(given), log)]


def test_a_query_starts_where_a_group_has_committed():
    assert of_group({("a", 0): 30, ("a", 1): 80, ("c", 0): 5}) == [("a", 0, 30, 100)]


def test_without_a_committed_offset_a_partition_that_has_records_is_an_error_or_starts_at_an_edge():
    with pytest.raises(ConfigurationError, match="group g has no committed offset of a-1; expected one of each"):
        of_group({("a", 0): 30})
    found = of_group({("a", 0): 30}, startingOffsetsByGroupStrategy="earliest")
    assert found == [("a", 0, 30, 100), ("a", 1, 50, 80)]
    assert of_group({("a", 0): 30}, startingOffsetsByGroupStrategy="latest") == [("a", 0, 30, 100)]


def test_committed_offsets_that_are_gone_are_data_loss_or_what_is_there():
    gone = {("a", 0): 101, ("a", 1): 3}
    with pytest.raises(DataLoss, match="group g has committed offset 101 of a-0, whose log has 0 to 100"):
        of_group(gone)
    assert of_group(gone, failOnDataLoss="false") == [("a", 1, 50, 80)]


def test_the_largest_ranges_are_split_first():
    ranges = split([OffsetRange("t", 0, 0, 1_000), OffsetRange("t", 1, 0, 100)], 5, None)
    assert [one.size for one in ranges if one.partition == 0] == [250] * 4
    assert [one.size for one in ranges if one.partition == 1] == [100]


def test_what_a_task_reads_pickles():
    one = Ranges((OffsetRange("t", 1, 2, 3),))
    assert pickle.loads(pickle.dumps(one)) == one


def tasks_of(sizes, **options):
    """How many offsets each range of each task has."""
    ranges = [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]
    parsed = batch_options({"bootstrap": "x:1", "subscribe": "t"} | options)
    return [[one.size for one in task.ranges] for task in tasks(parsed, split_as(parsed, ranges))]


def split_as(options, ranges):
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def test_many_small_ranges_share_tasks():
    assert tasks_of([10] * 1_000) == [[10] * 32] * 31 + [[10] * 8]
    assert tasks_of([1_000] * 1_000) == [[1_000] * 10] * 100


def test_few_ranges_and_large_ones_have_a_task_each():
    assert tasks_of([1] * 32) == [[1]] * 32
    assert tasks_of([20_000] * 50) == [[20_000]] * 50


def test_ranges_share_no_task_if_the_options_say_so_or_the_sink_writes_once():
    assert tasks_of([1] * 50, minPartitions="50") == [[1]] * 50
    assert tasks_of([1] * 50, maxRecordsPerPartition="1") == [[1]] * 50
    assert tasks_of([1] * 50, includePosition="true") == [[1]] * 50


@given(
    sizes=st.lists(st.integers(1, 30) | st.integers(5_000, 15_000), max_size=80),
    least=st.none() | st.integers(1, 60),
    most=st.none() | st.integers(1, 700),
)
def test_sharing_keeps_every_range_once_within_the_limits(sizes, least, most):
    options = {"minPartitions": least, "maxRecordsPerPartition": most}
    parsed = batch_options(
        {"bootstrap": "x:1", "subscribe": "t"} | {name: str(value) for name, value in options.items() if value}
    )
    ranges = split_as(parsed, [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)])
    found = tasks(parsed, ranges)
    assert [one for task in found for one in task.ranges] == ranges
    for task in found:
        assert len({one.partition for one in task.ranges}) == len(task.ranges)
        assert len(task.ranges) == 1 or sum(one.size for one in task.ranges) <= min(10_000, most or 10_000)
    assert len(found) >= min(len(ranges), max(32, least or 0))


@given(
    sizes=st.lists(st.integers(1, 2_000), max_size=6),
    least=st.none() | st.integers(1, 40),
    most=st.none() | st.integers(50, 700),
)
def test_splitting_keeps_every_offset_once_within_the_limits(sizes, least, most):
    whole = [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]
    pieces = split(whole, least, most)
    for number, size in enumerate(sizes):
        offsets = [offset for one in pieces if one.partition == number for offset in range(one.start, one.end)]
        assert offsets == list(range(10, 10 + size))
    assert all(one.size > 0 for one in pieces)
    assert most is None or all(one.size <= most for one in pieces)
    assert least is None or len(pieces) >= min(least, sum(sizes))
