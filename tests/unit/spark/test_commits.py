from ingestd.consumer.settings import TopicPartition
from ingestd.errors import DeadlineExceeded, ErrorCode, KafkaError
from ingestd.spark.commits import Commits

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Group:
    """Takes commits, or fails as the test wants it."""

    def __init__(self):
        self.commits = []
        self.refused = {}
        self.error = None

    def commit(self, group, offsets):
        self.commits.append((group, dict(offsets)))
        if self.error is not None:
            raise self.error
        return {key: self.refused.get(key) for key in offsets}


def commits(group):
    now = [0.0]
    return Commits("g", group, lambda: now[0]), now


def test_what_has_changed_is_committed_once():
    group = Group()
    told, _ = commits(group)
    for offsets in ({ZERO: 1, ONE: 5}, {ZERO: 1, ONE: 5}, {ZERO: 2, ONE: 5}):
        told.done(offsets)
    assert group.commits == [("g", {ZERO: 1, ONE: 5}), ("g", {ZERO: 2})]


def test_once_an_hour_all_is_committed_again_so_that_brokers_do_not_forget_it():
    group = Group()
    told, now = commits(group)
    for now[0] in (0.0, 3_599.0, 3_600.0, 7_199.0, 7_200.0):
        told.done({ZERO: 1})
    assert group.commits == [("g", {ZERO: 1})] * 3


def test_a_group_with_members_is_told_of_once_and_tried_again_later(caplog):
    group = Group()
    told, now = commits(group)
    group.refused = dict.fromkeys((ZERO, ONE), KafkaError(ErrorCode.unknown_member_id, "g: t"))
    for now[0] in (0.0, 9.0, 10.0):
        told.done({ZERO: 1, ONE: 5})
    assert len(group.commits) == 2
    (record,) = caplog.records
    assert "offsets of group g were not committed, because the group has active members" in record.getMessage()
    group.refused = {ONE: KafkaError(ErrorCode.unknown_topic_or_partition, "t-1")}
    now[0] = 20.0
    told.done({ZERO: 1, ONE: 5})
    group.refused = {}
    now[0] = 30.0
    told.done({ZERO: 1, ONE: 5})
    assert group.commits[-1] == ("g", {ONE: 5})


def test_a_coordinator_that_does_not_answer_does_not_end_the_query(caplog):
    group = Group()
    told, now = commits(group)
    group.error = DeadlineExceeded("no broker answers")
    for now[0] in (0.0, 10.0):
        told.done({ZERO: 1})
    assert len(caplog.records) == 1
    group.error, now[0] = None, 20.0
    told.done({ZERO: 3})
    assert group.commits[-1] == ("g", {ZERO: 3})
