"""What a mirror makes anew between two real clusters: small batches together, times of the broker, gaps, filters."""

import json
import re
import subprocess
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from harness.mirrors import copied_to_the_end, records, runs_once
from harness.programs import ingestd

ONE_EACH = {"batch.num.messages": 1, "linger.ms": 0}
"""A producer whose batches have one record."""


def write(cluster, topic, numbers, *, partitions=1, **settings):
    """Records with the number in value or header; some have no value, key or headers."""
    producer = Producer({"bootstrap.servers": cluster.servers, "enable.idempotence": True, **settings})
    for number in numbers:
        value = None if number % 7 == 3 else b"%d" % number
        key = None if number % 5 == 2 else b"key-%d" % number
        headers = None if number % 3 == 0 and value else [("number", b"%d" % number)]
        producer.produce(topic, value, key, partition=number % partitions, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def same(daemon, *, strict=True):
    """Whether `ingestd mirror verify` finds no difference."""
    command = [*ingestd(), "mirror", "verify", "--to-end", *(["--strict"] if strict else []), str(daemon.file)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode == 0 or json.loads(done.stdout)


def ways(daemon):
    """Batches by how they went to the target."""
    found = re.findall(r'^ingestd_mirrored_batches_total\{.*way="(\w+)"\} (\d+)', daemon.metrics(), re.MULTILINE)
    return {way: int(count) for way, count in found if int(count)}


def read_alike(kafka, west, topic, partitions=1):
    """Whether librdkafka reads the same on both sides."""
    return all(
        [shown(one) for one in records(kafka.servers, topic, number)]
        == [shown(one) for one in records(west.servers, f"east.{topic}", number)]
        for number in range(partitions)
    )


def shown(record):
    key, value, headers, (_, timestamp) = record
    return key, value, headers, timestamp


def test_a_backlog_of_batches_of_one_record_is_merged(kafka, west, mirror, topic):
    name = topic(partitions=2)
    write(kafka, name, range(8000), partitions=2, **{"compression.type": "lz4", **ONE_EACH})
    daemon = mirror(topics=[name])
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    went = ways(daemon)
    assert sum(went.values()) == 8000
    assert went["merged"] > 7600
    (batches,) = re.findall(r"^ingestd_batches_total\{.*\} (\d+)", daemon.metrics(), re.MULTILINE)
    assert int(batches) < 400
    assert daemon.stop() == 0
    assert read_alike(kafka, west, name, 2)
    assert same(daemon) is True


def test_single_small_batches_pass_as_they_are(kafka, west, mirror, topic):
    name = topic()
    daemon = mirror(topics=[name])
    daemon.start_ready()
    for number in range(10):
        write(kafka, name, [number])
        daemon.until(lambda copied=number + 1: daemon.status()["routes"][0]["records"] == copied, "it is copied", 30)
    assert ways(daemon) == {"passed": 10}
    assert daemon.stop() == 0
    assert same(daemon) is True


def test_transactions_among_small_batches(kafka, west, mirror, topic):
    name = topic()
    settings = {"bootstrap.servers": kafka.servers, "transactional.id": f"tx-{name}", **ONE_EACH}
    producer = Producer(settings)
    producer.init_transactions(30)
    for number in range(120):
        producer.begin_transaction()
        for part in range(number % 9):
            producer.produce(name, b"%d-%d" % (number, part))
        if number % 3:
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
        if number % 10 == 5:
            write(kafka, name, range(5), **ONE_EACH)
    runs_once(mirror(topics=[name]))
    expected = [b"%d-%d" % (number, part) for number in range(120) if number % 3 for part in range(number % 9)]
    copied = [value for _, value, _, _ in records(west.servers, f"east.{name}")]
    assert [value for value in copied if value is not None and b"-" in value] == expected
    assert read_alike(kafka, west, name)
    assert records(west.servers, f"east.{name}", isolation="read_uncommitted") == records(
        west.servers, f"east.{name}"
    ), "no batch is part of a transaction there"


def test_times_of_the_broker_of_large_and_small_batches(kafka, west, mirror, topic):
    name = topic(message_timestamp_type="LogAppendTime")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        write(kafka, name, range(3000), **{"compression.type": codec, "linger.ms": 50})
        write(kafka, name, range(300), **{"compression.type": codec, **ONE_EACH})
    daemon = mirror(topics=[name])
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    assert set(ways(daemon)) == {"log_append_time"}
    assert daemon.stop() == 0
    assert read_alike(kafka, west, name)
    assert {timestamp[0] for *_, timestamp in records(kafka.servers, name)} == {2}
    assert {timestamp[0] for *_, timestamp in records(west.servers, f"east.{name}")} == {1}, "the records' own there"
    assert same(daemon) is True


def test_gaps_that_compaction_left(kafka, west, mirror, topic):
    """Compaction ends before the copying begins: so both sides can be compared."""
    name = topic(cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01")
    west.create_topic(f"east.{name}")
    for kind, settings in ((b"large", {"linger.ms": 5}), (b"small", ONE_EACH)):
        producer = Producer({"bootstrap.servers": kafka.servers, "compression.type": "lz4", **settings})
        for number in range(3000):
            producer.produce(name, b"%d" % number, b"%s-%d" % (kind, number % 40 if number % 4 else number))
            producer.poll(0)
        assert producer.flush(30) == 0
    deadline = time.monotonic() + 60
    while len(records(kafka.servers, name)) > 3000:
        assert time.monotonic() < deadline, "the log cleaner does not run"
        time.sleep(0.3)  # a segment is closed by an append that comes so late
        producer.produce(name, b"again", b"again")
        producer.flush(10)
    kept = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", name, incremental_configs=[kept])
    kafka.admin.incremental_alter_configs([resource])[resource].result(30)
    daemon = mirror(topics=[name])
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    assert ways(daemon)["gaps"] > 0
    assert daemon.stop() == 0
    assert read_alike(kafka, west, name)
    assert same(daemon) is True


def test_a_filter_copies_what_it_takes_and_verify_knows_it(kafka, west, mirror, topic):
    name = topic()
    for settings in ({"linger.ms": 50, "compression.type": "zstd"}, ONE_EACH):
        write(kafka, name, range(2000), **settings)
    write(kafka, name, [2] * 5)  # nothing of the last batch is copied
    keys = {"topics": [name], "keys": ["key-.*[02468]"], "exclude_headers.number": "1.*"}
    daemon = mirror(**keys)
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    assert set(ways(daemon)) == {"filtered"}
    assert daemon.stop() == 0
    expected = [
        one
        for one in map(shown, records(kafka.servers, name))
        if one[0] is not None and int(one[0][4:]) % 2 == 0 and not (one[2] and one[2][0][1].startswith(b"1"))
    ]
    assert 500 < len(expected) < 2000
    assert [shown(one) for one in records(west.servers, f"east.{name}")] == expected
    assert same(daemon) is True
    without = mirror(daemon.file.read_text().partition("[mirrors.")[2].partition("]")[0], topics=[name])
    (found,) = same(without)[0]["partitions"]
    assert found["difference"]["what"] == "missing"


def test_after_kills_of_workers_meanwhile_nothing_is_missing_and_order_is_kept(kafka, west, mirror, topic):
    name = topic(partitions=2)
    daemon = mirror(topics=[name], daemon={"workers": 2, "restart_backoff": 0.05})
    daemon.start_ready()
    total = 0
    for kill in range(5):
        write(kafka, name, range(total, total + 2500), partitions=2, **ONE_EACH)
        total += 2500
        daemon.until(lambda: len(daemon.worker_pids()) == 2, "both workers run", 30)
        daemon.kill_worker(kill % 2)
    copied_to_the_end(daemon, 2)
    assert daemon.stop() == 0
    assert same(daemon, strict=False) is True
    for partition in range(2):
        copied = [whole(one) for one in records(west.servers, f"east.{name}", partition)]
        assert list(dict.fromkeys(copied)) == [whole(one) for one in records(kafka.servers, name, partition)]


def whole(record):
    key, value, headers, (_, timestamp) = record
    return key, value, tuple(headers or ()), timestamp
