"""Clients in other languages on the embedded broker: kcat, franz-go and sarama; what each writes is read by another."""

from __future__ import annotations

import base64
import subprocess
from typing import TYPE_CHECKING

import pytest
from harness.programs import program

if TYPE_CHECKING:
    from pathlib import Path

    from embedded.process import BrokerProcess
    from harness.go_peers import GoPeer

pytestmark = pytest.mark.peers

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SECONDS = 60


def kcat(*arguments: str) -> bytes:
    return subprocess.run(
        [program("kcat"), "-m", str(SECONDS), *arguments],
        capture_output=True,
        timeout=SECONDS,
        check=True,
        stdin=subprocess.DEVNULL,
    ).stdout


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_kcat_reads_the_lines_that_kcat_wrote(
    embedded: BrokerProcess, new_topic: str, tmp_path: Path, codec: str, idempotent: str
) -> None:
    lines = b"".join(b"line %d %s\n" % (number, b"x" * (number % 200)) for number in range(50_000))
    source = tmp_path / "lines"
    source.write_bytes(lines)
    common = ("-b", embedded.servers, "-t", new_topic)
    kcat("-P", *common, "-p", "1", "-z", codec, "-X", f"enable.idempotence={idempotent}", "-l", str(source))
    assert kcat("-C", *common, "-p", "1", "-o", "beginning", "-e", "-q") == lines
    assert kcat("-C", *common, "-p", "1", "-o", "-1", "-e", "-q").startswith(b"line 49999 ")
    assert kcat("-Q", "-b", embedded.servers, "-t", f"{new_topic}:1:-1").strip().endswith(b"offset 50000")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("writer", "reader"), [("franz", "sarama"), ("sarama", "franz")])
def test_each_go_client_reads_what_the_other_wrote(
    embedded: BrokerProcess, new_topic: str, go_peers: dict[str, GoPeer], writer: str, reader: str, codec: str
) -> None:
    values = [b"line %d" % number for number in range(2000)]
    kcat("-L", "-b", embedded.servers, "-t", new_topic)
    written = go_peers[writer].produce(embedded.servers, new_topic, values, "-partition", "1", "-codec", codec)
    assert [(each["partition"], each["offset"]) for each in written] == [(1, offset) for offset in range(2000)]
    read = go_peers[reader].consume(embedded.servers, new_topic, 2000)
    assert [base64.b64decode(each["value"]) for each in read] == values
