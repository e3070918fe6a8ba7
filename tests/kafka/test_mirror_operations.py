"""What operators of mirrors meet: a mirror that can not begin says why where they look."""

import json
import os
import shutil
import subprocess
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from harness.daemon import ConfiguredDaemon
from harness.mirrors import copied_to_the_end, positions, produce, records, runs_once, source_offset
from harness.node import free_ports
from harness.programs import ingestd


def logged(daemon, event):
    """The log's lines of an event. The summary at the daemon's end is no JSON."""
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


class Nowhere:
    """Stands for a cluster at whose address nobody listens."""

    def __init__(self):
        self.bootstrap = [f"127.0.0.1:{free_ports(1)[0]}"]


def test_a_mirror_whose_cluster_is_not_there_says_which_and_why(mirror, topic):
    """Of two daemons at the same time one has no source, and one no target."""
    name, away = topic(), Nowhere()
    daemons = {"east": mirror(topics=[name], source=away), "west": mirror(topics=[name], target=away)}
    for daemon in daemons.values():
        daemon.start()
    for cluster, daemon in daemons.items():
        said = f"cluster {cluster}: {away.bootstrap[0]}: "
        daemon.until(lambda daemon=daemon, said=said: said in daemon.not_ready(), "/readyz says which is away", 40)
        daemon.until(lambda daemon=daemon: daemon.status()["routes"][0]["problem"] is not None, "/status says why", 60)
        assert "Connection refused" in daemon.not_ready()
        assert "its sources can not be looked for: " in daemon.not_ready()
        assert daemon.stop() == 0


def test_a_mirror_whose_group_has_offsets_of_another_program_says_so(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one"])
    west.create_topic(f"east.{name}")
    consumer = Consumer({"bootstrap.servers": west.servers, "group.id": f"foreign-{name}"})
    consumer.commit(offsets=[TopicPartition(f"east.{name}", 0, 0)], asynchronous=False)
    consumer.close()
    daemon = mirror(topics=[name], group=f"foreign-{name}")
    daemon.start()
    said = f"group foreign-{name}, east.{name}-0: offset 0 has the metadata"
    daemon.until(lambda: said in daemon.not_ready(), "/readyz says what is wrong", 30)
    assert said in daemon.status()["routes"][0]["problem"]
    assert "ingestd_route_waiting_seconds{" in daemon.metrics()
    assert [said in line["error"] for line in logged(daemon, "sources can not be looked for")].count(True) == 1
    assert daemon.stop() == 0
    assert records(west.servers, f"east.{name}") == []


# Lag.


def metric(daemon, name):
    """The values of a metric, one for each source or route."""
    return [float(line.rpartition(" ")[2]) for line in daemon.metrics().splitlines() if line.startswith(f"{name}{{")]


def test_aborted_records_at_the_end_leave_no_lag_and_are_not_read_again(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror("hidden", topics=[name])
    daemon.start_ready()
    produce(kafka.servers, name, [b"one"])
    copied_to_the_end(daemon, 1)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"tx-{name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(500):
        producer.produce(name, b"%d" % number * 100)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    kafka.wait_for_end_offsets(name, {0: 502})

    def passed():
        (source,) = daemon.status()["routes"][0]["sources"]
        return (source["position"], source["lag"]) == (502, 0)

    daemon.until(passed, "the position is behind the marker", 30)
    assert daemon.stop() == 0
    (position,) = positions(west, "ingestd-mirror-hidden", f"east.{name}")
    assert (position.offset, source_offset(position)) == (1, 502)
    assert [value for _, value, _, _ in records(west.servers, f"east.{name}")] == [b"one"]


def test_the_lag_in_seconds_grows_while_the_sources_broker_is_away(south, west, mirror):
    south.create_topic("outage")
    daemon = mirror(topics=["outage"], source=south)
    daemon.start_ready()
    produce(south.servers, "outage", [b"one"])
    copied_to_the_end(daemon, 1)
    assert metric(daemon, "ingestd_source_lag_seconds") == [0]
    south.kill(1)
    daemon.until(lambda: max(metric(daemon, "ingestd_source_lag_seconds")) > 1, "the lag in seconds grows", 60)
    assert metric(daemon, "ingestd_source_lag_records") == [0]
    south.start(1)
    produce(south.servers, "outage", [b"two"])
    daemon.until(lambda: metric(daemon, "ingestd_source_lag_seconds") == [0], "it is copied again", 60)
    assert daemon.stop() == 0
    assert len(records(west.servers, "east.outage")) == 2


# A topic that is deleted on the target.


def test_a_topic_that_is_deleted_on_the_target_is_said_loudly_and_copied_again(kafka, west, mirror, topic):
    name = topic(partitions=2)
    produce(kafka.servers, name, [b"%d" % number for number in range(1000)], partitions=2)
    daemon = mirror("deleted", topics=[name])
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    west.delete_topic(f"east.{name}", made_anew=True)
    daemon.until(lambda: daemon.status()["routes"][0]["records"] == 2000, "all is copied again", 60)
    produce(kafka.servers, name, [b"%d" % number for number in range(1000, 1100)], partitions=2)
    daemon.until(lambda: daemon.status()["routes"][0]["records"] == 2100, "what is new is copied", 60)
    assert daemon.stop() == 0
    (said,) = logged(daemon, "topic was deleted on the target")
    assert (said["level"], said["topic"]) == ("error", f"east.{name}")
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    assert daemon.stop() == 0
    for partition in range(2):
        assert records(west.servers, f"east.{name}", partition) == records(kafka.servers, name, partition)
    assert [position.offset for position in positions(west, "ingestd-mirror-deleted", f"east.{name}", 2)] == [550, 550]


def test_a_topic_that_is_deleted_on_the_target_under_load_has_all_records_afterwards(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    daemon.start_ready()
    over = threading.Event()
    written = []

    def write():
        producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5})
        while not over.is_set():
            for _ in range(100):
                producer.produce(name, b"%d" % len(written))
                written.append(len(written))
            producer.flush(10)
            over.wait(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        daemon.until(lambda: daemon.status()["routes"][0]["records"] > 2000, "it copies", 60)
        west.delete_topic(f"east.{name}", made_anew=True)
        daemon.until(lambda: "was deleted on the target" in daemon.log.read_text(), "it notices", 60)
    finally:
        over.set()
        writer.join()
    copied_to_the_end(daemon, 1)
    assert daemon.stop() == 0
    copied = [int(value) for _, value, _, _ in records(west.servers, f"east.{name}")]
    assert set(copied) == set(written)
    begins = copied.index(0)
    assert copied[begins:] == written, "all of it in order, behind what was on its way"
    assert begins < len(written)


# Configurations.


def configure(cluster, topic, **changes):
    """Set keys of a topic's configuration, or remove those whose value is None."""
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in changes.items()
    ]
    resource = ConfigResource("topic", topic, incremental_configs=entries)
    cluster.admin.incremental_alter_configs([resource])[resource].result(30)


def configuration(cluster, topic):
    """What is set for a topic itself."""
    (described,) = cluster.admin.describe_configs([ConfigResource("topic", topic)]).values()
    return {key: entry.value for key, entry in described.result(30).items() if entry.source == 1}


def test_changes_of_a_topics_configuration_are_followed_on_the_target(kafka, west, mirror, topic):
    name = topic(retention_ms="100000000", segment_ms="3000000", min_insync_replicas="1")
    daemon = mirror(topics=[name], exclude_configs=["segment[.]b.*"])
    daemon.start_ready()
    copy = f"east.{name}"
    assert configuration(west, copy) == {"retention.ms": "100000000", "segment.ms": "3000000"}
    configure(west, copy, max_message_bytes="300000", retention_ms="7")
    configure(kafka, name, retention_ms="200000000", segment_ms=None, flush_ms="5000", segment_bytes="9999999")
    wanted = {"retention.ms": "200000000", "max.message.bytes": "300000", "flush.ms": "5000"}
    daemon.until(lambda: configuration(west, copy) == wanted, "the target has what the source has, and its own", 30)
    configure(west, copy, segment_ms="4000000")
    configure(kafka, name, flush_ms=None, retention_bytes="12345678")
    wanted = {
        "retention.ms": "200000000",
        "max.message.bytes": "300000",
        "segment.ms": "4000000",
        "retention.bytes": "12345678",
    }
    daemon.until(lambda: configuration(west, copy) == wanted, "what was removed at the source is removed", 30)
    daemon.until(lambda: len(logged(daemon, "topic configuration followed")) == 2, "it says both", 30)
    assert daemon.stop() == 0
    assert [line["removed"] for line in logged(daemon, "topic configuration followed")] == [
        ["segment.ms"],
        ["flush.ms"],
    ]


# Bandwidth.


def test_no_more_is_sent_in_a_second_than_the_bandwidth_says(kafka, west, mirror, topic):
    name, rate, count = topic(partitions=4), 1_000_000, 400
    # A record to a batch, of more than 8 kB: smaller ones would be merged, and the first ones sent be much larger.
    produce(kafka.servers, name, [os.urandom(20_000) for _ in range(count)], partitions=4, **{"batch.num.messages": 1})
    daemon = mirror(topics=[name], bandwidth=rate, daemon={"workers": 2})
    began = time.monotonic()
    daemon.start()
    seen = []

    def all_is_copied():
        route = daemon.status()["routes"][0]
        seen.append((time.monotonic() - began, route["bytes_acknowledged"]))
        return route["records"] == count

    daemon.until(all_is_copied, "all is copied", 60)
    assert daemon.stop() == 0
    first_batches = 2 * 21_000
    assert not [(seconds, sent) for seconds, sent in seen if sent > rate * seconds + first_batches]


# What OPERATIONS.md tells to do.


def test_a_topic_that_is_deleted_on_the_target_while_the_mirror_is_down_is_copied_again(kafka, west, mirror, topic):
    name = topic(partitions=2)
    produce(kafka.servers, name, [b"%d" % number for number in range(100)], partitions=2)
    daemon = mirror(topics=[name])
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    assert daemon.stop() == 0
    west.delete_topic(f"east.{name}")
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    assert daemon.stop() == 0
    for partition in range(2):
        assert records(west.servers, f"east.{name}", partition) == records(kafka.servers, name, partition)


def test_a_topic_whose_offsets_are_deleted_is_copied_again_behind_what_is_there(kafka, west, mirror, topic, java_tool):
    name = topic()
    produce(kafka.servers, name, [b"%d" % number for number in range(100)])
    daemon = mirror("again", topics=[name])
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    assert daemon.stop() == 0
    java_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", west.servers, "--delete-offsets", "--group", "ingestd-mirror-again"),
        *("--topic", f"east.{name}"),
    )
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    assert daemon.stop() == 0
    assert records(west.servers, f"east.{name}") == records(kafka.servers, name) * 2


def test_of_two_hosts_with_one_name_the_later_one_copies_and_the_other_says_why_it_does_not(kafka, west, mirror, topic):
    name = topic(partitions=2)
    keys = {"topics": [name], "name": f"twins-{name}"}
    one, other = mirror(**keys), mirror(**keys)
    produce(kafka.servers, name, [b"%d" % number for number in range(100)], partitions=2)
    one.start_ready()
    copied_to_the_end(one, 2)
    (other.file.parent / "state").mkdir()
    shutil.copy(one.file.parent / "state" / "host", other.file.parent / "state")
    other.start_ready()
    copied_to_the_end(other, 2)
    one.until(lambda: "FENCED_INSTANCE_ID" in one.not_ready(), "/readyz says why it copies nothing", 30)
    one.until(lambda: one.status()["routes"][0]["sources"] == [], "it has nothing any more", 30)
    produce(kafka.servers, name, [b"%d" % number for number in range(100, 200)], partitions=2)
    other.until(lambda: other.status()["routes"][0]["records"] == 100, "the later one copies", 30)
    assert other.stop() == 0
    one.stop()
    for partition in range(2):
        assert records(west.servers, f"east.{name}", partition) == records(kafka.servers, name, partition)


def test_a_topic_that_two_mirrors_of_one_daemon_copy_is_said_once(kafka, west, topic, tmp_path):
    # 10 records were 20 on the target, and nothing was said.
    name = topic()
    produce(kafka.servers, name, [b"one"])
    between = {"source": "east", "target": "west"}
    tables = {
        "clusters.east": {"bootstrap": kafka.bootstrap},
        "clusters.west": {"bootstrap": west.bootstrap},
        f"mirrors.{name}-one": {**between, "topics": [name]},
        f"mirrors.{name}-other": {**between, "topics": [f"{name}.*"]},
    }
    with ConfiguredDaemon(tmp_path / "daemon", tables, daemon={"workers": 1}) as daemon:
        runs_once(daemon)
        (said,) = logged(daemon, "topics copied by two mirrors")
        assert {said["route"], said["other"]} == {f"{name}-one", f"{name}-other"}
        assert said["first"] == [name]
        warned = subprocess.run([*ingestd(), "check", str(daemon.file)], capture_output=True, text=True, check=False)
        assert f"{name} is taken here and in [mirrors.{name}-one]" in warned.stdout + warned.stderr
