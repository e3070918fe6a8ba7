"""A mirror between two real clusters: every record once, in order, as it was; whatever stops and starts meanwhile."""

import os
import re
import signal
import subprocess
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource
from harness.mirrors import (
    caught_up,
    copied_to_the_end,
    positions,
    produce,
    produce_to,
    records,
    runs_once,
    source_offset,
)


def test_records_arrive_as_they_were_whatever_their_codec(kafka, west, mirror, topic):
    names = {codec: topic(partitions=2) for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    for codec, name in names.items():
        values = [b"%d" % n * 20 for n in range(5000)]
        produce(kafka.servers, name, values, partitions=2, **{"compression.type": codec})
    runs_once(mirror(topics=list(names.values())))
    for codec, name in names.items():
        for partition in range(2):
            sent = records(kafka.servers, name, partition)
            assert len(sent) == 2500
            assert records(west.servers, f"east.{name}", partition) == sent, codec


def test_a_second_run_copies_only_what_is_new(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    for round_ in range(2):
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


def test_topics_and_partitions_that_come_later_are_copied_from_their_beginning(kafka, west, mirror, topic):
    name = topic(partitions=1, retention_ms="123456789", cleanup_policy="delete")
    daemon = mirror(topics=[re.escape(name) + ".*"], start="latest")
    produce(kafka.servers, name, [b"old"])
    daemon.start_ready()
    produce(kafka.servers, name, [b"new"])
    kafka.create_topic(f"{name}-later")
    produce(kafka.servers, f"{name}-later", [b"first"])
    kafka.add_partitions(name, 3)
    produce_to(kafka.servers, name, 2, b"third")
    daemon.until(lambda: daemon.status()["routes"][0]["records"] == 3, "three records are copied", 30)
    assert daemon.stop() == 0
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}")] == [b"new"]
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}", 2)] == [b"third"]
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}-later")] == [b"first"]
    (described,) = west.admin.describe_configs([ConfigResource("topic", f"east.{name}")]).values()
    assert described.result(10)["retention.ms"].value == "123456789"


def test_after_kills_of_workers_and_supervisor_nothing_is_missing_and_order_is_kept(kafka, west, mirror, topic):
    name = topic(partitions=3)
    daemon = mirror(topics=[name], daemon={"workers": 2, "restart_backoff": 0.05})
    daemon.start_ready()
    total = 15000
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


@pytest.mark.parametrize("grows", ["topic", "partition"])
def test_what_came_to_the_source_while_a_killed_host_was_away_is_copied(kafka, west, mirror, topic, grows):
    name = topic()
    daemon = mirror(topics=[re.escape(name) + ".*"], name=f"killed-{name}")
    daemon.start_ready()
    produce(kafka.servers, name, [b"old"])
    copied_to_the_end(daemon, 1)
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait(30)
    if grows == "topic":
        added, partition = kafka.create_topic(f"{name}-later"), 0
    else:
        added, partition = name, 1
        kafka.add_partitions(name, 2)
    produce_to(kafka.servers, added, partition, b"new")
    daemon.start_ready()  # within its session: the group on the target does not rebalance by itself
    copied_to_the_end(daemon, 2)
    assert daemon.stop() == 0
    assert [value for _, value, _, _ in records(west.servers, f"east.{added}", partition)] == [b"new"]


def test_two_mirrors_of_one_group_are_told_apart(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one"])
    runs_once(mirror(topics=[name], naming="copy.{topic}", group="shared"))
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
    copied_to_the_end(other, 6)
    assert other.stop() == 0
    assert numbers(west, f"east.{name}", 6) == [list(range(one, produced, 6)) for one in range(6)]


UNDER_WAY = 5 * 1049
"""Records of 1,000 bytes that a worker may be in the midst of sending as it freezes: it ends these requests."""


def test_a_host_that_was_frozen_past_its_session_is_taken_over_and_sends_nothing_when_it_wakes(
    kafka, west, mirror, topic
):
    # It was: a thawed host sent 11,297 of 19,625 records twice, all that its workers had read and not sent.
    name, total = topic(partitions=2), 40_000
    keys = {"topics": [name], "name": f"woken-{name}", "daemon": {"workers": 2}}
    one, other = mirror(**keys), mirror(**keys)
    values = [b"%01000d" % number for number in range(total)]
    one.start_ready()
    produce(kafka.servers, name, values[:1000], partitions=2)
    copied_to_the_end(one, 2)
    workers = one.worker_pids()
    west.freeze(1)  # so that what is read waits with the producers
    produce(kafka.servers, name, values[1000:], partitions=2)
    one.until(lambda: one.status()["routes"][0]["bytes_read"] > total * 900, "it has read most", 10)
    for pid in [*workers, one.pid]:
        os.kill(pid, signal.SIGSTOP)
    west.thaw(1)
    time.sleep(1)  # what was on its way to the broker is there
    ends = sum(len(copied) for copied in numbers(west, f"east.{name}", 2))
    committed = sum(at.offset for at in positions(west, f"ingestd-mirror-woken-{name}", f"east.{name}", 2))
    assert ends < total / 2, "there is a lot left to send"
    other.start()
    other.until(lambda: caught_up(other, 2), "the other host has all, and copied all", 90)
    for pid in [*pids_of(one), one.pid]:
        os.kill(pid, signal.SIGCONT)
    other.until(lambda: len(owned(one)) == 1 == len(owned(other)), "they share again", 60)
    assert not owned(one) & owned(other)
    produce(kafka.servers, name, values[:100], partitions=2)
    other.until(lambda: caught_up(one, 1) and caught_up(other, 1), "all is copied", 60)
    assert one.stop() == 0
    assert other.stop() == 0
    copies = numbers(west, f"east.{name}", 2)
    for partition, copied in enumerate(copies):
        assert list(dict.fromkeys(copied)) == list(range(partition, total, 2))
    again = sum(map(len, copies)) - total - 100
    print(f"{ends} copied when it was frozen, {committed} of them committed; {again} came twice")
    assert again <= ends - committed + 2 * UNDER_WAY


def pids_of(daemon):
    """The worker processes of a daemon, which may be frozen."""
    return [
        int(pid)
        for pid in subprocess.run(["pgrep", "-P", str(daemon.pid)], capture_output=True, check=True).stdout.split()
    ]


def test_a_run_with_an_end_is_refused_while_hosts_run_the_mirror(kafka, west, mirror, topic):
    name = topic()
    keys = {"topics": [name], "name": f"busy-{name}"}
    running, once = mirror(**keys), mirror(**keys, daemon={"once_patience": 5})
    running.start_ready()
    produce(kafka.servers, name, [b"one"])
    copied_to_the_end(running, 1)
    once.start("--once")
    assert once.wait(30) == 1
    assert f"group ingestd-mirror-busy-{name} has members: hosts run this mirror now" in once.log.read_text()
    assert running.stop() == 0
    assert len(records(west.servers, f"east.{name}")) == 1
