"""What tests download: Apache Kafka's jars by Maven, found again by the content of their pom; and an older PySpark.

Each is fetched once and kept in the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.programs import program

__all__ = ["cache_directory", "connector_pyspark", "kafka_jars"]

POM = Path(__file__).resolve().parent.parent / "pom.xml"
MAVEN_SECONDS = 300
PIP_SECONDS = 500
CONNECTOR_PYSPARK = "4.0.0"
"""The newest whose connector's jars are all to be had."""


def cache_directory() -> Path:
    """Where downloads are kept between runs: `$XDG_CACHE_HOME/ingestd`, or `~/.cache/ingestd`."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(home) / "ingestd"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def kafka_jars(pom: Path = POM) -> Path:
    """The directory with all jars of a release of Apache Kafka. Fetches them if this pom never was fetched.

    Several processes may call this at once: one fetches, the others wait.
    """
    version = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    directory = cache_directory() / f"kafka-{version}"
    if directory.is_dir():
        return directory
    with (cache_directory() / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            _fetch(pom, directory)
    return directory


def _fetch(pom: Path, directory: Path) -> None:
    partial = directory.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    project = partial / "project"
    project.mkdir(parents=True)
    shutil.copy(pom, project / "pom.xml")
    command = [program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={partial}/libs"]
    _run(command, project, MAVEN_SECONDS, "Maven did not bring Apache Kafka")
    (partial / "libs").rename(directory)
    shutil.rmtree(partial)


def _run(command: list[str], place: Path, seconds: float, failure: str) -> None:
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError(f"{failure}:\n{done.stdout}{done.stderr}")


def connector_pyspark() -> tuple[str, dict[str, str]]:
    """A Python, and the environment in which it has the PySpark that Spark's own Kafka connector is for.

    That is a release of its own (`load-tests/connector/pom.xml`), beside the one which this Python has.
    """
    directory = cache_directory() / f"pyspark-{CONNECTOR_PYSPARK}"
    with (cache_directory() / "pyspark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            partial = directory.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(partial)]
            command = [*pip, f"pyspark=={CONNECTOR_PYSPARK}"]
            _run(command, cache_directory(), PIP_SECONDS, f"pip did not bring PySpark {CONNECTOR_PYSPARK}")
            partial.rename(directory)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    there = {"PYTHONPATH": str(directory), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return sys.executable, own | there
