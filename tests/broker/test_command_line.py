"""The command against the embedded broker, as a person at a shell uses it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from ingestd.broker.__main__ import _arguments
from ingestd.broker.settings import BrokerSettings, Flush
from ingestd.cli.broker_verbs import broker as broker_verb
from ingestd.cli.main import main
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from embedded.process import BrokerProcess

SECONDS = 30


@pytest.fixture
def ingestd(embedded: BrokerProcess) -> Callable[..., str]:
    """Run the command; what it wrote. Its exit code is 0, or `code`, and then what it wrote to standard error."""

    def ingestd(*arguments: str, given: str = "", code: int = 0) -> str:
        answer = subprocess.run(
            [sys.executable, "-m", "ingestd", *arguments, "--brokers", embedded.servers],
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert answer.returncode == code, answer.stderr
        return answer.stdout if code == 0 else answer.stderr

    return ingestd


def test_lines_go_in_and_come_out_in_order(ingestd: Callable[..., str], new_topic: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(10_000))
    ingestd("produce", "-t", new_topic, "-p", "1", "-z", "zstd:3", given=lines)
    assert ingestd("consume", "-t", new_topic, "-e") == lines


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_kind_of_acknowledgement_delivers(ingestd: Callable[..., str], new_topic: str, acks: str) -> None:
    ingestd("produce", "-t", new_topic, "--acks", acks, given="a\nb")
    assert sorted(ingestd("consume", "-t", new_topic, "-n", "2").split()) == ["a", "b"]


def test_equal_keys_share_a_partition(ingestd: Callable[..., str], new_topic: str) -> None:
    lines = "".join(f"key-{number % 7}=>{number}\n" for number in range(70))
    ingestd("produce", "-t", new_topic, "-K", "=>", given=lines)
    seen: dict[str, set[str]] = {}
    for line in ingestd("consume", "-t", new_topic, "-e", "-f", r"%p %k\n").splitlines():
        partition, key = line.split()
        seen.setdefault(key, set()).add(partition)
    assert len(seen) == 7
    assert all(len(partitions) == 1 for partitions in seen.values())
    assert len(set.union(*seen.values())) == 2


def test_json_names_where_each_record_is(ingestd: Callable[..., str], new_topic: str) -> None:
    ingestd("produce", "-t", new_topic, "-p", "0", "-D", ";", given="one;two")
    first, second = map(json.loads, ingestd("consume", "-t", new_topic, "-e", "--output", "json").splitlines())
    assert (first["topic"], first["partition"], first["offset"], first["value"]) == (new_topic, 0, 0, "one")
    assert (second["offset"], second["key"], second["value"]) == (1, None, "two")
    assert second["timestamp"] > 1_600_000_000_000


def test_headers_a_key_for_all_and_nulls_arrive(ingestd: Callable[..., str], new_topic: str) -> None:
    told = ["-H", "source=shop", "-H", "empty=", "-k", "all", "-K", ":", "-Z", "-p", "0", "-z", "lz4"]
    ingestd("produce", "-t", new_topic, *told, given="a\nk:\nk:v\n")
    written = ingestd("consume", "-t", new_topic, "-e", "-Z", "-f", r"%k=%s(%S) %h\n").splitlines()
    assert written == [f"{record} source=shop,empty=" for record in ("all=a(1)", "k=NULL(-1)", "k=v(1)")]
    assert ingestd("consume", "-t", new_topic, "-e", "-K", "|", "-n", "1") == "all|a\n"
    assert json.loads(ingestd("consume", "-t", new_topic, "-e", "-J", "-o", "2", "-p", "0"))["value"] == "v"


def test_binary_keys_are_read_by_a_format(ingestd: Callable[..., str], new_topic: str) -> None:
    ingestd("produce", "-t", new_topic, "-p", "0", "-k", "\1\2", given="a\nb\n")
    assert ingestd("consume", "-t", new_topic, "-e", "-s", "key=h", "-f", "%k%s ") == "258a 258b "
    said = ingestd("consume", "-t", new_topic, "-e", "-s", "key=i", "-f", "%k", code=1)
    assert (
        said == f"ingestd: {new_topic}-0, offset 0: its key does not fit --unpack: expected 4 bytes at byte 0, of 2\n"
    )


def test_settings_by_librdkafkas_names_count(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    told = ["-X", "acks=1", "-X", "linger.ms=0", "-X", "message.timeout.ms=0", "-X", "client.id=told-by-x"]
    ingestd("produce", "-t", new_topic, *told, given="a\n")
    assert ingestd("consume", "-t", new_topic, "-e", "-X", "isolation.level=read_committed") == "a\n"
    assert "told-by-x" in {request["client_id"] for request in embedded.requests()}
    said = ingestd("topics", "list", "-X", "security.protocol=ssl", "-m", "10", code=1)
    assert said == f"ingestd: {embedded.servers}: this is a listener without TLS\n"


def test_the_brokers_and_the_partitions_of_topics_are_listed(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    ingestd("topics", "create", new_topic, "-p", "2")
    found = json.loads(ingestd("metadata", new_topic))
    host, _, port = embedded.servers.rpartition(":")
    assert found["brokers"] == [{"id": 1, "host": host, "port": int(port), "rack": None}]
    assert found["controller"] == 1
    assert [one["topic"] for one in found["topics"]] == [new_topic]
    first, *_ = found["topics"][0]["partitions"]
    assert first == {"partition": 0, "leader": 1, "replicas": [1], "in_sync_replicas": [1], "error": None}
    lines = ingestd("metadata", "--output", "table").splitlines()
    assert lines[0].endswith(": 1 broker")
    assert lines[1] == f"  1: {embedded.servers}, controller"
    assert lines[lines.index(f"{new_topic}: 2 partitions") + 2] == "  1: leader 1, replicas 1, in sync 1"
    assert ingestd("metadata", "absent", code=1) == "ingestd: UNKNOWN_TOPIC_OR_PARTITION (3): absent\n"


def test_offsets_are_asked_for_by_time(ingestd: Callable[..., str], new_topic: str) -> None:
    ingestd("produce", "-t", new_topic, "-p", "1", given="a\nb\n")
    ends = ingestd("topics", "offsets", new_topic, "--output", "table").splitlines()[1:]
    assert [line.split() for line in ends] == [[new_topic, "0", "0", "-"], [new_topic, "1", "2", "-"]]
    (at,) = json.loads(ingestd("topics", "offsets", f"{new_topic}:1", "--at", "@2000-01-01"))
    assert (at["topic"], at["partition"], at["offset"]) == (new_topic, 1, 0)
    assert at["timestamp_ms"] > 1_600_000_000_000
    (none,) = json.loads(ingestd("topics", "offsets", f"{new_topic}:1", "--at", "@9999-01-01"))
    assert (none["offset"], none["timestamp_ms"]) == (None, None)
    (first,) = json.loads(ingestd("topics", "offsets", f"{new_topic}:1", "--at", "beginning"))
    assert first["offset"] == 0
    said = ingestd("topics", "offsets", new_topic, "--at", "5", code=2)
    assert said == "ingestd: --at 5: expected `beginning`, `end` or @TIME\n"
    absent = f"{new_topic}:7"
    assert ingestd("topics", "offsets", absent, code=1) == f"ingestd: UNKNOWN_TOPIC_OR_PARTITION (3): {new_topic}-7\n"


def test_records_before_an_offset_a_time_or_the_end_are_deleted(ingestd: Callable[..., str], new_topic: str) -> None:
    ingestd("produce", "-t", new_topic, "-p", "0", given="a\nb\nc\n")
    ingestd("produce", "-t", new_topic, "-p", "1", given="d\ne\n")
    delete = ("topics", "delete-records")

    def left() -> list[str]:
        return sorted(ingestd("consume", "-t", new_topic, "-o", "beginning", "-e").split())

    (one,) = json.loads(ingestd(*delete, f"{new_topic}:0", "--before", "1"))
    assert one == {"topic": new_topic, "partition": 0, "first_offset": 1, "error": None}
    assert left() == ["b", "c", "d", "e"]
    lines = ingestd(*delete, new_topic, "--before", "@2000-01-01", "--output", "table").splitlines()
    assert [line.split() for line in lines[1:]] == [[new_topic, "0", "1", "-"], [new_topic, "1", "0", "-"]]
    assert left() == ["b", "c", "d", "e"]
    # No record is as late as that, so all are before it.
    (one,) = json.loads(ingestd(*delete, f"{new_topic}:0", "--before", "@9999-01-01"))
    assert (one["first_offset"], left()) == (3, ["d", "e"])
    refused = ingestd(*delete, new_topic, "--before", "7", "--output", "table", code=1)
    assert refused == ""
    assert left() == ["d", "e"]
    assert [one["first_offset"] for one in json.loads(ingestd(*delete, new_topic, "--before", "end"))] == [3, 2]
    assert left() == []
    said = "ingestd: --before -5: expected an offset, @TIME, or `end` for all records\n"
    assert ingestd(*delete, new_topic, "--before", "-5", code=2) == said
    assert ingestd(*delete, "absent", "--before", "end", code=1) == "ingestd: UNKNOWN_TOPIC_OR_PARTITION (3): absent\n"


def test_what_topics_take_on_the_disk_is_told(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    ingestd("produce", "-t", new_topic, "-p", "1", given="x" * 1000)
    use = ("topics", "disk-use")
    logs = [sum(log.stat().st_size for log in embedded.data.glob(f"{new_topic}-{number}/*.log")) for number in (0, 1)]
    assert logs[1] > 1000
    lines = ingestd(*use, new_topic, "--output", "table").splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITION", "BROKER", "BYTES", "LAG", "DIRECTORY"]
    assert [line.split() for line in lines[1:]] == [
        [new_topic, str(number), "1", str(size), "0", str(embedded.data)] for number, size in enumerate(logs)
    ]
    (one,) = json.loads(ingestd(*use, f"{new_topic}:1"))
    assert (one["partition"], one["size"], one["future"]) == (1, logs[1], False)
    totals = json.loads(ingestd(*use, "--by-topic"))
    assert {"topic": new_topic, "replicas": 2, "size": sum(logs)} in totals
    assert [one["size"] for one in totals] == sorted((one["size"] for one in totals), reverse=True)
    assert ingestd(*use, "absent", code=1) == "ingestd: UNKNOWN_TOPIC_OR_PARTITION (3): absent\n"


def test_reading_starts_and_ends_where_told(ingestd: Callable[..., str], new_topic: str) -> None:
    ingestd("produce", "-t", new_topic, "-p", "0", given="a\nb\nc\nd\n")
    assert ingestd("consume", "-t", new_topic, "-p", "0", "-o", "2", "-e") == "c\nd\n"
    assert ingestd("consume", "-t", new_topic, "-p", "0", "-o", "-1", "-e") == "d\n"
    assert ingestd("consume", "-t", new_topic, "-o", "-99", "-e") == "a\nb\nc\nd\n"
    assert ingestd("consume", "-t", new_topic, "-o", "end", "-e") == ""
    assert ingestd("consume", "-t", new_topic, "-o", "@2000-01-01", "-n", "3") == "a\nb\nc\n"
    assert ingestd("consume", "-t", new_topic, "-n", "0") == ""


def test_topics_are_made_described_and_unmade(ingestd: Callable[..., str], new_topic: str) -> None:
    said = ingestd("topics", "create", new_topic, "-p", "3", "--config-entry", "retention.ms=3600000")
    assert said == f"{new_topic}: created, 3 partitions, replication factor 1, retention.ms=3600000\n"
    listed = [line.split() for line in ingestd("topics", "list", "--output", "table").splitlines()]
    assert [new_topic, "3"] in listed
    ingestd("produce", "-t", new_topic, "-p", "2", given="a\nb\n")
    header, *partitions = ingestd("topics", "describe", new_topic, "--output", "table").splitlines()
    assert header == f"{new_topic}: 3 partitions; retention.ms=3600000"
    assert partitions[2] == "  2: offsets 0 to 2, leader 1, replicas 1, in sync 1"
    (described,) = json.loads(ingestd("topics", "describe", new_topic))
    assert described["partitions"][2]["end_offset"] == 2
    assert described["configs"] == {"retention.ms": "3600000"}
    changes = (
        "--config-entry",
        "segment.ms=7000",
        "--config-entry",
        "max.message.bytes=100",
        "--default",
        "retention.ms",
    )
    ingestd("topics", "alter", new_topic, *changes)
    (described,) = json.loads(ingestd("topics", "describe", new_topic))
    assert described["configs"] == {"max.message.bytes": "100", "segment.ms": "7000"}
    refused = ingestd("topics", "alter", new_topic, "--config-entry", "segment.ms=soon", code=1)
    assert refused.startswith("ingestd: INVALID_CONFIG (40)")
    assert ingestd("produce", "-t", new_topic, given="x" * 200, code=1).startswith("ingestd: ")
    ingestd("topics", "delete", new_topic)
    assert new_topic not in json.loads(ingestd("topics", "list", "--output", "json"))


def test_several_topics_are_made_at_once_and_of_those_that_are_not_each_is_named(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    names = [f"{new_topic}-{letter}" for letter in "abc"]
    ingestd("topics", "create", names[1])
    command = [sys.executable, "-m", "ingestd", "topics", "create", *names, "-p", "2", "-b", embedded.servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{name}: created, 2 partitions, replication factor 1" for name in (names[0], names[2])
    ]
    assert done.stderr.startswith(f"ingestd: TOPIC_ALREADY_EXISTS (36): {names[1]}")
    assert done.stderr.count("\n") == 1
    ingestd("topics", "delete", *names)


def test_what_is_not_there_is_one_line(ingestd: Callable[..., str], new_topic: str) -> None:
    assert ingestd("topics", "describe", "absent", code=1) == "ingestd: UNKNOWN_TOPIC_OR_PARTITION (3): absent\n"
    ingestd("topics", "create", new_topic, "-p", "1")
    assert ingestd("topics", "create", new_topic, code=1).startswith("ingestd: TOPIC_ALREADY_EXISTS (36)")
    assert ingestd("consume", "-t", new_topic, "-p", "7", code=2) == (
        f"ingestd: {new_topic} has no partition 7; it has 1, from 0\n"
    )
    assert ingestd("produce", "-t", new_topic, "-p", "7", given="x", code=2) == (
        f"ingestd: {new_topic} has no partition 7; it has 1, from 0\n"
    )


def test_a_reader_that_has_enough_is_no_error(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    ingestd("produce", "-t", new_topic, given="".join(f"{number:0100}\n" for number in range(20_000)))
    command = [sys.executable, "-m", "ingestd", "consume", "-t", new_topic, "-b", embedded.servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consume:
        assert consume.stdout is not None
        assert consume.stderr is not None
        assert len(consume.stdout.readline()) == 101
        consume.stdout.close()
        assert consume.wait(SECONDS) == 0
        assert consume.stderr.read() == b""


def test_an_interrupt_ends_a_writer_that_waits_after_what_it_had_was_sent(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    ingestd("topics", "create", new_topic)
    brokers = ["-t", new_topic, "-b", embedded.servers]
    with subprocess.Popen(
        [sys.executable, "-m", "ingestd", "produce", *brokers], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as produce:
        assert produce.stdin is not None
        produce.stdin.write(b"hello\n")
        produce.stdin.flush()
        answer = subprocess.run(
            [sys.executable, "-m", "ingestd", "consume", *brokers, "-n", "1", "-o", "beginning"],
            stdout=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
        assert (answer.returncode, answer.stdout) == (0, b"hello\n")
        produce.send_signal(signal.SIGINT)
        assert produce.wait(SECONDS) == 130
        assert produce.stderr is not None
        assert produce.stderr.read() == b""


def test_an_interrupt_ends_a_reader_that_waits(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    ingestd("produce", "-t", new_topic, given="hello\n")
    command = [sys.executable, "-m", "ingestd", "consume", "-t", new_topic, "-b", embedded.servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consume:
        assert consume.stdout is not None
        assert consume.stdout.readline() == b"hello\n"
        consume.send_signal(signal.SIGINT)
        assert consume.wait(SECONDS) == 130
        assert consume.stderr is not None
        assert consume.stderr.read() == b""


@pytest.mark.parametrize(("options", "flush"), [([], Flush.always), (["--flush", "os"], Flush.os)])
def test_the_broker_alone_has_records_on_the_disk_before_it_acknowledges_them_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], flush: Flush
) -> None:
    ran: list[BrokerSettings] = []
    monkeypatch.setattr("ingestd.cli.broker.run_broker", lambda settings, _listening: ran.append(settings))
    result = CliRunner().invoke(broker_verb, ["--data", str(tmp_path), *options])
    assert (result.exit_code, result.output) == (0, "")
    assert [settings.flush for settings in ran] == [flush]
    assert BrokerSettings(tmp_path).flush is Flush.always
    assert Flush(_arguments(["--data", str(tmp_path), *options]).flush) is flush, "the daemon's child process"


@pytest.mark.parametrize(
    ("options", "retention", "assignors"),
    [
        ([], 604_800.0, ("uniform", "range")),
        (["--offsets-retention", "0", "--consumer-assignor", "range"], 0.0, ("range",)),
        (["--consumer-assignor", "range", "--consumer-assignor", "uniform"], 604_800.0, ("range", "uniform")),
    ],
)
def test_the_broker_alone_is_told_of_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    retention: float,
    assignors: tuple[str, ...],
) -> None:
    ran: list[BrokerSettings] = []
    monkeypatch.setattr("ingestd.cli.broker.run_broker", lambda settings, _listening: ran.append(settings))
    result = CliRunner().invoke(broker_verb, ["--data", str(tmp_path), *options])
    assert (result.exit_code, result.output) == (0, "")
    assert [(settings.offsets_retention, settings.consumer_assignors) for settings in ran] == [(retention, assignors)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"offsets_retention": -1.0}, "offsets_retention: -1.0 is negative"),
        ({"consumer_assignors": ()}, "is not some of uniform and range"),
        ({"consumer_assignors": ("sticky",)}, "is not some of uniform and range"),
        ({"consumer_assignors": ("range", "range")}, "is not some of uniform and range"),
    ],
)
def test_settings_of_groups_that_mean_nothing_are_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        BrokerSettings(tmp_path, **settings)


def test_an_address_without_a_host_is_refused_with_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "--data", str(tmp_path), "--listen", ":9092"]) == 2
    every = "every IPv4 address of this machine is 0.0.0.0:9092, every IPv6 address [::]:9092"
    assert capsys.readouterr().err == f"ingestd: --listen: ':9092' is not HOST:PORT; {every}\n"


def test_a_topic_that_is_not_there_is_named_once(ingestd: Callable[..., str]) -> None:
    assert ingestd("topics", "delete", "nosuch", code=1) == "ingestd: UNKNOWN_TOPIC_OR_PARTITION (3): nosuch\n"


def test_a_reset_beyond_the_end_says_where_it_goes(
    ingestd: Callable[..., str], embedded: BrokerProcess, new_topic: str
) -> None:
    ingestd("produce", "-t", new_topic, "-p", "0", given="a\nb\n")
    reset = ["groups", "reset-offsets", f"g-{new_topic}", "--topic", f"{new_topic}:0", "--to-offset", "5000"]
    moved = f"ingestd: {new_topic}-0: its log does not reach offset 5000: 2, its nearer end, is taken\n"
    answer = subprocess.run(
        [sys.executable, "-m", "ingestd", *reset, "--brokers", embedded.servers, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert [one["after"] for one in json.loads(answer.stdout)] == [2]
    assert answer.stderr == f"{moved}nothing is changed; --execute does it\n"


def test_the_broker_alone_says_where_it_listens_and_ends_on_a_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ingestd", "broker", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        said = broker.stdout.readline()
        assert said.startswith("listening at 127.0.0.1:")
        address = said.split()[-1]
        listed = subprocess.run(
            [sys.executable, "-m", "ingestd", "topics", "list", "-b", address],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (listed.returncode, listed.stdout, listed.stderr) == (0, "{}\n", "")
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(SECONDS) == 0
