"""The load tests run, on inputs too small to say anything, and write what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOAD_TESTS = Path(__file__).resolve().parents[2] / "load-tests"
SECONDS = 150


def run(name: str, results: Path, *options: str, seconds: float = SECONDS) -> dict[str, Any]:
    written = run_without_plot(name, results, *options, seconds=seconds)
    assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return written


def run_without_plot(name: str, results: Path, *options: str, seconds: float = SECONDS) -> dict[str, Any]:
    environment = os.environ | {"LOAD_TEST_RESULTS": str(results)}
    command = [sys.executable, str(LOAD_TESTS / f"{name}.py"), *options]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    return written


@pytest.mark.peers
def test_every_contender_delivers_every_line_and_is_metered(tmp_path: Path) -> None:
    options = ["--size", "2MB", "--runs", "1", "--codecs", "lz4", "--directory", str(tmp_path)]
    found = run("compare", tmp_path / "results", "--contenders", "ingestd", "kcat", "rsyslog", *options)
    rows = {row["contender"]: row for row in found["figures"]["summary"]}
    assert set(rows) == {"ingestd", "kcat", "rsyslog"}
    assert {row["delivered"] for row in rows.values()} == {found["settings"]["lines"]}
    assert all(row["cpu_seconds_per_gb"] > 0 and row["peak_memory_mb"] > 1 for row in rows.values())
    assert set(found["settings"]) >= {"acks", "linger_ms", "levels", "delivery", "fsync", "input_bytes"}


@pytest.mark.peers
def test_every_client_delivers_every_record_it_was_called_for(tmp_path: Path) -> None:
    found = run("produce", tmp_path / "results", "--size", "1MB", "--runs", "1", "--directory", str(tmp_path))
    figures = found["figures"]
    assert {row["case"] for row in figures["summary"]} == {
        "lz4", "lz4, keys", "lz4, headers", "lz4, callbacks", "none", "zstd",
    }  # fmt: skip
    first = {row["contender"] for row in figures["summary"] if row["case"] == "lz4"}
    assert first == {"ingestd", "ingestd, send_many", "kcat", "confluent-kafka-python", "aiokafka"}
    assert {row["delivered"] for row in figures["summary"]} == {found["settings"]["lines"]}
    assert len(figures["verdicts"]) == 3


def test_the_embedded_broker_takes_and_gives_every_record_and_is_metered(tmp_path: Path) -> None:
    options = ["--size", "5MB", "--seconds", "0.5", "--only", "fsync", "--directory", str(tmp_path)]
    figures = run_without_plot("broker", tmp_path / "results", *options)["figures"]["fsync"]
    assert figures["single records, 1/s"] > 0
    assert figures["private memory, MB"] > 1
    assert 0 < figures["heartbeat p50, ms"] <= figures["heartbeat p99, ms"]
    assert figures["while cleaning, heartbeats"] > 0
    assert figures["log to clean, MB"] > 30
    assert figures["start after all of it, s"] > 0


def test_one_worker_and_two_reach_the_sink_with_every_line(tmp_path: Path) -> None:
    found = run("scaling", tmp_path / "results", "--size", "20MB", "--runs", "1", "--directory", str(tmp_path))
    assert set(found["figures"]["gains"]) == {"2"}
    assert {each["workers"] for each in found["figures"]["runs"]} == {1, 2}


def test_workers_that_share_several_files_reach_the_sink_with_every_line(tmp_path: Path) -> None:
    options = ["--files", "5", "--workers", "1", "3", "--unbound", "--runs", "1", "--directory", str(tmp_path)]
    found = run("scaling", tmp_path / "results", "--size", "20MB", *options)
    assert set(found["figures"]["gains"]) == {"3"}
    assert all(each["cpu_seconds_per_gb"] > 0 for each in found["figures"]["runs"])


def test_every_line_of_a_steady_writer_has_a_latency(tmp_path: Path) -> None:
    found = run("latency", tmp_path / "results", "--seconds", "1", "--rate", "500kB", "--directory", str(tmp_path))
    assert found["figures"]["lines"] > 1000
    assert 0 < found["figures"]["median_ms"] <= found["figures"]["p99_ms"]


def test_a_quiet_daemon_is_measured(tmp_path: Path) -> None:
    options = ["--files", "50", "--seconds", "1", "--workers", "2", "--directory", str(tmp_path)]
    found = run("idle", tmp_path / "results", *options)
    assert len(found["figures"]["workers_mb"]) == 2


def test_files_that_rotate_are_read_once_and_are_measured(tmp_path: Path) -> None:
    options = ["--files", "20", "--seconds", "2", "--settle", "1", "--directory", str(tmp_path)]
    found = run("rotating", tmp_path / "results", *options)
    assert found["figures"]["delivered"] == found["figures"]["written"]
    assert len(found["figures"]["cpu_percent"]) == 1 + found["settings"]["workers"]


def test_a_group_member_joins_commits_and_idles(tmp_path: Path) -> None:
    options = ["--partitions", "50", "--seconds", "1", "--directory", str(tmp_path)]
    found = run("group", tmp_path / "results", *options)
    assert all(found["figures"][what] > 0 for what in found["figures"] if what != "verdicts")
    assert len(found["figures"]["verdicts"]) == 3


@pytest.mark.peers
def test_every_program_that_mirrors_copies_every_record_and_is_metered(tmp_path: Path) -> None:
    found = run("mirror", tmp_path / "results", "--size", "1MB", "--parts", "copy", "--directory", str(tmp_path))
    rows = found["figures"]["summary"]
    everybody = {"ingestd", "franz-go", "kcat | kcat", "MirrorMaker 2"}
    assert {row["program"] for row in rows if row["case"] == "large batches"} == everybody
    assert {row["case"] for row in rows} == {"large batches", "batches of 1 kB", "times of the broker"}
    assert all(row["cpu_seconds_per_gb"] > 0 and row["peak_memory_mb"] > 1 for row in rows)


def test_a_mirror_that_stays_is_measured(tmp_path: Path) -> None:
    options = ["--latency-seconds", "1", "--idle-seconds", "1", "--idle-partitions", "20", "--start-partitions", "40"]
    options += [
        "--settle-seconds",
        "1",
        "--programs",
        "ingestd",
        "--parts",
        "latency",
        "idle",
        "start",
        "--directory",
        str(tmp_path),
    ]
    figures = run_without_plot("mirror", tmp_path / "results", *options)["figures"]
    assert [one["records"] for one in figures["latency"]] == [1000, 1000]
    assert [(one["program"], one["partitions"]) for one in figures["idle"]] == [("ingestd", 20)]
    assert [one["partitions"] for one in figures["start"]] == [40, 40]


@pytest.mark.peers
@pytest.mark.timeout(390)
def test_every_query_of_the_spark_source_takes_every_row(tmp_path: Path) -> None:
    """Without Spark's connector, which needs a PySpark of its own."""
    options = ["--size", "1MB", "--runs", "1", "--engines", "ingestd", "--directory", str(tmp_path)]
    options += ["--cases", "noop", "parquet", "rows", "batches", "stream"]
    found = run("spark", tmp_path / "results", *options, seconds=380)
    figures = found["figures"]
    assert [row["case"] for row in figures["summary"]] == [
        "read → noop", "read → parquet", "topic → topic, rows", "topic → topic, batches",
        "stream, 1,000,000 a micro-batch", "stream, 250,000 a micro-batch",
    ]  # fmt: skip
    assert all(row["cpu_seconds"] > 0 for row in figures["summary"])
