"""What every process pays for importing ingestd: workers are many, and start-up counts in every benchmark."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = ("hypothesis", "aiohttp", "pyspark", "pyarrow", "click", "rich", "prometheus_client", "pytest", "pydantic")


@pytest.mark.parametrize("module", ["ingestd.client.client", "ingestd.producer.producer", "ingestd.consumer.consumer"])
def test_the_client_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(sorted({{name.partition('.')[0] for name in sys.modules}} & {set(HEAVY)}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_line_is_read_without_anything_heavy_but_click() -> None:
    # typer 0.29 built a pydantic adapter for each parameter: 90 ms of CPU before the first line of each verb.
    program = (
        "import sys; from ingestd.cli.main import main; main(['topics', 'list', '--help']); "
        f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & {set(HEAVY)}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['click']"


@pytest.mark.parametrize("module", ["ingestd.daemon.worker", "ingestd.daemon.supervisor", "ingestd.cli.run"])
def test_no_process_of_a_daemon_imports_what_it_may_do_without(module: str) -> None:
    """A live view, an HTTP endpoint and its metrics are not always wanted; kio's reader is the supervisor's alone."""
    spared = {"pydantic", "rich", "pygments", "hypothesis", "prometheus_client", "aiohttp", "kio.serial"}
    program = f"import sys, {module}; print(sorted({spared} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_configuration_of_mirrors_imports_nothing_of_tails_nor_what_packages_say_of_themselves(
    tmp_path: Path,
) -> None:
    clusters = "".join(f'[clusters.{name}]\nbootstrap = ["{name}:9092"]\n' for name in ("east", "west"))
    file = tmp_path / "mirror.toml"
    file.write_text(clusters + '[mirrors.one]\nsource = "east"\ntarget = "west"\ntopics = ["t"]\n')
    program = (
        "import sys, pathlib; from ingestd.cli.configured import load_configuration; "
        f"load_configuration(pathlib.Path({str(file)!r})); "
        "print('ingestd.tail.route' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "module",
    ["ingestd.daemon.worker", "ingestd.producer.producer", "ingestd.consumer.consumer", "ingestd.broker.server"],
)
def test_no_process_reads_the_versions_of_packages_when_it_starts(module: str) -> None:
    program = f"import sys, {module}; print(sorted({{'importlib.metadata', 'email', 'argparse'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "program", ["import ingestd", "from ingestd.cli.main import main; main(['produce', '--help'])"]
)
def test_only_who_reads_a_configuration_file_imports_pydantic(program: str) -> None:
    program = f"import sys; {program}; print('pydantic' in sys.modules or 'pydantic_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_process_that_tells_spark_the_columns_imports_neither_consumer_nor_producer_nor_administration() -> None:
    """Spark starts one for each `load`. Importing all took half a second each time."""
    spared = {"ingestd.consumer.consumer", "ingestd.producer.settings", "ingestd.client.admin", "pyarrow.compute"}
    asked = "IngestdDataSource({'kafka.bootstrap.servers': 'a:1', 'subscribe': 't'}).schema()"
    program = f"import sys; from ingestd.spark.source import *; {asked}; print(sorted({spared} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_process_that_plans_for_spark_imports_neither_producer_nor_administration() -> None:
    """Spark starts one for each query."""
    spared = {"ingestd.producer.settings", "ingestd.client.admin", "pyarrow.compute"}
    planned = "import ingestd.spark.source, ingestd.spark.planner, ingestd.spark.planning, ingestd.spark.stream"
    program = f"import sys; {planned}; print(sorted({spared} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
