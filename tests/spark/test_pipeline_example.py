"""The example `access-logs`, with a real daemon: its tables and topics are what plain Python makes of the lines."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import subprocess
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from harness.node import free_ports
from harness.programs import ingestd

from ingestd.cli.configured import load_configuration
from ingestd.spark.pipelines.streaming import run_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conftest import Servers
    from pyspark.sql import SparkSession

    from ingestd.spark.pipelines.progress import BatchProgress

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unchanged")]

EXAMPLE = Path(__file__).parents[2] / "config" / "access-logs.toml"
START = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
LATE = dt.timedelta(minutes=2)
MINUTE = dt.timedelta(minutes=1)


def line(chance: random.Random, seconds: int) -> str:
    moment = (START + dt.timedelta(seconds=seconds)).strftime("%d/%b/%Y:%H:%M:%S +0000")
    status = chance.choice([200, 200, 200, 404, 500, 503])
    size = chance.choice(["-", str(chance.randrange(10_000))])
    return f'10.0.0.{chance.randrange(9)} - - [{moment}] "GET /{chance.randrange(99)} HTTP/1.1" {status} {size} "-" "x"'


def rounds() -> list[list[str]]:
    """Lines that come together. Those of the second come late, and some of them too late; the third ends all."""
    chance = random.Random(7)
    first = [line(chance, chance.randrange(360)) for _ in range(500)] + [line(chance, 359), "no access log"]
    second = [line(chance, seconds) for seconds in (0, 59, 100, 250, 299)]
    second += [line(chance, chance.randrange(240, 600)) for _ in range(500)] + [line(chance, 599), "nor this"]
    return [first, second, [line(chance, 3_600)]]


def in_plain_python(together: Iterable[list[str]]) -> dict[str, tuple[int, int, int | None]]:
    """Hits, errors and bytes by minute, of those minutes that are over in the end."""
    found: dict[dt.datetime, list[tuple[int, str]]] = defaultdict(list)
    over = latest = dt.datetime.min.replace(tzinfo=dt.UTC)
    for lines in together:
        for one in lines:
            parts = re.fullmatch(r'\S+ - - \[(.*)\] "[^"]*" (\d+) (\S+) .*', one)
            if parts is None:
                continue
            moment = dt.datetime.strptime(parts[1], "%d/%b/%Y:%H:%M:%S %z")
            latest = max(latest, moment)
            minute = moment.replace(second=0)
            if minute + MINUTE > over:
                found[minute].append((int(parts[2]), parts[3]))
        over = latest - LATE
    return {
        f"{minute:%Y-%m-%d %H:%M:%S}": (
            len(rows),
            sum(status >= 500 for status, _ in rows),
            sum(int(size) for _, size in rows if size != "-") if any(size != "-" for _, size in rows) else None,
        )
        for minute, rows in found.items()
        if minute + MINUTE <= over
    }


def values(cluster: Servers, topic: str) -> list[bytes]:
    reader = Consumer({"bootstrap.servers": cluster.servers, "group.id": "nobody", "enable.partition.eof": True})
    partitions = reader.list_topics(topic).topics[topic].partitions
    reader.assign([TopicPartition(topic, each, 0) for each in partitions])
    found: list[bytes] = []
    ends = 0
    while ends < len(partitions):
        for message in reader.consume(1_000, 0.5):
            if message.error() is None:
                found.append(message.value())
            else:
                ends += 1
    reader.close()
    return found


def test_access_logs_are_counted_by_minute_into_delta_and_a_topic(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    http = f"127.0.0.1:{free_ports(1)[0]}"
    text = EXAMPLE.read_text().replace("kafka-1:9092", here.servers).replace("/data/", f"{tmp_path}/")
    text = text.replace("/var/log/nginx/access.log", str(log)).replace("minutes]\n", f'minutes]\nhttp = "{http}"\n', 1)
    file = tmp_path / "ingestd.toml"
    file.write_text(f'{text}\n[daemon]\nstate = "{tmp_path}/state"\nhttp = ""\n')
    configuration = load_configuration(file)
    told: list[BatchProgress] = []
    scraped: list[str] = []

    def take(progress: BatchProgress) -> None:
        told.append(progress)
        if progress.pipeline == "minutes":
            with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
                scraped.append(answer.read().decode())

    for lines in rounds():
        with log.open("a") as written:
            written.writelines(f"{one}\n" for one in lines)
        subprocess.run([*ingestd(), "run", "--once", file], check=True, timeout=120, capture_output=True)
        for pipeline in configuration.pipelines.values():
            clusters: dict[str, dict[str, Any]] = {"main": here.clusters["local"]}
            before = len(told)
            result = run_stream(pipeline, clusters, once=True, session=spark, progress=take)
            assert result.late_rows == sum(progress.late_rows for progress in told[before:])

    expected = in_plain_python(rounds())
    assert len(expected) == 10
    table = DeltaTable(tmp_path / "minutes").to_pyarrow_table().to_pylist()
    assert {
        f"{row['window_start']:%Y-%m-%d %H:%M:%S}": (row["hits"], row["errors"], row["bytes"]) for row in table
    } == expected
    assert len(table) == 10
    counted = [json.loads(value) for value in values(here, "web.minutes")]
    assert {
        row["window_start"].replace("T", " ").partition(".")[0]: (row["hits"], row["errors"], row.get("bytes"))
        for row in counted
    } == expected
    assert len(counted) == 10
    assert sorted(values(here, "web.access.dead")) == [b"no access log"] * 2 + [b"nor this"] * 2
    for name in configuration.pipelines:
        mine = [progress for progress in told if progress.pipeline == name]
        assert sum(progress.rows for progress in mine) == 502 + 507 + 1
        assert mine[-1].lag == {"web.access": 0}
        assert sum(progress.late_rows for progress in mine) > 0
        assert sum(progress.dead_letters for progress in mine) == 2
    assert 'ingestd_pipeline_lag_records{pipeline="minutes",topic="web.access"} 0.0' in scraped[-1]
    assert 'ingestd_pipeline_rows_total{pipeline="minutes"} 1.0' in scraped[-1], "counted since this run began"
    assert 'ingestd_pipeline_dead_letters_total{pipeline="minutes"} 0.0' in scraped[-1]
    assert 'ingestd_pipeline_dead_letters_total{pipeline="minutes"} 1.0' in scraped[0]
