"""`ingestd mirror verify` between two real clusters. A judge that reads both through librdkafka must agree."""

import json
import subprocess

from confluent_kafka import Producer
from harness.mirrors import BEGAN, positions, produce, records, runs_once, set_back
from harness.programs import ingestd


def verify(daemon, *options):
    """The exit status of the verb, and what it writes for programs."""
    command = [*ingestd(), "mirror", "verify", *options, str(daemon.file)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.returncode, json.loads(done.stdout)[0]["partitions"]


def judged(kafka, west, topic, partition=0, *, strict=False, limit=None):
    """Whether librdkafka finds each record of the source on the target, in order of the first times."""
    theirs = [shown(one) for one in records(kafka.servers, topic, partition)][:limit]
    ours = [shown(one) for one in records(west.servers, f"east.{topic}", partition)]
    return (ours if strict else list(dict.fromkeys(ours))) == theirs


def shown(found):
    key, value, headers, (_, timestamp) = found
    return key, value, tuple(headers or ()), timestamp


def append(west, topic, **fields):
    producer = Producer({"bootstrap.servers": west.servers})
    producer.produce(f"east.{topic}", **fields)
    assert producer.flush(30) == 0


def test_a_good_mirror_is_the_same(kafka, west, mirror, topic):
    codecs = ("none", "lz4")
    names = [topic(partitions=3) for _ in codecs]
    for name, codec in zip(names, codecs, strict=True):
        produce(kafka.servers, name, [b"%d" % n for n in range(3000)], partitions=3, **{"compression.type": codec})
    daemon = mirror("shown", topics=names)
    runs_once(daemon)
    status, found = verify(daemon, "--to-end", "--strict")
    assert status == 0
    assert sorted((one["topic"], one["partition"], one["source_records"], one["target_records"]) for one in found) == [
        (name, number, 1000, 1000) for name in sorted(names) for number in range(3)
    ]
    assert all(judged(kafka, west, name, number, strict=True) for name in names for number in range(3))
    # A person sees a table.
    command = [*ingestd(), "mirror", "verify", "--output", "table", str(daemon.file), "shown"]
    header, *rows = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert header.split() == ["MIRROR", "TOPIC", "PARTITION", "TO", "SOURCE", "TARGET", "DUPLICATES", "VERDICT"]
    assert ["shown", names[0], "0", "1000", "1000", "1000", "0", "same"] in [row.split() for row in rows]


def test_what_a_mirror_that_began_at_the_end_did_not_take_is_not_missing(kafka, west, mirror, topic):
    name = topic(partitions=2)
    produce(kafka.servers, name, [b"old"] * 10, partitions=2)
    daemon = mirror(topics=[name], start="latest")
    runs_once(daemon)
    produce(kafka.servers, name, [b"new"])  # in partition 0 alone
    runs_once(daemon)
    status, found = verify(daemon, "--strict")
    assert status == 0
    assert [one["source_records"] for one in found] == [1, 0]
    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(name, b"not copied yet", partition=1)
    assert producer.flush(30) == 0
    status, found = verify(daemon, "--to-end")
    assert status == 1
    assert found[1]["difference"] == {"what": "missing", "source_offset": 5, "target_offset": 0}


def test_transactions_and_what_is_not_committed_by_the_mirror_yet(kafka, west, mirror, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"tx-{name}"})
    producer.init_transactions(30)
    for number in range(20):
        producer.begin_transaction()
        producer.produce(name, b"%d" % number)
        assert producer.flush(30) == 0
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(30)
    kafka.wait_for_end_offsets(name, {0: 40})
    daemon = mirror(topics=[name])
    runs_once(daemon)
    produce(kafka.servers, name, [b"later"])
    status, (found,) = verify(daemon)
    assert (status, found["source_records"], found["difference"]) == (0, 10, None)
    status, (found,) = verify(daemon, "--to-end")
    assert (status, found["difference"]) == (1, {"what": "missing", "source_offset": 40, "target_offset": 10})
    assert judged(kafka, west, name, limit=10)
    assert not judged(kafka, west, name)


def test_what_came_twice_after_a_crash_is_counted_and_a_fault_only_with_strict(kafka, west, mirror, topic):
    name = topic(partitions=2)
    group = f"twice-{name}"
    daemon = mirror(group, topics=[name])
    values = [b"%d" % number for number in range(2000)]
    produce(kafka.servers, name, values[:500], partitions=2)
    runs_once(daemon)
    before = positions(west, f"ingestd-mirror-{group}", f"east.{name}", 2)
    produce(kafka.servers, name, values[500:], partitions=2)
    runs_once(daemon)
    # What a crash between a copy and its commit amounts to.
    set_back(west, f"ingestd-mirror-{group}", f"east.{name}", before)
    runs_once(daemon)
    twice = [len(records(west.servers, f"east.{name}", number)) - 1000 for number in range(2)]
    assert twice == [750, 750]
    status, found = verify(daemon, "--to-end")
    assert (status, [one["duplicates"] for one in found]) == (0, twice)
    assert verify(daemon, "--strict")[0] == 1
    assert all(judged(kafka, west, name, number) for number in range(2))


def test_a_record_that_is_not_as_at_the_source_is_named(kafka, west, mirror, topic):
    """Of one mirror: somebody writes into one copy in the midst, and into another one a record of other headers."""
    extra, headers = topic(), topic()
    daemon = mirror(topics=[extra, headers])
    values = [b"%d" % number for number in range(200)]
    for name in (extra, headers):
        produce(kafka.servers, name, values[:100])
    runs_once(daemon)
    append(west, extra, value=b"by hand")
    produce(kafka.servers, extra, values[100:])
    runs_once(daemon)
    # As a mirror would write it, but for a header.
    append(west, headers, value=b"2", key=b"k2", timestamp=BEGAN + 2, headers=[("h", b"other")])
    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(headers, b"2", b"k2", timestamp=BEGAN + 2, headers=[("h", b"2")])
    assert producer.flush(30) == 0
    status, found = verify(daemon, "--to-end")
    by_topic = {one["topic"]: one for one in found}
    assert status == 1
    assert by_topic[extra]["difference"] == {"what": "extra", "source_offset": 100, "target_offset": 100}
    assert (by_topic[extra]["source_records"], by_topic[extra]["target_records"]) == (200, 201)
    assert by_topic[headers]["difference"] == {"what": "headers", "source_offset": 100, "target_offset": 100}
    assert not judged(kafka, west, extra)
    assert not judged(kafka, west, headers)


def test_where_retention_removed_the_beginning_it_is_said(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"%d" % number for number in range(100)])
    daemon = mirror(topics=[name])
    runs_once(daemon)
    kafka.delete_records(name, {0: 40})
    status, (found,) = verify(daemon, "--to-end")
    assert (status, found["source_records"]) == (0, 60)
    assert found["notes"] == ["the source's log begins at 40; not compared: 40 older records on the target"]
    west.delete_records(f"east.{name}", {0: 70})
    status, (found,) = verify(daemon, "--to-end")
    assert (status, found["source_records"]) == (0, 30)
    assert found["notes"] == ["the target's log begins at 70; compared from offset 70 of the source on"]


def test_a_mirror_that_never_ran_has_nothing_to_compare(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"0"])
    daemon = mirror("never", topics=[name])
    command = [*ingestd(), "mirror", "verify", str(daemon.file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (
        "mirror never: nothing to compare: of 1 partition that it takes from east, none has a position" in done.stderr
    )
    status, (found,) = verify(daemon, "--to-end")
    assert (status, found["difference"]) == (1, {"what": "missing", "source_offset": 0, "target_offset": 0})
