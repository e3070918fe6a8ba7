"""On a standalone cluster: how ingestd reaches executors, or does not; and executors that come and go."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from harness.programs import ingestd
from harness.standalone import Standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Servers

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

ROOT = Path(__file__).parents[2]
PARTITIONS, RECORDS = 8, 4_000
RUN_SECONDS = 300
MAKE_SECONDS = 500
NUMBER = "CAST(CAST(value AS STRING) AS BIGINT) AS number"
STEPS = """
import os, sys, time
from pathlib import Path
from pyspark.sql import functions as sql

def _waits(place, batches):
    reached = Path(place, f"reached-{os.getpid()}")
    reached.touch()
    deadline = time.monotonic() + 240
    while not Path(place, "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody opened the gate")
        time.sleep(0.05)
    yield from batches

def gate(rows):
    place = str(Path(__file__).parent)
    return rows.mapInArrow(lambda batches: _waits(place, batches), rows.schema)

def where(rows):
    @sql.udf("interpreter STRING, package STRING", useArrow=False)
    def there(value):
        import ingestd
        return sys.executable, ingestd.__file__
    found = rows.withColumn("there", there("value"))
    return found.select("*", "there.*")
"""
"""Modules of a user: what waits in each task until a file is there; and what runs on executors says where."""
READ = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from ingestd.spark import register
import steps
servers, topic, *settings = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false")
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
register(spark)
from pyspark import cloudpickle
cloudpickle.register_pickle_by_value(steps)
rows = spark.read.format("ingestd").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
read = steps.gate(rows).selectExpr("count(*)", "count(DISTINCT value)").first()
print("read", *read)
spark.stop()
"""
SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}


def documented(kind: str) -> str:
    """The first block of this kind in the chapter of OPERATIONS.md."""
    chapter = (ROOT / "OPERATIONS.md").read_text().partition("\n## Spark on a cluster\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", chapter, re.DOTALL)[0]


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `environment` and `environment.tar.gz`, made as OPERATIONS.md says, of this checkout."""
    directory = tmp_path_factory.mktemp("packed")
    commands = documented("sh")
    assert "'.[executor]'" in commands
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    made = subprocess.run(
        ["sh", "-ec", commands.replace("'.[executor]'", f"'{ROOT}[executor]'")],
        cwd=directory,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=MAKE_SECONDS,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return directory


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """A cluster with one worker, of one core."""
    with Standalone(tmp_path / "spark") as started:
        started.add_worker()
        yield started


@pytest.fixture
def topic(here: Servers) -> str:
    """One with numbers in all of its partitions."""
    name = here.create_topic(partitions=PARTITIONS)
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    for number in range(RECORDS):
        sender.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert sender.flush(60) == 0
    return name


class Driver:
    """A driver as a process, in a directory of its own; what it says."""

    def __init__(self, place: Path, command: list[str], **environment: str) -> None:
        self._place = place
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (place / "said").open("w") as said:
            self._process = subprocess.Popen(
                command,
                cwd=place,
                env=clean | {"SPARK_LOCAL_IP": "127.0.0.1"} | environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def ended(self) -> tuple[int, str]:
        """Its exit status, and all that it has said, when it ends."""
        try:
            status = self._process.wait(RUN_SECONDS)
        finally:
            self._process.kill()
        return status, (self._place / "said").read_text()

    def wait_for(self, processes: int) -> None:
        """Until so many processes of executors, since the start, have reached the gate."""
        deadline = time.monotonic() + RUN_SECONDS / 2
        while len(list(self._place.glob("reached-*"))) < processes:
            assert self._process.poll() is None, (self._place / "said").read_text()
            assert time.monotonic() < deadline, (self._place / "said").read_text()
            time.sleep(0.05)

    def open_gate(self) -> None:
        """Let all tasks go on."""
        (self._place / "go").touch()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run_pipeline(
    place: Path, servers: str, topic: str, master: str, settings: dict[str, str], steps: tuple[str, ...] = ("where",)
) -> Driver:
    """`ingestd pipeline run`, of the topic's numbers into files below `place`."""
    (place / "steps.py").write_text(STEPS)
    table = ", ".join(f'"{name}" = "{value}"' for name, value in (SETTINGS | settings).items())
    named = ", ".join(f'{{ python = "steps:{step}" }}' for step in steps)
    sql = f"SELECT {', '.join([NUMBER, *(['interpreter', 'package'] if 'where' in steps else [])])} FROM source"
    (place / "ingestd.toml").write_text(
        f'[clusters.main]\nbootstrap = ["{servers}"]\n[pipelines.p]\nsql = "{sql}"\nsteps = [{named}]\n'
        f'source = {{ cluster = "main", topics = ["{topic}"] }}\nsink = {{ path = "{place}/out" }}\n'
        f'checkpoint = "{place}/checkpoint"\nmaster = "{master}"\nspark = {{ {table} }}\n'
    )
    return Driver(place, [*ingestd(), "pipeline", "run", "ingestd.toml", "p", "--once"])


def run_read(place: Path, servers: str, topic: str, master: str, python: str, settings: dict[str, str]) -> Driver:
    """A program of a user, with a plain `spark.read`."""
    (place / "steps.py").write_text(STEPS)
    (place / "read.py").write_text(READ)
    named = [f"{name}={value}" for name, value in (SETTINGS | settings | {"spark.master": master}).items()]
    return Driver(place, [sys.executable, "read.py", servers, topic, *named], PYSPARK_PYTHON=python)


def rows(place: Path) -> dict[str, list[Any]]:
    return pq.read_table(place / "out").to_pydict()


def test_a_packed_environment_reaches_the_executors(
    packed: Path, cluster: Standalone, here: Servers, topic: str, tmp_path: Path
) -> None:
    """As OPERATIONS.md shows it: the archive, the interpreter, and where the driver is started."""
    shown = documented("toml")
    for each in ('"spark.archives" = "environment.tar.gz#environment"', '"spark.pyspark.python" = "./environment/bin'):
        assert each in shown
    cluster.add_worker()
    place = tmp_path / "driver"
    place.mkdir()
    for name in ("environment", "environment.tar.gz"):
        (place / name).symlink_to(packed / name)
    archives = {"spark.archives": "environment.tar.gz#environment"}
    interpreter = {"spark.pyspark.python": "./environment/bin/python"}
    status, said = run_pipeline(place, here.servers, topic, cluster.url, archives | interpreter).ended()
    assert status == 0, said
    written = rows(place)
    assert sorted(written["number"]) == list(range(RECORDS))
    workers = str(tmp_path / "spark" / "worker-")
    assert {path.startswith(workers) for path in written["interpreter"] + written["package"]} == {True}
    read = run_read(place, here.servers, topic, cluster.url, interpreter["spark.pyspark.python"], archives)
    read.open_gate()
    status, said = read.ended()
    assert status == 0, said
    assert f"read {RECORDS} {RECORDS}\n" in said


@pytest.mark.parametrize("kind", ["pipeline", "read"])
def test_each_row_counts_once_although_an_executor_is_killed_and_another_one_comes(
    packed: Path, cluster: Standalone, here: Servers, topic: str, tmp_path: Path, kind: str
) -> None:
    place, python = tmp_path / "driver", str(packed / "environment" / "bin" / "python")
    place.mkdir()
    if kind == "pipeline":
        interpreter = {"spark.pyspark.python": python}
        driver = run_pipeline(place, here.servers, topic, cluster.url, interpreter, ("where", "gate"))
    else:
        driver = run_read(place, here.servers, topic, cluster.url, python, {})
    try:
        driver.wait_for(1)
        cluster.kill_executor()
        driver.wait_for(2)
        cluster.add_worker()
        driver.wait_for(3)
        driver.open_gate()
        status, said = driver.ended()
    finally:
        driver.kill()
    assert status == 0, said
    if kind == "pipeline":
        assert sorted(rows(place)["number"]) == list(range(RECORDS))
    else:
        assert f"read {RECORDS} {RECORDS}\n" in said


@pytest.mark.parametrize(
    ("has", "reason"),
    [
        ((), r"No module named 'pyarrow', for ./environment/bin/python where Spark runs it"),
        (
            ("pyarrow", "numpy", "numpy.libs"),
            r"\S*/worker-1/\S*/bin/python on \S+ has no ingestd; expected PYSPARK_PYTHON",
        ),
    ],
    ids=["nothing", "what Spark needs"],
)
def test_an_executor_without_ingestd_is_named(
    packed: Path, cluster: Standalone, here: Servers, topic: str, tmp_path: Path, has: tuple[str, ...], reason: str
) -> None:
    """The driver has planned with an environment that has it. What was sent to the executors is another one."""
    place = tmp_path / "driver"
    place.mkdir()
    (place / "environment").symlink_to(packed / "environment")
    in_path = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["python3", "-m", "venv", "--without-pip", "bare"], cwd=place, env=in_path, timeout=60, check=True)
    (packages,) = place.glob("bare/lib/python*/site-packages")
    (installed,) = (packed / "environment").glob("lib/python*/site-packages")
    for each in has:
        (packages / each).symlink_to(installed / each)
    subprocess.run(["tar", "-C", "bare", "-czf", "environment.tar.gz", "."], cwd=place, timeout=60, check=True)
    settings = {
        "spark.archives": "environment.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.task.maxFailures": "1",
    }
    status, said = run_pipeline(place, here.servers, topic, cluster.url, settings, ()).ended()
    assert status == 1
    assert re.search(f"pipeline p: .*{reason}", said.strip().splitlines()[-1]), said


def test_an_executor_that_is_not_compiled_is_said(
    packed: Path, cluster: Standalone, here: Servers, topic: str, tmp_path: Path
) -> None:
    """A source checkout on its path."""
    place, checkout = tmp_path / "driver", tmp_path / "checkout"
    place.mkdir()
    (installed,) = (packed / "environment").glob("lib/python*/site-packages/ingestd")
    shutil.copytree(installed, checkout / "ingestd", ignore=shutil.ignore_patterns("*.so"))
    python = str(packed / "environment" / "bin" / "python")
    settings = {"spark.pyspark.python": python, "spark.executorEnv.PYTHONPATH": str(checkout)}
    status, said = run_pipeline(place, here.servers, topic, cluster.url, settings).ended()
    assert status == 0, said
    assert said.count("an executor works in plain Python") == 1
    assert f"{checkout}/ingestd/records/loops.py of {python} on " in said
    assert sorted(rows(place)["number"]) == list(range(RECORDS))
