"""`start = "mirrormaker2"`: a mirror goes on where MirrorMaker 2 stopped, nothing missing and nothing twice."""

import time

from harness.mirror_maker import mirror_maker
from harness.mirrors import copied_to_the_end, positions, produce, records, runs_once, source_offset


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


def values(cluster, topic, partition=0):
    return [value for _, value, _, _ in records(cluster.servers, topic, partition)]


def wait_for(cluster, topic, count, timeout=90):
    """Wait until a topic is there, with so many records."""
    deadline = time.monotonic() + timeout
    while topic not in cluster.admin.list_topics(timeout=10).topics or len(values(cluster, topic)) < count:
        assert time.monotonic() < deadline, f"{topic} has not {count} records within {timeout} s"
        time.sleep(0.2)


def test_a_mirror_goes_on_where_mirrormaker2_stopped(kafka, west, mirror, topic, tmp_path):
    name, later = topic(partitions=2), topic()
    produce(kafka.servers, name, numbers(0, 1000), partitions=2)
    with mirror_maker(kafka, west, name, tmp_path / "mirror-maker"):
        wait_for(west, f"east.{name}", 500)
        produce(kafka.servers, name, numbers(1000, 1100), partitions=2)
        wait_for(west, f"east.{name}", 550)
    produce(kafka.servers, name, numbers(1100, 2000), partitions=2)
    produce(kafka.servers, later, numbers(0, 10))
    daemon = mirror(f"after-{name}", topics=[name, later], start="mirrormaker2")
    daemon.start_ready()
    copied_to_the_end(daemon, 3)
    assert daemon.stop() == 0
    for partition in range(2):
        assert values(west, f"east.{name}", partition) == values(kafka, name, partition)
        assert len(values(kafka, name, partition)) == 1000
    assert values(west, f"east.{later}") == numbers(0, 10)
    found = positions(west, f"ingestd-mirror-after-{name}", f"east.{name}", 2)
    assert [source_offset(position) for position in found] == [1000, 1000]


def test_a_target_that_no_mirrormaker2_of_this_name_wrote_to_is_refused(kafka, south, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one"])
    daemon = mirror(target=south, topics=[name], start="mirrormaker2", daemon={"once_patience": 5})
    runs_once(daemon, status=1)
    assert "expected them in the topic mm2-offsets.east.internal" in daemon.log.read_text()
