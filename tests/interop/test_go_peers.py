"""The Go peers themselves, on real Kafka: what one writes, the other reads."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster
    from harness.go_peers import GoPeer

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize(("writer", "reader"), [("franz", "sarama"), ("sarama", "franz")])
def test_each_peer_reads_what_the_other_wrote(
    kafka: KafkaCluster, topic: Callable[..., str], go_peers: dict[str, GoPeer], writer: str, reader: str, codec: str
) -> None:
    name = topic(partitions=2)
    values = [b"line %d" % number for number in range(200)]
    written = go_peers[writer].produce(kafka.servers, name, values, "-partition", "1", "-codec", codec)
    assert [(each["partition"], each["offset"]) for each in written] == [(1, offset) for offset in range(200)]
    read = go_peers[reader].consume(kafka.servers, name, 200)
    assert [base64.b64decode(each["value"]) for each in read] == values
