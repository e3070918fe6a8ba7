"""The daemon against each release of the test matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import KafkaCluster

LINES = 3000


def test_a_file_becomes_a_topic_or_the_route_stops_and_says_that_the_cluster_is_too_old(
    kafka_of_release: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_of_release.create_topic(partitions=2)
    lines = [b"line %d" % number for number in range(LINES)]
    (tmp_path / "a.log").write_bytes(b"\n".join(lines) + b"\n")
    paths = [str(tmp_path / "*.log")]
    with Daemon(tmp_path / "daemon", servers=kafka_of_release.bootstrap, topic=topic, paths=paths) as daemon:
        daemon.start("--once")
        status = daemon.wait(60)
    written = kafka_of_release.read_back(topic)
    if kafka_of_release.release == "0.10":
        assert "init_producer_id: this broker does not have it; idempotence needs Kafka 0.11" in daemon.log.read_text()
        assert (status != 0, written) == (True, {0: [], 1: []})
    else:
        assert status == 0
        assert sorted(written[0] + written[1]) == sorted(lines)
