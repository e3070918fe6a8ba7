"""Where a key goes by Java's own partitioner and by sarama's, and by ours. (librdkafka's: tests/unit/producer.)"""

from __future__ import annotations

import base64
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from harness.java_programs import java_program

from ingestd.producer.partitioners import PARTITIONERS, murmur2_partition

if TYPE_CHECKING:
    from pathlib import Path

    from harness.go_peers import GoPeer

COUNTS = (1, 2, 7, 50, 12_000)
SOURCE = random.Random(4)
KEYS = [b"", b"\x80\xff", b"\x7f" * 4, *(SOURCE.randbytes(SOURCE.randrange(1, 40)) for _ in range(2000))]


def test_a_key_goes_where_javas_default_partitioner_puts_it(tmp_path: Path) -> None:
    with java_program("Partitions", tmp_path) as java:
        for count in COUNTS:
            asked = {"keys": [base64.b64encode(key).decode() for key in KEYS], "partitions": count}
            theirs = java.ask(asked)
            assert [murmur2_partition(key, count) for key in KEYS] == theirs
            ours = PARTITIONERS["murmur2"]("topic")
            assert [ours.choose(key, None, range(count)) for key in KEYS] == theirs


@pytest.mark.peers
@pytest.mark.parametrize(("name", "peer"), [("fnv1a", "hash"), ("crc32", "crc")])
def test_a_key_goes_where_sarama_puts_it(go_peers: dict[str, GoPeer], name: str, peer: str) -> None:
    keys = [key for key in KEYS if key]
    for count in COUNTS:
        ran = subprocess.run(
            [str(go_peers["sarama"].binary), "partition", "-partitioner", peer, "-partitions", str(count)],
            input="\n".join(key.hex() for key in keys), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        ours = PARTITIONERS[name]("topic")
        assert [ours.choose(key, None, range(count)) for key in keys] == [int(line) for line in ran.stdout.split()]
