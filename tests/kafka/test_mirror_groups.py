"""Consumer groups on both sides of a mirror: who stops at the source goes on at the target, with nothing skipped."""

import asyncio
import json
import os
import signal
import subprocess
import time
import tomllib

from confluent_kafka import Consumer, Producer, TopicPartition
from harness.cluster import java_tool
from harness.mirrors import copied_to_the_end, messages, produce, records, runs_once, set_back, set_offsets
from harness.programs import ingestd

from ingestd import Client, ClusterAdmin, OffsetAndMetadata

GROUPS = {"sync_groups_interval": 0.3}


def read(cluster, topic, group, most=10**9, protocol="classic"):
    """What a member of a group gets now, at most so many records; it commits behind the last one, and leaves."""
    consumer = Consumer({
        "bootstrap.servers": cluster.servers, "group.id": group, "enable.auto.commit": False,
        "auto.offset.reset": "latest", "isolation.level": "read_committed", "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "group.protocol": protocol,
    })  # fmt: skip
    found, last, ends = [], {}, set()
    try:
        consumer.subscribe([topic])
        partitions = len(consumer.list_topics(topic, 10).topics[topic].partitions)
        deadline = time.monotonic() + 30
        while len(found) < most and len(ends) < partitions:
            assert time.monotonic() < deadline, f"{topic}: {len(found)} records, the ends of {ends}"
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                ends.add(message.partition())
                continue
            found.append(message.value())
            last[message.partition()] = message.offset() + 1
        if last:
            consumer.commit(offsets=[TopicPartition(topic, one, at) for one, at in last.items()], asynchronous=False)
    finally:
        consumer.close()
    return found


def begin(cluster, topic, group, partitions=1):
    """Commit the beginning in a group's name: it has seen the topic, and read nothing."""
    set_offsets(cluster, {group: {(topic, one): 0 for one in range(partitions)}})


def committed(cluster, group, topic, partition=0):
    """What a group has committed for a partition; less than 0: nothing."""
    return committed_by_all(cluster, [group], topic, partition).get(group, -1)


def translated(daemon, group, partitions=1):
    """Whether a daemon says that a group is where it should be in all of its partitions."""
    found = {one["group"]: one for one in daemon.status()["routes"][0]["groups"]}
    return group in found and (found[group]["translated"], found[group]["problem"]) == (partitions, None)


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


def in_transactions(cluster, topic, first, last, size=7, partition=0):
    """Records in transactions of a few, every third of which is aborted; returns those that are committed."""
    producer = Producer({"bootstrap.servers": cluster.servers, "transactional.id": f"tx-{topic}", "linger.ms": 0})
    producer.init_transactions(30)
    kept = []
    for turn, start in enumerate(range(first, last, size)):
        producer.begin_transaction()
        values = numbers(start, min(last, start + size))
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(30) == 0
        if turn % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            kept += values
    return kept


def console(cluster, topic, group, *more):
    """What Java's consumer gets as a member of a group."""
    said = java_tool(
        *("ConsoleConsumer", "--bootstrap-server", cluster.servers, "--topic", topic, "--group", group),
        *("--isolation-level", "read_committed", *more),
    )  # fmt: skip
    return said.encode().split()


def test_a_group_goes_on_at_the_target_with_the_next_record(kafka, west, mirror, topic):
    """Of either protocol of librdkafka's, and Java's."""
    name = topic()
    classic, consumer, java = groups = [f"app-{name}-{kind}" for kind in ("classic", "consumer", "java")]
    kept = in_transactions(kafka, name, 0, 300)
    for group in (classic, consumer):
        begin(kafka, name, group)
        assert read(kafka, name, group, 77, group.rpartition("-")[2]) == kept[:77]
    assert console(kafka, name, java, "--from-beginning", "--max-messages", "77") == kept[:77]
    daemon = mirror("java", topics=[name], groups=["app-.*"], **GROUPS)
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    daemon.until(lambda: all(translated(daemon, group) for group in groups), "the groups are translated", 30)
    java_is_at = exact(log(kafka, name), log(west, f"east.{name}"), committed(kafka, java, name))
    daemon.until(lambda: committed(west, java, f"east.{name}") == java_is_at, "where it should be", 30)
    assert 'ingestd_groups{route="java",state="translated"} 3.0' in daemon.metrics()
    assert daemon.stop() == 0
    for group in (classic, consumer):
        assert read(west, f"east.{name}", group, protocol=group.rpartition("-")[2]) == kept[77:]
    assert console(west, f"east.{name}", java, "--max-messages", str(len(kept) - 77)) == kept[77:]


def log(cluster, topic, partition=0):
    """The offsets and values of a partition's committed records."""
    return [(message.offset(), message.value()) for message in messages(cluster.servers, topic, partition)]


def exact(source_log, target_log, offset):
    """The offset on the target of the last copy of the next record at or behind an offset of the source."""
    following = [value for at, value in source_log if at >= offset]
    copies = [at for at, value in target_log if following and value == following[0]]
    return copies[-1] if copies else target_log[-1][0] + 1


def place_groups(cluster, topic, offsets, partition=0):
    """A group at each of these offsets of a partition; returns them by name."""
    groups = {f"app-{topic}-{partition}-{offset}": offset for offset in offsets}
    set_offsets(cluster, {group: {(topic, partition): offset} for group, offset in groups.items()})
    return groups


def committed_by_all(cluster, groups, topic, partition):
    """What many groups have committed for a partition, by group."""

    async def ask():
        async with Client(cluster.bootstrap) as client:
            return await ClusterAdmin(client).list_group_offsets({group: [(topic, partition)] for group in groups})

    asked = asyncio.run(ask())
    return {one.group_id: one.offsets[topic, partition].offset for one in asked if (topic, partition) in one.offsets}


def wrong(kafka, west, topic, groups, partition=0):
    """The groups that are not where they should be on the target: theirs and the right offset."""
    source_log, target_log = log(kafka, topic, partition), log(west, f"east.{topic}", partition)
    found = committed_by_all(west, groups, f"east.{topic}", partition)
    right = {group: exact(source_log, target_log, offset) for group, offset in groups.items()}
    return {group: (found[group], right[group]) for group in groups if found[group] != right[group]}


def test_offsets_are_exact_after_kills_of_workers_and_of_the_daemon_with_transactions(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name], groups=["app-.*"], daemon={"workers": 2, "restart_backoff": 0.05}, **GROUPS)
    daemon.start_ready()
    for turn in range(6):
        in_transactions(kafka, name, 300 * turn, 300 * turn + 300)
        daemon.until(lambda: len(daemon.worker_pids()) == 2, "both workers run", 30)
        if turn % 2:
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.wait(30)
            daemon.start_ready()
        else:
            daemon.kill_worker(0)
            daemon.kill_worker(1)
    (end,) = [at + 1 for at, _ in log(kafka, name)[-1:]]
    copied_to_the_end(daemon, 1)
    groups = place_groups(kafka, name, [*range(0, end, end // 30), end - 1, end, end + 1])
    daemon.until(lambda: all(translated(daemon, group) for group in groups), "the groups are translated", 60)
    assert daemon.stop() == 0
    assert wrong(kafka, west, name, groups) == {}


def test_offsets_are_exact_where_compaction_left_gaps_and_batches_are_made_anew(kafka, west, mirror, topic):
    """A record's value is its offset at the source."""
    name = topic(cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01")
    west.create_topic(f"east.{name}")
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5, "enable.idempotence": True})
    total = 3000
    for number in range(total):
        producer.produce(name, b"%d" % number, b"key-%d" % (number % 40 if number % 4 else number))
    assert producer.flush(30) == 0
    deadline = time.monotonic() + 60
    while len(records(kafka.servers, name)) > total // 2:
        assert time.monotonic() < deadline, "the log cleaner does not run"
        time.sleep(0.3)  # a segment is closed by an append that comes so late
        producer.produce(name, b"%d" % total, b"again")
        producer.flush(10)
        total += 1
    groups = place_groups(kafka, name, range(0, total, total // 40))
    runs_once(mirror(topics=[name], groups=["app-.*"]))
    copied = [(at, int(value)) for at, value in log(west, f"east.{name}")]
    assert len(copied) < total
    found = committed_by_all(west, groups, f"east.{name}", 0)
    assert found == {group: min(at for at, value in copied if value >= offset) for group, offset in groups.items()}


def test_two_hosts_translate_their_partitions_and_know_what_the_other_has_copied(kafka, west, mirror, topic):
    name = topic(partitions=4)
    keys = {"topics": [name], "name": f"shared-{name}", "groups": ["app-.*"], **GROUPS}
    one, other = mirror(**keys), mirror(**keys)

    def more(first, last):
        for partition in range(4):
            in_transactions(kafka, name, first, last, 10, partition)

    one.start_ready()
    more(0, 200)
    other.start_ready()
    more(200, 400)
    one.until(lambda: owned(one) + owned(other) == 4 and owned(one) == 2, "each host has two partitions", 60)
    assert one.stop() == 0
    more(400, 600)
    other.until(lambda: owned(other) == 4, "the other host has all", 60)
    copied_to_the_end(other, 4)
    placed = {partition: place_groups(kafka, name, range(0, 650, 50), partition) for partition in range(4)}
    names = [group for groups in placed.values() for group in groups]
    other.until(lambda: all(translated(other, group) for group in names), "the groups are translated", 60)
    assert other.stop() == 0
    for partition, groups in placed.items():
        assert wrong(kafka, west, name, groups, partition) == {}


def owned(daemon):
    """How many partitions a daemon copies now."""
    return len(daemon.status()["routes"][0]["sources"])


def test_a_group_goes_over_and_comes_back_with_one_side_written_at_a_time(kafka, west, mirror, topic):
    name = topic()
    west.create_topic(name)
    group = f"app-{name}"
    keys = {"topics": [name], "naming": "identity", "groups": ["app-.*"]}
    kept = in_transactions(kafka, name, 0, 200)
    begin(kafka, name, group)
    got = read(kafka, name, group, 50)
    runs_once(mirror(**keys))
    runs_once(back := mirror(**keys, start="latest", source=west, target=kafka))
    kept += in_transactions(west, name, 200, 400)
    got += read(west, name, group, 150)
    runs_once(back)
    kept += in_transactions(kafka, name, 400, 500)
    got += read(kafka, name, group)
    assert got == kept


def test_a_group_with_members_on_the_target_is_left_alone_until_they_are_gone(kafka, west, mirror, topic):
    name = topic()
    group = f"app-{name}"
    produce(kafka.servers, name, numbers(0, 100))
    daemon = mirror(topics=[name], groups=["app-.*"], **GROUPS)
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    member = Consumer({"bootstrap.servers": west.servers, "group.id": group, "enable.auto.commit": False})
    member.subscribe([f"east.{name}"])
    while not member.assignment():
        member.poll(0.1)
    set_offsets(kafka, {group: {(name, 0): 70}})

    def problem():
        member.poll(0)
        return {one["group"]: one["problem"] for one in daemon.status()["routes"][0]["groups"]}.get(group)

    daemon.until(lambda: problem() == "it has members on the target", "it is said", 30)
    member.close()
    daemon.until(lambda: translated(daemon, group), "the group is translated", 30)
    assert committed(west, group, f"east.{name}") == 70
    set_offsets(kafka, {group: {(name, 0): 60}, f"{group}-2": {(name, 0): 5}})
    daemon.until(lambda: translated(daemon, f"{group}-2"), "another look is done", 30)
    assert committed(west, group, f"east.{name}") == 70, "never backwards"
    assert daemon.stop() == 0
    said = daemon.log.read_text()
    assert said.count('"group not translated"') == 1


def test_what_was_copied_before_groups_were_translated_is_not_guessed(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, numbers(0, 100))
    runs_once(mirror("late", topics=[name]))
    produce(kafka.servers, name, numbers(100, 200))
    groups = place_groups(kafka, name, (50, 150))
    daemon = mirror("late", topics=[name], groups=["app-.*"])
    runs_once(daemon)
    before, after = groups
    assert f"where records of {name}-0 went is known from offset 100 on" in daemon.log.read_text()
    assert committed(west, before, f"east.{name}") < 0
    assert committed(west, after, f"east.{name}") == 150


def test_where_both_sides_write_nothing_is_skipped_and_what_may_not_be_read_is_read_again(kafka, west, mirror, topic):
    """The mirror in the other direction has copied nothing of what was written at the target since."""
    name = topic()
    west.create_topic(name)
    group = f"app-{name}"
    daemon = mirror(topics=[name], naming="identity", groups=["app-.*"], **GROUPS)
    daemon.start_ready()
    produce(kafka.servers, name, numbers(0, 50))
    copied_to_the_end(daemon, 1)
    back = json.dumps({"cluster": "west", "offset": 50, "epoch": 0, "topic_id": topic_id(west, name)})
    set_back(kafka, f"ingestd-mirror-back-{name}", name, [OffsetAndMetadata(50, -1, back)])
    produce(west.servers, name, numbers(100, 110))
    produce(kafka.servers, name, numbers(50, 60))
    copied_to_the_end(daemon, 1)
    set_offsets(kafka, {group: {(name, 0): 60}})
    daemon.until(lambda: translated(daemon, group), "the group is translated", 30)
    assert daemon.stop() == 0
    assert [value for _, value in log(west, name)] == numbers(0, 50) + numbers(100, 110) + numbers(50, 60)
    assert committed(west, group, name) == 50


def test_a_group_goes_over_while_mirrors_run_in_both_directions_and_one_stops(kafka, west, mirror, topic):
    """What is written at the target after the mirror back has stopped is read there, although the source lacks it."""
    name = topic()
    west.create_topic(name)
    group = f"app-{name}"
    keys = {"topics": [name], "naming": "identity"}
    there = mirror(f"there-{name}", groups=["app-.*"], **keys, **GROUPS)
    back = mirror(f"back-{name}", source=west, target=kafka, **keys)
    begin(kafka, name, group)
    there.start_ready()
    back.start_ready()
    for turn in range(5):
        produce(kafka.servers, name, numbers(20 * turn, 20 * turn + 20))
        produce(west.servers, name, numbers(1000 + 20 * turn, 1020 + 20 * turn))
    back.until(lambda: len(log(kafka, name)) == 200, "all is at the source", 30)
    there.until(lambda: len(log(west, name)) == 200, "all is on the target", 30)
    assert back.stop() == 0
    produce(west.servers, name, numbers(2000, 2020))
    produce(kafka.servers, name, numbers(100, 120))
    there.until(lambda: len(log(west, name)) == 240, "what is new is on the target", 30)
    at_source = read(kafka, name, group)
    assert len(at_source) == 220
    there.until(lambda: committed(west, group, name) == 200, "the group is before what came last", 30)
    assert there.stop() == 0
    on_target = read(west, name, group)
    assert set(at_source) | set(on_target) == {value for _, value in log(west, name)}
    assert len(on_target) == 40, "what it had not read, and what came between"


def topic_id(cluster, topic):
    async def ask():
        async with Client(cluster.bootstrap) as client:
            return (await ClusterAdmin(client).describe_topics([topic]))[topic].topic_id

    return str(asyncio.run(ask()))


# Handing over.


def hand_over(daemon, name, *options):
    """The exit status of the verb, and what it writes for programs."""
    command = [*ingestd(), "mirror", "hand-over", *options, str(daemon.file), name]
    done = subprocess.run(command, capture_output=True, timeout=90, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def test_consumers_are_handed_over_once_they_have_stopped_and_all_is_copied(kafka, west, mirror, topic):
    name = topic(partitions=2)
    group = f"app-{name}"
    produce(kafka.servers, name, numbers(0, 60), partitions=2)
    begin(kafka, name, group, 2)
    got = read(kafka, name, group, 30)
    daemon = mirror("over", topics=[name], groups=["app-.*"], sync_groups_interval=3600)
    runs_once(daemon)
    produce(kafka.servers, name, numbers(60, 100), partitions=2)
    status, found = hand_over(daemon, "over", "--timeout", "0.5")
    assert (status, found["behind"]) == (1, {f"{name}-0": 20, f"{name}-1": 20})
    daemon.start_ready()
    member = Consumer({"bootstrap.servers": kafka.servers, "group.id": group, "enable.auto.commit": False})
    member.subscribe([name])
    while not member.assignment():
        member.poll(0.1)
    status, found = hand_over(daemon, "over")
    assert (status, found["behind"]) == (1, {})
    (verdict,) = found["groups"]
    (problem,) = verdict["problems"]
    assert problem.startswith("it has members at the source: rdkafka (/127.0.0.1)")
    member.close()
    status, found = hand_over(daemon, "over")
    assert (status, found["groups"]) == (0, [{
        "group": group, "partitions": 2, "translated": 2, "lag": 70, "problems": [], "ahead": 0,
    }])  # fmt: skip
    assert found["same_offsets"] is True
    got += read(west, f"east.{name}", group)
    assert sorted(got, key=int) == numbers(0, 100)
    assert daemon.stop() == 0


def test_what_waits_behind_an_open_transaction_is_a_lag_and_is_not_handed_over(kafka, west, mirror, topic):
    name = topic()
    group = f"app-{name}"
    hanging = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"tx-{name}"})
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(name, b"0")
    assert hanging.flush(30) == 0
    produce(kafka.servers, name, numbers(1, 11))
    set_offsets(kafka, {group: {(name, 0): 0}})
    daemon = mirror("held", topics=[name], groups=["app-.*"])
    daemon.start_ready()
    daemon.until(lambda: [one["lag"] for one in daemon.status()["routes"][0]["sources"]] == [11], "all waits", 30)
    status, found = hand_over(daemon, "held", "--timeout", "0.5")
    assert (status, found["behind"], found["held_back"]) == (1, {f"{name}-0": 11}, {f"{name}-0": 11})
    hanging.commit_transaction(30)
    status, found = hand_over(daemon, "held")
    assert (status, found["behind"], found["held_back"]) == (0, {}, {})
    assert read(west, f"east.{name}", group) == numbers(0, 11)
    assert daemon.stop() == 0


def test_a_topic_that_was_made_again_and_not_copied_since_is_not_handed_over(kafka, west, mirror, topic):
    name, other = topic(), topic()
    group = f"app-{name}"
    produce(kafka.servers, name, numbers(0, 100))
    produce(kafka.servers, other, numbers(0, 10))
    daemon = mirror("again", topics=[name, other], groups=["app-.*"])
    runs_once(daemon)
    kafka.delete_topic(name)
    kafka.create_topic(name)
    produce(kafka.servers, name, numbers(100, 140))
    set_offsets(kafka, {group: {(name, 0): 20}})
    status, found = hand_over(daemon, "again", "--timeout", "0.5")
    assert (status, found["behind"]) == (1, {f"{name}-0": 40})
    assert committed(west, group, f"east.{name}") < 0
    runs_once(daemon)
    status, found = hand_over(daemon, "again")
    assert (status, found["behind"]) == (0, {})
    assert read(west, f"east.{name}", group) == numbers(120, 140)


def test_the_way_back_is_a_configuration_that_brings_groups_home(kafka, west, mirror, topic):
    name = topic()
    group = f"app-{name}"
    kept = in_transactions(kafka, name, 0, 100)
    begin(kafka, name, group)
    got = read(kafka, name, group, 20)
    over = mirror("there", topics=[name], groups=["app-.*"], naming="identity")
    runs_once(over)
    command = [*ingestd(), "mirror", "hand-over", "--reverse", str(over.file), "there"]
    table = tomllib.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode())
    keys = table["mirrors"]["there-back"]
    assert (keys.pop("source"), keys.pop("target")) == ("west", "east")
    kept += in_transactions(west, name, 100, 200)
    got += read(west, name, group, 90)
    runs_once(mirror("there-back", source=west, target=kafka, **keys))
    got += read(kafka, name, group)
    assert got == kept
    assert [value for _, value in log(kafka, name)] == kept, "nothing came back that had been there"
