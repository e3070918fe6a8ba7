"""A mirror while brokers die, topics are made again, retention takes what was not copied, targets refuse records."""

import json
import re

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from harness.daemon import ConfiguredDaemon
from harness.mirrors import BEGAN, copied_to_the_end, positions, produce, records, runs_once, source_offset


def values(cluster, topic):
    return [value for _, value, _, _ in records(cluster.servers, topic)]


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


def losses(daemon):
    return [json.loads(line) for line in daemon.log.read_text().splitlines() if '"data lost"' in line]


# Retention at the source.


def test_what_retention_took_while_the_mirror_was_down_is_said_as_a_loss(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    produce(kafka.servers, name, numbers(0, 20))
    runs_once(daemon)
    produce(kafka.servers, name, numbers(20, 100))
    kafka.delete_records(name, {0: 50})
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    (route,) = daemon.status()["routes"]
    (lost,) = route["losses"]
    assert (lost["file"], lost["reason"], lost["start"], lost["offsets"]) == (f"{name}-0", "retention", 20, 30)
    assert f'ingestd_lost_events_total{{reason="retention",route="{route["name"]}"}} 1.0' in daemon.metrics()
    assert daemon.stop() == 0
    (said,) = losses(daemon)
    assert (said["partition"], said["start"], said["offsets"], said["level"]) == (f"{name}-0", 20, 30, "error")
    assert values(west, f"east.{name}") == numbers(0, 20) + numbers(50, 100)


def test_a_log_that_retention_emptied_is_said_once_and_leaves_no_lag(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror("emptied", topics=[name])
    produce(kafka.servers, name, numbers(0, 20))
    runs_once(daemon)
    produce(kafka.servers, name, numbers(20, 100))
    kafka.delete_records(name, {0: 100})
    for _ in range(2):
        daemon.start_ready()
        copied_to_the_end(daemon, 1)
        assert daemon.stop() == 0
    assert len(losses(daemon)) == 1
    (position,) = positions(west, "ingestd-mirror-emptied", f"east.{name}")
    assert (position.offset, source_offset(position)) == (20, 100)


def test_a_run_with_an_end_fails_for_what_it_lost(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    runs_once(daemon)
    produce(kafka.servers, name, numbers(0, 100))
    kafka.delete_records(name, {0: 30})
    runs_once(daemon, status=1)
    assert f"{name}-0: data lost: retention, 30 offsets from 0 on" in daemon.log.read_text()
    assert values(west, f"east.{name}") == numbers(30, 100)


# Brokers.


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("fault", ["kill", "stop", "freeze"])
def test_a_broker_that_goes_and_comes_back_doubles_and_loses_nothing(kafka, west, kafka_cluster, mirror, side, fault):
    own = kafka_cluster()
    clusters = {"source": kafka, "target": west, side: own}
    name = f"faults-{side}-{fault}"
    clusters["source"].create_topic(name, partitions=2)
    daemon = mirror(topics=[name], **clusters)
    daemon.start_ready()
    producer = Producer({"bootstrap.servers": clusters["source"].servers, "enable.idempotence": True, "linger.ms": 5})

    def write(first, last):
        for number in range(first, last):
            producer.produce(name, b"%d" % number, partition=number % 2, timestamp=BEGAN + number)
            producer.poll(0)

    write(0, 10000)
    daemon.until(lambda: daemon.status()["routes"][0]["records"] > 0, "the copying has begun", 60)
    getattr(own, fault)(1)
    write(10000, 20000)
    (own.thaw if fault == "freeze" else own.start)(1)
    write(20000, 30000)
    assert producer.flush(60) == 0
    daemon.until(lambda: daemon.status()["routes"][0]["records"] >= 30000, "all is copied", 90)
    assert daemon.stop() == 0
    for partition in range(2):
        found = [int(value) for _, value, _, _ in records(clusters["target"].servers, f"east.{name}", partition)]
        assert found == list(range(partition, 30000, 2))


# Topics.


def test_a_topic_that_was_made_again_while_the_mirror_was_down_is_copied_from_its_beginning(kafka, west, mirror, topic):
    """The new topic has more records than were copied of the old one: their offsets say nothing."""
    name = topic()
    daemon = mirror(topics=[name])
    produce(kafka.servers, name, numbers(0, 100))
    runs_once(daemon)
    kafka.delete_topic(name)
    kafka.create_topic(name)
    produce(kafka.servers, name, numbers(1000, 1200))
    for _ in range(2):
        runs_once(daemon)
        assert values(west, f"east.{name}") == numbers(0, 100) + numbers(1000, 1200)
    assert daemon.log.read_text().count("topic was made again") == 1


def test_a_topic_that_is_made_again_while_the_mirror_runs_is_copied_from_its_beginning_once(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    produce(kafka.servers, name, numbers(0, 100))
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    kafka.delete_topic(name)
    kafka.create_topic(name)
    produce(kafka.servers, name, numbers(1000, 1030))
    daemon.until(lambda: daemon.status()["routes"][0]["records"] == 130, "what is new is copied", 90)
    assert daemon.stop() == 0
    runs_once(daemon)
    assert values(west, f"east.{name}") == numbers(0, 100) + numbers(1000, 1030)


# What a target refuses.


def test_a_batch_that_is_too_large_for_the_target_is_split(kafka, west, mirror, topic):
    name = topic()
    west.create_topic(f"east.{name}", max_message_bytes="20000")
    produce(kafka.servers, name, [b"%d" % number * 50 for number in range(5000)])
    runs_once(mirror(topics=[name]))
    assert records(west.servers, f"east.{name}") == records(kafka.servers, name)


def test_a_record_that_is_too_large_for_the_target_stops_the_mirror_and_is_said(kafka, west, mirror, topic):
    name = topic()
    west.create_topic(f"east.{name}", max_message_bytes="20000")
    produce(kafka.servers, name, [b"small", b"x" * 50_000, b"behind"])
    daemon = mirror("refused", topics=[name])
    runs_once(daemon, status=1)
    said = daemon.log.read_text()
    assert re.search(rf"records of {name}-0 can not be delivered to east\.{name}-0: MESSAGE_TOO_LARGE", said), said
    assert [position.offset for position in positions(west, "ingestd-mirror-refused", f"east.{name}")] == [0]
    larger = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", f"east.{name}", incremental_configs=[larger])
    west.admin.incremental_alter_configs([resource])[resource].result(30)
    runs_once(daemon)
    assert values(west, f"east.{name}")[-3:] == values(kafka, name)


# The embedded broker as the source.


def test_the_embedded_broker_serves_as_the_source(west, tmp_path):
    tables = {
        "clusters.here": {"embedded": True, "partitions": 2},
        "clusters.west": {"bootstrap": west.bootstrap},
        "mirrors.embedded": {"source": "here", "target": "west", "topics": ["logs"], "refresh_interval": 0.2},
    }
    daemon = ConfiguredDaemon(tmp_path / "daemon", tables, daemon={"workers": 2})
    with daemon:
        daemon.start_ready()
        address = (tmp_path / "daemon" / "state" / "clusters" / "here.address").read_text().strip()
        produce(address, "logs", numbers(0, 1000), partitions=2, **{"compression.type": "zstd"})
        daemon.until(lambda: daemon.status()["routes"][0]["records"] == 1000, "all is copied", 60)
        sent = [records(address, "logs", partition) for partition in range(2)]
        assert daemon.stop() == 0
    assert [records(west.servers, "here.logs", partition) for partition in range(2)] == sent
