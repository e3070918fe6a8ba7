import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.client.metadata import PartitionMetadata, TopicMetadata
from ingestd.consumer.settings import AtTime, Edge, TopicPartition
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError
from ingestd.spark.pipelines.worth import Worth
from ingestd.spark.planning import DataLoss
from ingestd.spark.read_options import stream_options
from ingestd.spark.stream import StreamEnd, StreamPlan


class Cluster:
    """Topics whose logs tests change: [start, end] for each partition, and a number that stands for the topic's id."""

    def __init__(self, **topics):
        self.logs = topics
        self.made = dict.fromkeys(topics, 1)
        self.asked = 0

    def topics(self):
        return sorted(self.logs)

    def describe(self, topics):
        return {name: self._topic(name) for name in topics}

    def _topic(self, name):
        if name not in self.logs:
            return TopicMetadata(name, None, (), error=ErrorCode.unknown_topic_or_partition)
        found = tuple(PartitionMetadata(number, 0, 0, (0,), (0,)) for number in range(len(self.logs[name])))
        return TopicMetadata(name, UUID(int=self.made[name]), found)

    def offsets(self, wanted):
        self.asked += 1
        return {key: self._offset(*self.logs[key.topic][key.partition], start) for key, start in wanted.items()}

    def _offset(self, oldest, newest, start):
        if isinstance(start, AtTime):
            return min(max(start.timestamp_ms, oldest), newest)
        return {Edge.earliest: oldest, Edge.latest: newest}[start]

    def remake(self, topic, *logs):
        self.logs[topic] = list(logs)
        self.made[topic] += 1


class Query:
    """A query as Spark runs it: it keeps ends as text, and begins again from the newest one after a restart."""

    def __init__(self, cluster, **options):
        what = {} if options.keys() & {"subscribe", "subscribePattern", "assign"} else {"subscribe": "t"}
        self.options = stream_options({"bootstrap": "x:1"} | what | options)
        self.cluster = cluster
        self.now = 0.0
        self.kept = []
        self.restart()

    def restart(self):
        self.plan = StreamPlan(self.options, self.cluster, lambda: self.now)

    def batch(self, *, limited=True):
        """The ranges of the next micro-batch; None if there is none."""
        before = StreamEnd.from_json(json.loads(self.kept[-1])) if self.kept else None
        end = self.plan.next_end(before, limited=limited)
        if end is None:
            return None
        self.kept.append(json.dumps(end.to_json()))
        return self.again(len(self.kept) - 1)

    def again(self, number):
        """The ranges of a micro-batch that ran before, planned by what was kept alone."""
        before, end = ([None, *self.kept][number], self.kept[number])
        before = None if before is None else StreamEnd.from_json(json.loads(before))
        plan = StreamPlan(self.options, None, lambda: 0.0)
        return [
            (one.topic, one.partition, one.start, one.end)
            for one in plan.ranges(before, StreamEnd.from_json(json.loads(end)))
        ]


def test_a_stream_reads_on_from_where_it_was():
    cluster = Cluster(t=[[0, 10], [5, 5]])
    query = Query(cluster, startingOffsets="earliest")
    assert query.batch() == [("t", 0, 0, 10)]
    assert query.batch() is None
    cluster.logs["t"] = [[0, 12], [5, 6]]
    query.restart()
    assert query.batch() == [("t", 0, 10, 12), ("t", 1, 5, 6)]


def test_the_first_batch_keeps_where_latest_was_although_it_is_empty():
    cluster = Cluster(t=[[0, 10]])
    query = Query(cluster)
    assert query.batch() == []
    cluster.logs["t"] = [[0, 25]]
    query.restart()
    assert query.again(0) == []
    assert query.batch() == [("t", 0, 10, 25)]


def test_the_first_batch_is_the_same_when_it_runs_again_although_retention_went_on():
    cluster = Cluster(t=[[0, 10]])
    query = Query(cluster, startingTimestamp="4")
    assert query.batch() == [("t", 0, 4, 10)]
    cluster.logs["t"] = [[8, 40]]
    assert query.again(0) == [("t", 0, 4, 10)]


def test_new_partitions_and_topics_are_read_from_their_beginning():
    cluster = Cluster(a1=[[0, 10]])
    query = Query(cluster, subscribePattern="a.*")
    assert query.batch() == []
    cluster.logs["a1"] = [[0, 10], [2, 7]]
    cluster.logs["a2"], cluster.made["a2"] = [[0, 0]], 5
    assert query.batch() == [("a1", 1, 2, 7)]
    cluster.logs["a1"] = [[0, 11], [4, 7]]
    cluster.logs["a2"] = [[0, 3]]
    assert query.again(1) == [("a1", 1, 2, 7)]
    assert query.batch() == [("a1", 0, 10, 11), ("a2", 0, 0, 3)]


def test_a_topic_that_was_made_again_is_data_loss_or_read_from_its_beginning():
    cluster = Cluster(t=[[0, 10], [0, 10]])
    strict, lenient = Query(cluster), Query(cluster, failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == []
    cluster.remake("t", [0, 50])
    with pytest.raises(DataLoss, match="topic t was deleted and made again; some records may have been deleted"):
        strict.batch()
    assert lenient.batch() == [("t", 0, 0, 50)]
    assert lenient.batch() is None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"subscribe": "r1"}, {"subscribe": "r2"}),
        ({"subscribePattern": "r."}, {"subscribePattern": "r2|x"}),
        ({"assign": '{"r1": [0]}'}, {"assign": '{"r2": [0]}'}),
    ],
)
def test_a_checkpoint_of_topics_that_the_source_does_not_name_any_more_is_called_that(before, now, caplog):
    """It said that r1-0 is gone, and its records perhaps deleted. They are there."""
    cluster = Cluster(r1=[[0, 10]], r2=[[0, 3]])
    query = Query(cluster, startingOffsets="earliest", **before)
    assert ("r1", 0, 0, 10) in query.batch()
    query.options = stream_options({"bootstrap": "x:1", **now})
    query.restart()
    with pytest.raises(DataLoss) as caught:
        query.batch()
    assert str(caught.value) == (
        "ingestd source: the checkpoint is of topics or partitions that the source does not name any more, of r1; "
        "name them too, or begin with a new checkpoint (failOnDataLoss = false reads what is there)"
    )
    query.options = stream_options({"bootstrap": "x:1", "failOnDataLoss": "false", **now})
    query.restart()
    query.batch()
    assert [record.args[0] for record in caplog.records] == [
        "the checkpoint is of topics or partitions that the source does not name any more, of r1"
    ]


def test_a_topic_that_is_gone_is_data_loss_or_waited_for(caplog):
    cluster = Cluster(t=[[0, 10]])
    strict, lenient = Query(cluster), Query(cluster, failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == []
    del cluster.logs["t"]
    with pytest.raises(DataLoss, match="t-0 is gone"):
        strict.batch()
    assert lenient.batch() is None
    assert lenient.batch() is None
    assert len(caplog.records) == 1
    cluster.logs["t"] = [[0, 12]]
    assert lenient.batch() == [("t", 0, 10, 12)]


def test_a_topic_that_is_not_there_at_the_start_is_an_error():
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        Query(Cluster()).batch()


def test_a_log_that_was_cut_is_data_loss_or_read_from_its_end():
    cluster = Cluster(t=[[0, 10]])
    strict, lenient = Query(cluster), Query(cluster, failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == []
    cluster.logs["t"] = [[0, 7]]
    with pytest.raises(DataLoss, match="t-0 ends at offset 7, but was read up to 10"):
        strict.batch()
    assert lenient.batch() == []
    cluster.logs["t"] = [[0, 9]]
    assert lenient.batch() == [("t", 0, 7, 9)]


def test_an_old_end_that_a_new_leader_tells_for_a_moment_is_no_data_loss():
    cluster = Cluster(t=[[0, 10]])
    query = Query(cluster)
    assert query.batch() == []
    honest = cluster.offsets
    answers = iter([{TopicPartition("t", 0): 7}, {TopicPartition("t", 0): 8}])
    cluster.offsets = lambda wanted: next(answers, None) or honest(wanted)
    cluster.logs["t"] = [[0, 11]]
    assert query.batch() == [("t", 0, 10, 11)]


def test_a_batch_waits_for_the_least_but_not_for_ever():
    cluster = Cluster(t=[[0, 10]])
    query = Query(cluster, minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    assert query.batch() == []
    cluster.logs["t"] = [[0, 14]]
    assert query.batch() is None
    assert query.batch(limited=False) == [("t", 0, 10, 14)]
    cluster.logs["t"] = [[0, 16]]
    query.now = 59
    assert query.batch() is None
    query.now = 60
    assert query.batch() == [("t", 0, 14, 16)]
    cluster.logs["t"] = [[0, 21]]
    assert query.batch() == [("t", 0, 16, 21)]


def test_the_delay_is_as_with_sparks_connector():
    """It begins again when it is over, also if nothing came. The first time after a start nothing waits."""
    cluster = Cluster(t=[[0, 10]])
    query = Query(cluster, minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    assert query.batch() == []
    query.now = 60
    assert query.batch() is None
    cluster.logs["t"] = [[0, 11]]
    query.now = 61
    assert query.batch() is None
    query.now = 120
    assert query.batch() == [("t", 0, 10, 11)]
    cluster.logs["t"] = [[0, 12]]
    assert query.batch() is None
    query.restart()
    assert query.batch() == [("t", 0, 11, 12)]


def test_a_batch_waits_for_what_a_file_says_now(tmp_path):
    least = tmp_path / "least"
    cluster = Cluster(t=[[0, 0]])
    query = Query(cluster, startingOffsets="earliest", minOffsetsFile=str(least), maxTriggerDelay="60s")
    assert query.batch() == []
    cluster.logs["t"] = [[0, 1_000]]
    assert query.batch() is None, "nobody knows yet how many are enough"
    worth = Worth(1_000_000, least)
    worth.read(0, 100)
    assert query.batch() is None
    worth.wrote(1, 100_000)
    worth.read(1, 100)
    assert query.batch() == [("t", 0, 0, 1_000)], "100 rows took 100,000 bytes"
    cluster.logs["t"] = [[0, 1_999]]
    assert query.batch() is None
    worth.wrote(2, 500)
    worth.read(2, 0)
    assert query.batch() is None, "from no rows nothing is learned"


def test_a_query_that_is_to_end_reads_what_was_there_in_batches_of_the_most():
    cluster = Cluster(t=[[0, 10], [0, 4]])
    query = Query(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="7", minOffsetsPerTrigger="7")
    query.plan.stop_at_present()
    cluster.logs["t"] = [[0, 100], [0, 100], [0, 100]]
    assert query.batch() == [("t", 0, 0, 5), ("t", 1, 0, 2)]
    assert query.batch() == [("t", 0, 5, 10), ("t", 1, 2, 4)]
    assert query.batch() is None


def test_the_checkpoint_of_another_source_is_refused():
    for wrong in ({"t": {"0": 5}}, {"offsets": 5}, {"offsets": {"t": {"x": 5}}}):
        with pytest.raises(ConfigurationError, match="expected one of this source"):
            StreamEnd.from_json(wrong)


def test_ranges_are_split_as_those_of_batches():
    cluster = Cluster(t=[[0, 10]])
    query = Query(cluster, startingOffsets="earliest", minPartitions="2")
    assert query.batch() == [("t", 0, 0, 5), ("t", 0, 5, 10)]


@given(data=st.data())
def test_every_offset_is_read_once_whatever_the_limits_and_restarts(data):
    most = data.draw(st.none() | st.integers(1, 30))
    options = {} if most is None else {"maxOffsetsPerTrigger": str(most)}
    cluster = Cluster(t=[[0, 0], [0, 0]])
    query = Query(cluster, startingOffsets="earliest", **options)
    for _ in range(data.draw(st.integers(1, 5))):
        logs = [[start, end + data.draw(st.integers(0, 40))] for start, end in cluster.logs["t"]]
        cluster.logs["t"] = logs + [[0, 3]] * data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):
            query.restart()
        query.batch()
    query.plan.stop_at_present()
    while query.batch() is not None:
        assert len(query.kept) < 1_000
    batches = [query.again(number) for number in range(len(query.kept))]
    assert most is None or all(sum(end - start for *_, start, end in one) <= most + len(one) for one in batches)
    for partition, (_, end) in enumerate(cluster.logs["t"]):
        read = [offset for one in batches for _, number, *ends in one if number == partition for offset in range(*ends)]
        assert read == list(range(end))
