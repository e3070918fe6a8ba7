"""What tests make once and keep in the user's cache.

Downloads: Apache Kafka's jars, by Maven, found again by the content of their pom; and an older PySpark. Made here:
classes as a JVM has them in memory; and a directory for Spark whose Python processes take PySpark from where it is
installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from harness.programs import program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["cache_directory", "class_archive", "connector_pyspark", "kafka_jars", "kept", "start_spark_sooner"]

POM = Path(__file__).resolve().parent.parent / "pom.xml"
MAVEN_SECONDS = 300
PIP_SECONDS = 500
SPARK_SECONDS = 200
CONNECTOR_PYSPARK = "4.0.0"
"""The newest whose connector's jars are all to be had."""

_USING_SPARK = """\
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.range(1000).selectExpr("id % 7 as key").groupBy("key").count().collect()
session.stop()
"""


def cache_directory() -> Path:
    """Where downloads are kept between runs: `$XDG_CACHE_HOME/ingestd`, or `~/.cache/ingestd`."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(home) / "ingestd"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def kept(thing: Path, make: Callable[[Path], object]) -> Path:
    """What is made once, and found at this path from then on. `make` is given the path at which it is to make it.

    Several processes may call this at once: one makes it, the others wait.
    """
    if not thing.exists():
        with thing.with_name(f"{thing.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not thing.exists():
                unfinished = thing.with_name(f"{thing.name}.partial")
                shutil.rmtree(unfinished, ignore_errors=True)
                make(unfinished)
                unfinished.rename(thing)
    return thing


def kafka_jars(pom: Path = POM) -> Path:
    """The directory with all jars of a release of Apache Kafka. Fetches them if this pom never was fetched."""
    content = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return kept(cache_directory() / f"kafka-{content}", partial(_fetch, pom))


def class_archive(jars: Path) -> Path:
    """Where the classes of a directory of jars are kept as this JVM has them in memory, if somebody has made that.

    With it, a node's start takes 2.4 CPU seconds in place of 4.3. It is of no use to another JVM, or with other jars.
    """
    java = Path(program("java")).resolve()
    return jars.with_name(f"{jars.name}-{java.stat().st_mtime_ns:x}.jsa")


def start_spark_sooner() -> None:
    """Have this process and its children start Spark's JVMs in half the time, and their Python processes in a third.

    A JVM gets one compiler instead of two, and an archive of Spark's classes as `class_archive` is one of Kafka's. A
    Python process takes PySpark from where it is installed, compiled: Spark's own directory has a zip of it, which each
    process would compile. Spark waits ten seconds for a new process; on a busy machine, compiling takes longer.
    """
    pyspark = distribution("pyspark")
    installed = Path(str(pyspark.locate_file("pyspark")))
    name = hashlib.sha256(f"{installed} {pyspark.version}".encode()).hexdigest()[:12]

    def link(directory: Path) -> None:
        directory.mkdir()
        for each in installed.iterdir():
            if each.name != "python":
                (directory / each.name).symlink_to(each)

    os.environ["SPARK_HOME"] = home = str(kept(cache_directory() / f"spark-{name}", link))
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"

    def archive(path: Path) -> None:
        options = {"SPARK_SUBMIT_OPTS": f"{quick} -XX:ArchiveClassesAtExit={path}"}
        command = [sys.executable, "-c", _USING_SPARK]
        _run(command, cache_directory(), SPARK_SECONDS, "Spark does not run", os.environ | options)

    os.environ["SPARK_LAUNCHER_OPTS"] = quick
    archived = kept(class_archive(Path(home)), archive)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{quick} -XX:SharedArchiveFile={archived}"


def _fetch(pom: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory() as project:
        shutil.copy(pom, f"{project}/pom.xml")
        command = [program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
        _run(command, Path(project), MAVEN_SECONDS, "Maven did not bring Apache Kafka")


def _run(
    command: list[str], place: Path, seconds: float, failure: str, environment: Mapping[str, str] | None = None
) -> None:
    done = subprocess.run(
        command, cwd=place, env=environment, timeout=seconds, check=False,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{failure}:\n{done.stdout}{done.stderr}")


def connector_pyspark() -> tuple[str, dict[str, str]]:
    """A Python, and the environment in which it has the PySpark that Spark's own Kafka connector is for.

    That is a release of its own (`load-tests/connector/pom.xml`), beside the one which this Python has.
    """

    def install(directory: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory)]
        command = [*pip, f"pyspark=={CONNECTOR_PYSPARK}"]
        _run(command, cache_directory(), PIP_SECONDS, f"pip did not bring PySpark {CONNECTOR_PYSPARK}")

    directory = kept(cache_directory() / f"pyspark-{CONNECTOR_PYSPARK}", install)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    there = {"PYTHONPATH": str(directory), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return sys.executable, own | there
