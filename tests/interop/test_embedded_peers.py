"""Clients in other languages on the embedded broker: kcat, franz-go and sarama; what each writes is read by another."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
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


def kcat(*arguments: str, given: bytes = b"") -> bytes:
    return written(program("kcat"), "-m", str(SECONDS), *arguments, given=given)


def ingestd(*arguments: str, given: bytes = b"") -> bytes:
    return written(sys.executable, "-m", "ingestd", *arguments, given=given)


def written(*command: str, given: bytes) -> bytes:
    return subprocess.run(command, input=given, capture_output=True, timeout=SECONDS, check=True).stdout


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


LINES = b"plain\nk:\n:v\nk:v\n\x00\x00\x00\x07:8\n"
"""No line is empty: kcat leaves those out, and ingestd sends them."""


@pytest.mark.parametrize(
    "told",
    [
        [],
        ["-k", "all"],
        ["-K", ":"],
        ["-K", ":", "-Z"],
        ["-K", ":", "-k", "all", "-Z"],
        ["-H", "a=1", "-H", "b=", "-H", "a=x=y"],
        ["-D", r"\x3a"],
        ["-X", "client.id=told", "-X", "acks=1", "-z", "lz4"],
    ],
    ids=" ".join,
)
def test_both_make_the_same_records_of_the_same_options(
    embedded: BrokerProcess, new_topic: str, told: list[str]
) -> None:
    found = []
    for name, program_of in (("kcat", kcat), ("ingestd", ingestd)):
        target = ["-b", embedded.servers, "-t", f"{new_topic}-{name}", "-p", "0"]
        program_of(*(["-P"] if name == "kcat" else ["produce"]), *target, *told, given=LINES)
        records = kcat("-C", *target, "-e", "-q", "-J").splitlines()
        found.append([(one["key"], one["payload"], one.get("headers")) for one in map(json.loads, records)])
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize(
    "told",
    [
        [],
        ["-Z"],
        ["-K", "|"],
        ["-K", "|", "-D", ";", "-Z"],
        ["-f", r"%t[%p]@%o %k(%K)=%s(%S) {%h} %T%%\t\x41\n"],
        ["-f", "%R%s"],
        ["-o", "-2"],
        ["-o", "1", "-p", "0"],
        ["-s", "key=b", "-f", r"%k\n", "-p", "0", "-o", "4"],
        ["-s", "key=>i$", "-f", r"%k\n", "-p", "0", "-o", "4"],
        ["-s", "key=hh", "-s", "value=b", "-f", r"%k %s\n", "-p", "0", "-o", "4"],
    ],
    ids=" ".join,
)
def test_both_write_the_same_of_the_same_options(embedded: BrokerProcess, new_topic: str, told: list[str]) -> None:
    topic = ["-b", embedded.servers, "-t", new_topic]
    kcat("-P", *topic, "-p", "0", "-K", ":", "-Z", "-H", "a=1", "-H", "b=2", given=LINES)
    wrote = ingestd("consume", *topic, "-e", *told)
    assert wrote == kcat("-C", *topic, "-e", "-q", *told)
    assert wrote


def test_both_find_the_same_offsets_by_time(embedded: BrokerProcess, new_topic: str) -> None:
    kcat("-P", "-b", embedded.servers, "-t", new_topic, "-p", "0", given=LINES)
    *_, last = map(int, kcat("-C", "-b", embedded.servers, "-t", new_topic, "-e", "-q", "-f", r"%T\n").split())
    for at, offset in ((1, 0), (last + 1, -1)):
        asked = kcat("-Q", "-b", embedded.servers, "-t", f"{new_topic}:0:{at}")
        assert asked.strip().endswith(b"offset %d" % offset)
        (found,) = json.loads(ingestd("topics", "offsets", f"{new_topic}:0", "--at", f"@{at}", "-b", embedded.servers))
        assert (-1 if found["offset"] is None else found["offset"]) == offset


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
