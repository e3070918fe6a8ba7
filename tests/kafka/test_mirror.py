"""A mirror between two real clusters: every record once, in order, as it was; whatever stops and starts meanwhile."""

import os
import re
import signal
import subprocess
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, NewPartitions
from harness.mirrors import copied_to_the_end, positions, produce, records, runs_once, source_offset


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_arrive_as_they_were_whatever_their_codec(kafka, west, mirror, topic, codec):
    name = topic(partitions=2)
    produce(kafka.servers, name, [b"%d" % n * 20 for n in range(5000)], partitions=2, **{"compression.type": codec})
    runs_once(mirror(topics=[name]))
    for partition in range(2):
        sent = records(kafka.servers, name, partition)
        assert len(sent) == 2500
        assert records(west.servers, f"east.{name}", partition) == sent


def test_a_second_run_copies_only_what_is_new(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    for round_ in range(3):
        produce(kafka.servers, name, [b"%d-%d" % (round_, n) for n in range(100)])
        runs_once(daemon)
    assert records(west.servers, f"east.{name}") == records(kafka.servers, name)


def test_only_committed_records_are_copied_and_the_position_passes_the_markers(kafka, west, mirror, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"tx-{name}"})
    producer.init_transactions(30)
    for number in range(20):
        producer.begin_transaction()
        for part in range(5):
            producer.produce(name, b"%d.%d" % (number, part))
        assert producer.flush(30) == 0
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(30)
    kafka.wait_for_end_offsets(name, {0: 120})
    runs_once(mirror("committed", topics=[name]))
    values = [value for _, value, _, _ in records(west.servers, f"east.{name}", isolation="read_uncommitted")]
    assert values == [b"%d.%d" % (number, part) for number in range(1, 20, 2) for part in range(5)]
    (position,) = positions(west, "ingestd-mirror-committed", f"east.{name}")
    assert (position.offset, source_offset(position)) == (50, 120)


def test_gaps_of_compaction_are_kept_record_for_record(kafka, west, mirror, topic):
    name = topic(cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01")
    west.create_topic(f"east.{name}")  # not compacted: what arrives is what is compared
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5, "compression.type": "lz4"})
    for number in range(4000):
        producer.produce(name, b"%d" % number, b"key-%d" % (number % 40 if number % 4 else number))
    assert producer.flush(30) == 0
    deadline = time.monotonic() + 60
    while len(before := records(kafka.servers, name)) > 2000:
        assert time.monotonic() < deadline, "the log cleaner does not run"
        time.sleep(0.3)  # a segment is closed by an append that comes so late
        producer.produce(name, b"again", b"again")
        producer.flush(10)
    runs_once(mirror(topics=[name]))
    copied = records(west.servers, f"east.{name}")
    assert is_part(copied, before)
    assert is_part(records(kafka.servers, name), copied)


def is_part(some, of):
    """Whether `some` is `of`, in order, without what compaction took meanwhile."""
    rest = iter(of)
    return all(one in rest for one in some)


def test_times_of_the_broker_are_kept(kafka, west, mirror, topic):
    name = topic(message_timestamp_type="LogAppendTime")
    produce(kafka.servers, name, [b"%d" % number for number in range(1000)])
    runs_once(mirror(topics=[name]))
    theirs, ours = records(kafka.servers, name), records(west.servers, f"east.{name}")
    assert len(theirs) == 1000
    assert [(*one[:3], one[3][1]) for one in ours] == [(*one[:3], one[3][1]) for one in theirs]
    assert {one[3][0] for one in theirs} == {2}
    assert {one[3][0] for one in ours} == {1}, "to the target it is the records' own time"


def test_topics_and_partitions_that_come_later_are_copied_from_their_beginning(kafka, west, mirror, topic):
    name = topic(partitions=1, retention_ms="123456789", cleanup_policy="delete")
    daemon = mirror(topics=[re.escape(name) + ".*"], start="latest")
    produce(kafka.servers, name, [b"old"])
    daemon.start_ready()
    produce(kafka.servers, name, [b"new"])
    kafka.create_topic(f"{name}-later")
    produce(kafka.servers, f"{name}-later", [b"first"])
    (grown,) = kafka.admin.create_partitions([NewPartitions(name, 3)]).values()
    grown.result(10)
    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(name, b"third", partition=2)
    assert producer.flush(30) == 0
    daemon.until(lambda: daemon.status()["routes"][0]["records"] == 3, "three records are copied", 30)
    assert daemon.stop() == 0
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}")] == [b"new"]
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}", 2)] == [b"third"]
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}-later")] == [b"first"]
    (described,) = west.admin.describe_configs([ConfigResource("topic", f"east.{name}")]).values()
    assert described.result(10)["retention.ms"].value == "123456789"


def test_after_kills_of_workers_and_supervisor_nothing_is_missing_and_order_is_kept(kafka, west, mirror, topic):
    name = topic(partitions=3)
    daemon = mirror(topics=[name], daemon={"restart_backoff": 0.05})
    daemon.start_ready()
    total = 30000
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5})
    for number in range(total):
        producer.produce(name, b"%d" % number, partition=number % 3)
        if number % 1000 == 999:
            producer.flush(10)
            daemon.until(lambda: len(daemon.worker_pids()) == 2, "both workers run", 30)
            victim = number // 1000 % 5
            if victim == 1:
                daemon.kill_worker(0)
            elif victim == 3:
                daemon.kill_worker(1)
            elif victim == 4:
                os.kill(daemon.pid, signal.SIGKILL)
                daemon.wait(30)
                daemon.start_ready()
    assert producer.flush(30) == 0
    copied_to_the_end(daemon, 3)
    assert daemon.stop() == 0
    for partition in range(3):
        values = [int(value) for _, value, _, _ in records(west.servers, f"east.{name}", partition)]
        first = list(dict.fromkeys(values))
        assert first == list(range(partition, total, 3)), "each record, in order of its first occurrence"


def test_two_mirrors_of_one_group_are_told_apart(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one"])
    runs_once(mirror(topics=[name], naming="copy.{topic}", group="shared"))
    producer = Producer({"bootstrap.servers": west.servers})
    producer.flush(10)
    consumer = Consumer({"bootstrap.servers": west.servers, "group.id": "shared"})
    consumer.commit(offsets=[TopicPartition(f"copy.{name}", 0, 1)], asynchronous=False)
    consumer.close()
    daemon = mirror(topics=[name], naming="copy.{topic}", group="shared")
    daemon.start()
    daemon.until(lambda: "Another program" in daemon.log.read_text(), "it says what is wrong", 30)
    assert daemon.stop() == 0
    assert len(records(west.servers, f"copy.{name}")) == 1


def numbers(cluster, topic, partitions):
    """The numbers in each partition's records."""
    return [[int(value) for _, value, _, _ in records(cluster.servers, topic, one)] for one in range(partitions)]


def owned(daemon):
    """The partitions that a daemon copies now."""
    return {source["source"] for source in daemon.status()["routes"][0]["sources"]}


def test_two_hosts_share_a_mirror_and_hand_partitions_over_with_nothing_twice(kafka, west, mirror, topic):
    name = topic(partitions=6)
    keys = {"topics": [name], "name": f"shared-{name}"}
    one, other = mirror(**keys), mirror(**keys)
    one.start_ready()
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5})
    produced = 0

    def more(count):
        nonlocal produced
        for number in range(produced, produced + count):
            producer.produce(name, b"%d" % number, partition=number % 6)
            producer.poll(0)
        produced += count
        assert producer.flush(30) == 0

    more(6000)
    other.start_ready()
    for _ in range(20):
        more(600)
    one.until(lambda: len(owned(one)) == 3 and len(owned(other)) == 3, "each host has three partitions", 60)
    assert not owned(one) & owned(other)
    more(6000)
    assert one.stop() == 0
    for _ in range(20):
        more(600)
    other.until(lambda: len(owned(other)) == 6, "the other host has all", 60)
    more(600)
    other.until(lambda: caught_up(other, 6), "all is copied", 60)
    assert other.stop() == 0
    assert numbers(west, f"east.{name}", 6) == [list(range(one, produced, 6)) for one in range(6)]


def caught_up(daemon, partitions):
    """Whether a daemon has said of each of its partitions that nothing is left."""
    sources = daemon.status()["routes"][0]["sources"]
    return len(sources) == partitions and all(source["lag"] == 0 for source in sources)


def test_a_host_that_was_frozen_past_its_session_is_taken_over_and_can_not_commit(kafka, west, mirror, topic):
    name = topic(partitions=2)
    group = f"frozen-{name}"
    keys = {"topics": [name], "name": group}
    one, other = mirror(**keys), mirror(**keys)
    one.start_ready()
    produce(kafka.servers, name, [b"%d" % number for number in range(1000)], partitions=2)
    one.until(lambda: caught_up(one, 2), "all is copied", 60)
    for pid in [one.pid, *one.worker_pids()]:
        os.kill(pid, signal.SIGSTOP)
    other.start()
    produce(kafka.servers, name, [b"%d" % number for number in range(1000, 2000)], partitions=2)
    other.until(lambda: caught_up(other, 2), "the other host has all, and copied all", 60)
    for pid in [*pids_of(one), one.pid]:
        os.kill(pid, signal.SIGCONT)
    other.until(lambda: len(owned(one) | owned(other)) == 2 and not owned(one) & owned(other), "they share again", 60)
    produce(kafka.servers, name, [b"%d" % number for number in range(2000, 3000)], partitions=2)
    other.until(lambda: all(caught_up(each, len(owned(each))) for each in (one, other)), "all is copied", 60)
    assert one.stop() == 0
    assert other.stop() == 0
    for partition, copied in enumerate(numbers(west, f"east.{name}", 2)):
        assert list(dict.fromkeys(copied)) == list(range(partition, 3000, 2))


def pids_of(daemon):
    """The worker processes of a daemon, which may be frozen."""
    return [
        int(pid)
        for pid in subprocess.run(["pgrep", "-P", str(daemon.pid)], capture_output=True, check=True).stdout.split()
    ]


def test_a_run_with_an_end_is_refused_while_hosts_run_the_mirror(kafka, west, mirror, topic):
    name = topic()
    keys = {"topics": [name], "name": f"busy-{name}"}
    running, once = mirror(**keys), mirror(**keys, daemon={"once_patience": 2.0})
    running.start_ready()
    produce(kafka.servers, name, [b"one"])
    running.until(lambda: caught_up(running, 1), "all is copied", 30)
    once.start("--once")
    assert once.wait(30) == 1
    assert f"group ingestd-mirror-busy-{name} has members: hosts run this mirror now" in once.log.read_text()
    assert running.stop() == 0
    assert len(records(west.servers, f"east.{name}")) == 1
