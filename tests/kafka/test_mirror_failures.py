"""A mirror while brokers die, topics are made again, retention takes what was not copied, targets refuse records."""

import json
import random
import re
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from harness.daemon import ConfiguredDaemon
from harness.mirrors import BEGAN, copied_to_the_end, positions, produce, records, runs_once, set_offsets, source_offset


def values(cluster, topic):
    return [value for _, value, _, _ in records(cluster.servers, topic)]


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


def losses(daemon):
    return [json.loads(line) for line in daemon.log.read_text().splitlines() if '"data lost"' in line]


# Retention at the source.


def test_what_retention_took_while_the_mirror_was_down_is_said_as_a_loss_once_and_leaves_no_lag(
    kafka, west, mirror, topic
):
    """Of one log it took the beginning of what was not copied, of another one all."""
    partly, emptied = topic(), topic()
    daemon = mirror("retention", topics=[partly, emptied])
    for name in (partly, emptied):
        produce(kafka.servers, name, numbers(0, 20))
    runs_once(daemon)
    for name, until in ((partly, 50), (emptied, 100)):
        produce(kafka.servers, name, numbers(20, 100))
        kafka.delete_records(name, {0: until})
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    lost = daemon.status()["routes"][0]["losses"]
    found = sorted((one["file"], one["reason"], one["start"], one["offsets"]) for one in lost)
    assert found == sorted([(f"{partly}-0", "retention", 20, 30), (f"{emptied}-0", "retention", 20, 80)])
    assert 'ingestd_lost_events_total{reason="retention",route="retention"} 2.0' in daemon.metrics()
    assert daemon.stop() == 0
    runs_once(daemon)
    said = losses(daemon)
    assert sorted((one["partition"], one["start"], one["offsets"], one["level"]) for one in said) == sorted(
        [(f"{partly}-0", 20, 30, "error"), (f"{emptied}-0", 20, 80, "error")]
    )
    assert values(west, f"east.{partly}") == numbers(0, 20) + numbers(50, 100)
    (position,) = positions(west, "ingestd-mirror-retention", f"east.{emptied}")
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
def test_a_broker_that_goes_and_comes_back_doubles_and_loses_nothing(kafka, west, south, mirror, side):
    """It is killed, stopped, frozen, one after the other."""
    clusters = {"source": kafka, "target": west, side: south}
    name = f"faults-{side}"
    clusters["source"].create_topic(name, partitions=2)
    daemon = mirror(topics=[name], **clusters)
    daemon.start_ready()
    producer = Producer({"bootstrap.servers": clusters["source"].servers, "enable.idempotence": True, "linger.ms": 5})
    written = 0

    def write(count):
        nonlocal written
        for number in range(written, written + count):
            producer.produce(name, b"%d" % number, partition=number % 2, timestamp=BEGAN + number)
            producer.poll(0)
        written += count

    def copied():
        return daemon.status()["routes"][0]["records"]

    for fault in ("kill", "stop", "freeze"):
        before = written
        write(6000)
        daemon.until(lambda before=before: copied() > before, "the copying has begun", 60)
        getattr(south, fault)(1)
        write(6000)
        (south.thaw if fault == "freeze" else south.start)(1)
        write(6000)
        assert producer.flush(60) == 0
        daemon.until(lambda: copied() >= written, f"all is copied after {fault}", 90)
    assert daemon.stop() == 0
    for partition in range(2):
        found = [int(value) for _, value, _, _ in records(clusters["target"].servers, f"east.{name}", partition)]
        assert found == list(range(partition, written, 2))


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
    in_one_batch = {"linger.ms": 1000}
    produce(kafka.servers, name, [b"small", b"x" * 50_000, b"behind"], **in_one_batch)
    daemon = mirror("refused", topics=[name])
    runs_once(daemon, status=1)
    said = daemon.log.read_text()
    assert re.search(
        rf"1 record of {name}-0 \(offset 1\) can not be delivered to east\.{name}-0: MESSAGE_TOO_LARGE", said
    ), said
    assert [position.offset for position in positions(west, "ingestd-mirror-refused", f"east.{name}")] == [0]
    larger = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", f"east.{name}", incremental_configs=[larger])
    west.admin.incremental_alter_configs([resource])[resource].result(30)
    runs_once(daemon)
    assert values(west, f"east.{name}")[-3:] == values(kafka, name)


@pytest.mark.parametrize("groups", [[], [".*"]], ids=["", "with groups"])
def test_records_that_the_target_refuses_are_skipped_one_by_one_and_said(kafka, west, mirror, topic, groups):
    """In one batch: too large, without a key where the topic is compacted, with a time that the topic does not take."""
    name = topic(message_timestamp_after_max_ms=str(10**12))
    west.create_topic(
        f"east.{name}", max_message_bytes="20000", cleanup_policy="compact", message_timestamp_after_max_ms="3600000"
    )
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 500})
    now = round(time.time() * 1000)
    bad = {100: "size", 101: "key", 500: "time", 2999: "key"}
    for number in range(3000):
        value = b"%d" % number if bad.get(number) != "size" else random.randbytes(30000)
        key = b"key-%d" % number if bad.get(number) != "key" else None
        producer.produce(name, value, key, timestamp=now + (10**8 if bad.get(number) == "time" else 0))
    assert producer.flush(30) == 0
    daemon = mirror(topics=[name], on_undeliverable="skip", groups=groups)
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    assert f'ingestd_lost_events_total{{reason="refused",route="{daemon.status()["routes"][0]["name"]}"}} 4.0' in (
        daemon.metrics()
    )
    produce(kafka.servers, name, [b"behind"])
    daemon.until(lambda: daemon.status()["routes"][0]["records"] == 2997, "what comes behind them is copied", 30)
    assert daemon.stop() == 0
    assert [(said["start"], said["offsets"]) for said in losses(daemon)] == [(number, 1) for number in bad]
    kept = [b"%d" % number for number in range(3000) if number not in bad]
    assert values(west, f"east.{name}") == [*kept, b"behind"]


# The embedded broker, on either side.


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


def test_the_embedded_broker_serves_as_the_target_of_records_and_groups(west, tmp_path):
    name = west.create_topic(partitions=2)
    produce(west.servers, name, numbers(0, 100), partitions=2)
    set_offsets(west, {f"app-{name}": {(name, 0): 20, (name, 1): 30}})
    tables = {
        "clusters.here": {"embedded": True},
        "clusters.west": {"bootstrap": west.bootstrap},
        "mirrors.home": {"source": "west", "target": "here", "topics": [name], "groups": [f"app-{name}"],
                         "sync_groups_interval": 0.2},
    }  # fmt: skip
    daemon = ConfiguredDaemon(tmp_path / "daemon", tables)
    with daemon:
        daemon.start_ready()
        address = (tmp_path / "daemon" / "state" / "clusters" / "here.address").read_text().strip()

        def groups():
            return [(one["partitions"], one["translated"]) for one in daemon.status()["routes"][0].get("groups", [])]

        daemon.until(lambda: groups() == [(2, 2)], "the group is translated", 60)
        copied_to_the_end(daemon, 2)
        copies = [records(address, f"west.{name}", partition) for partition in range(2)]
        assert daemon.stop() == 0
    assert copies == [records(west.servers, name, partition) for partition in range(2)]
