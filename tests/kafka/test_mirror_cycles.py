"""Mirrors in both directions, in lines and in rings, between real clusters: no record comes to a cluster twice."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource
from harness.daemon import ConfiguredDaemon
from harness.mirrors import copied_to_the_end, produce, records, runs_once
from harness.programs import ingestd

from ingestd.mirror.selection import REGISTRY_TOPIC


def values(cluster, topic, partition=0):
    return [value for _, value, _, _ in records(cluster.servers, topic, partition)]


def not_sent_back(daemon):
    (line,) = [line for line in daemon.metrics().splitlines() if line.startswith("ingestd_not_sent_back_records_total")]
    return float(line.split()[-1])


def ways(mirror, one, other, **keys):
    """A mirror each way."""
    return mirror(source=one, target=other, naming="identity", **keys), mirror(
        source=other, target=one, naming="identity", **keys
    )


class Writer(threading.Thread):
    """Writes numbered records to a topic of some partitions until it is stopped, like an application."""

    def __init__(self, servers, topic, name, *, partitions=1, transactional=False, **settings):
        super().__init__(daemon=True)
        if transactional:
            settings["transactional.id"] = f"{topic}-{name}"
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **settings})
        self._topic, self._name, self._partitions, self._transactional = topic, name, partitions, transactional
        self._stopped = threading.Event()
        self.written = []

    def run(self):
        if self._transactional:
            self._producer.init_transactions(30)
        number = 0
        while not self._stopped.wait(0.05):
            if self._transactional:
                self._producer.begin_transaction()
            for _ in range(20):
                value = b"%s-%d" % (self._name.encode(), number)
                self._producer.produce(self._topic, value, partition=number % self._partitions)
                self.written.append(value)
                number += 1
            self._producer.poll(0)
            if self._transactional:
                self._producer.commit_transaction(30)
        assert self._producer.flush(30) == 0

    def stop(self):
        self._stopped.set()
        self.join(60)
        return self.written


def writers(kafka, west, name, partitions):
    """Applications on both sides: without and with idempotence, and with transactions."""
    kinds = {"plain": {}, "idempotent": {"enable.idempotence": True}, "transactional": {"transactional": True}}
    made = [
        Writer(cluster.servers, name, f"{side}-{kind}", partitions=partitions, **settings)
        for side, cluster in (("east", kafka), ("west", west))
        for kind, settings in kinds.items()
    ]
    for one in made:
        one.start()
    return made


def both_written(kafka, west, mirror, topic):
    """A topic on both sides, a running mirror each way, and applications that write on both sides."""
    name = topic(partitions=2)
    west.create_topic(name, partitions=2)
    daemons = ways(mirror, kafka, west, topics=[name])
    for daemon in daemons:
        daemon.start_ready()
    return name, daemons, writers(kafka, west, name, 2)


def test_both_directions_with_the_same_names_have_every_record_once_on_each_side(kafka, west, mirror, topic):
    name, daemons, applications = both_written(kafka, west, mirror, topic)
    time.sleep(2)  # applications write meanwhile
    written = sorted(value for one in applications for value in one.stop())
    for daemon in daemons:
        copied_to_the_end(daemon, 2)
    for cluster in (kafka, west):
        assert sorted(values(cluster, name, 0) + values(cluster, name, 1)) == written
    assert sum(not_sent_back(daemon) for daemon in daemons) == len(written)
    for daemon in daemons:
        assert daemon.stop() == 0
        verified = [*ingestd(), "mirror", "verify", "--to-end", "--strict", str(daemon.file)]
        assert subprocess.run(verified, timeout=60, check=False).returncode == 0


def test_both_directions_with_kills_stay_finite_and_lose_nothing(kafka, west, mirror, topic):
    name, daemons, applications = both_written(kafka, west, mirror, topic)
    for _ in range(2):
        for daemon in daemons:
            time.sleep(0.5)  # applications write meanwhile
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.wait(30)
            daemon.start_ready()
    written = sorted(value for one in applications for value in one.stop())
    for daemon in daemons:
        copied_to_the_end(daemon, 2)
    counts = [[len(values(cluster, name, number)) for number in range(2)] for cluster in (kafka, west)]
    for cluster, partitions in zip((kafka, west), counts, strict=True):
        found = values(cluster, name, 0) + values(cluster, name, 1)
        assert sorted(set(found)) == written
        assert sum(partitions) == len(found) < 2 * len(written)
    time.sleep(1)  # nothing goes round: that nothing more comes can not be awaited
    assert counts == [[len(values(cluster, name, number)) for number in range(2)] for cluster in (kafka, west)]
    for daemon in daemons:
        assert daemon.stop() == 0


def test_what_a_mirror_brought_is_passed_on_to_a_third_cluster_in_order(kafka, west, south, mirror, topic):
    """And a mirror back from there brings nothing back: a line in both directions."""
    name = topic()
    west.create_topic(name)
    south.create_topic(name)
    first = ways(mirror, kafka, west, topics=[name])
    second = ways(mirror, west, south, topics=[name])
    for daemon in (*first, *second):
        daemon.start_ready()
    for number in range(20):
        for cluster, side in ((kafka, "a"), (west, "b"), (south, "c")):
            produce(cluster.servers, name, [b"%s%d" % (side.encode(), number)])
    for daemon in (*first, *second):
        copied_to_the_end(daemon, 1)
    for cluster in (kafka, west, south):
        deadline = time.monotonic() + 20
        while len(found := values(cluster, name)) < 60 and time.monotonic() < deadline:
            time.sleep(0.1)
        for side in "abc":
            of_side = [value for value in found if value.startswith(side.encode())]
            assert of_side == [b"%s%d" % (side.encode(), number) for number in range(20)]
    assert len(values(kafka, name)) == 60
    for daemon in (*first, *second):
        assert daemon.stop() == 0


def test_a_ring_is_refused_once_a_record_has_gone_around(kafka, west, south, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one", b"two"])
    runs_once(mirror(source=kafka, target=west, naming="identity", topics=[name]))
    runs_once(mirror(source=west, target=south, naming="identity", topics=[name]))
    back = mirror(source=south, target=kafka, naming="identity", topics=[name])
    runs_once(back, status=1)
    assert "Some of them may come from west, and nobody knows which" in back.log.read_text()
    assert values(kafka, name) == [b"one", b"two"]


def test_a_target_that_has_lost_its_records_gets_them_back_where_that_is_asked_for(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one", b"two"])
    runs_once(mirror(source=kafka, target=west, naming="identity", topics=[name]))
    kafka.delete_topic(name)
    kafka.create_topic(name)
    for send_back in (False, True):
        runs_once(mirror(source=west, target=kafka, naming="identity", topics=[name], send_back=send_back))
        assert values(kafka, name) == ([b"one", b"two"] if send_back else [])


def test_the_registry_is_compacted_and_is_no_topic_to_copy(kafka, west, mirror, topic):
    name = topic()
    produce(kafka.servers, name, [b"one"])
    runs_once(mirror("registering", source=kafka, target=west, naming="identity", topics=[name]))
    registered = [json.loads(value) for value in values(west, REGISTRY_TOPIC)]
    assert [one["through"] for one in registered if one["mirror"] == "registering"] == [[]]
    (described,) = west.admin.describe_configs([ConfigResource("topic", REGISTRY_TOPIC)]).values()
    assert described.result(10)["cleanup.policy"].value == "compact"
    keys = {"topics": [f"{name}|{REGISTRY_TOPIC}"], "exclude": [], "naming": "again.{topic}"}
    runs_once(mirror(source=west, target=kafka, **keys))
    assert f"again.{REGISTRY_TOPIC}" not in kafka.admin.list_topics(timeout=10).topics


# Source and target are one cluster.


@pytest.fixture
def within(kafka, tmp_path):
    """`within(target="here", topics=[…])`: a daemon with a mirror within one cluster, not started.

    `target="there"`: the same cluster under another name, at another address.
    """
    made = []
    elsewhere = [address.replace("127.0.0.1", "localhost") for address in kafka.bootstrap]
    assert elsewhere != kafka.bootstrap

    def make(*, target, **keys):
        tables = {
            "clusters.here": {"bootstrap": kafka.bootstrap},
            "clusters.there": {"bootstrap": elsewhere},
            f"mirrors.within-{tmp_path.name}": {"source": "here", "target": target, "refresh_interval": 0.2, **keys},
        }
        made.append(ConfiguredDaemon(tmp_path / f"daemon-{len(made)}", tables, daemon={"workers": 1}))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def called_like(kafka, name):
    return sorted(topic for topic in kafka.admin.list_topics(timeout=10).topics if name in topic)


def looks_again(kafka, daemon, name):
    """Wait until a mirror that takes one partition has seen its copy, and a later look has found this new topic."""
    daemon.until(lambda: "topics left out" in daemon.log.read_text(), "a look has seen the copy", 20)
    kafka.create_topic(name)
    copied_to_the_end(daemon, 2)


def left_out(daemon):
    """The topics that the log says were left out, as often as it says so."""
    lines = map(json.loads, filter(lambda line: line.startswith("{"), daemon.log.read_text().splitlines()))
    return [topic for line in lines if line["event"] == "topics left out" for topic in line["first"]]


def test_within_one_cluster_copies_are_not_copied_again(kafka, within, topic):
    # The pattern fits the copies too: t.t.t.… came, one more with each look.
    name = topic()
    produce(kafka.servers, name, [b"one", b"two"])
    daemon = within(target="here", topics=[f"{name}.*"], naming=f"{name}.{{topic}}")
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    looks_again(kafka, daemon, f"{name}-late")
    assert daemon.stop() == 0
    assert called_like(kafka, name) == sorted([name, f"{name}.{name}", f"{name}-late", f"{name}.{name}-late"])
    assert values(kafka, f"{name}.{name}") == [b"one", b"two"]
    assert left_out(daemon).count(f"{name}.{name}") == 1


def test_one_cluster_at_two_addresses_is_not_copied_into_itself(kafka, within, topic):
    # 10 records became 44,000 in 5 s.
    name = topic()
    produce(kafka.servers, name, [b"one", b"two"])
    daemon = within(target="there", topics=[name], naming="identity")
    runs_once(daemon, status=1)
    assert f"source here and target there are one cluster, {kafka.cluster_id}" in daemon.log.read_text()
    assert values(kafka, name) == [b"one", b"two"]
    verified = subprocess.run([*ingestd(), "mirror", "verify", str(daemon.file)], capture_output=True, check=False)
    assert verified.returncode != 0
    assert b"are one cluster" in verified.stderr


def test_one_cluster_at_two_addresses_has_no_copies_of_copies(kafka, within, topic):
    # It was here.t, here.here.t, here.here.here.t, …
    name = topic()
    produce(kafka.servers, name, [b"one", b"two"])
    daemon = within(target="there", topics=[f".*{name}"])
    daemon.start_ready()
    copied_to_the_end(daemon, 1)
    looks_again(kafka, daemon, f"late-{name}")
    assert daemon.stop() == 0
    assert called_like(kafka, name) == sorted([name, f"here.{name}", f"late-{name}", f"here.late-{name}"])
    assert values(kafka, f"here.{name}") == [b"one", b"two"]
    verified = [*ingestd(), "mirror", "verify", "--to-end", "--strict", str(daemon.file)]
    assert subprocess.run(verified, timeout=60, check=False).returncode == 0
