"""What every load test needs: the input, a real Kafka pinned to its own cores, the machine's name for the results."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from accesslog import write_log

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kafka"))

from harness.cluster import KafkaCluster  # noqa: E402 - the harness lies with the tests
from harness.daemon import ConfiguredDaemon, Daemon  # noqa: E402
from harness.go_peers import build_go_peers as go_peers  # noqa: E402
from harness.jars import kafka_jars  # noqa: E402
from harness.mirror_maker import mirror_maker_command  # noqa: E402
from harness.node import java  # noqa: E402
from harness.programs import ingestd, program  # noqa: E402
from harness.reading import end_offsets  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "BROKER_CORE",
    "CLIENT_CORE",
    "RESULTS",
    "ConfiguredDaemon",
    "Daemon",
    "KafkaCluster",
    "delivered",
    "go_peers",
    "ingestd",
    "input_log",
    "into_page_cache",
    "java",
    "kafka_jars",
    "machine",
    "mirror_maker_command",
    "program",
    "real_kafka",
    "scratch",
]

RESULTS = Path(os.environ.get("LOAD_TEST_RESULTS", ROOT / "load-tests" / "results"))
CORES = sorted(os.sched_getaffinity(0))
CLIENT_CORE, BROKER_CORE = str(CORES[0]), str(CORES[-1])
"""Where programs under test and brokers run unless told otherwise."""
JAVA_FOR_MEASURING = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own start script has it: both compilers, a collector for short pauses."""


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A directory for one load test, removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="ingestd-load-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def input_log(directory: Path, size: int) -> tuple[Path, int]:
    """An access log of about `size` bytes, in the page cache; its path and how many lines it has."""
    path = directory / "access.log"
    return path, write_log(path, size)


def into_page_cache(path: Path) -> None:
    """Read the whole file, so that no run pays for another's disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


@contextmanager
def real_kafka(
    directory: Path,
    cores: str | None,
    name: str = "kafka",
    settings: Mapping[str, str] | None = None,
    *,
    proxied: bool = False,
) -> Iterator[KafkaCluster]:
    """One real Kafka node on `cores` (None: any), with Kafka's defaults for what costs time (no fsync)."""
    fast = {"log.segment.delete.delay.ms": "500", "num.network.threads": "3", "num.io.threads": "8"}
    with KafkaCluster(
        directory / name,
        settings=fast | dict(settings or {}),
        java_options=JAVA_FOR_MEASURING,
        cores=cores,
        proxied=proxied,
    ) as cluster:
        yield cluster


def delivered(cluster: KafkaCluster, topic: str) -> int:
    """How many records a topic has, by its offsets."""
    return sum(end_offsets(cluster.servers, topic).values())
