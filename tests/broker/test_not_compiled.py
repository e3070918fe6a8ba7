"""A daemon and tools that were installed without a C compiler: they say so once, in the words of their log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from embedded.process import BrokerProcess

SECONDS = 60


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of processes in which there is no compiled module, and in their children."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['ingestd.records._encode_compiled'] = None\n")
    return {**os.environ, "PYTHONPATH": str(site)}


def test_of_a_daemon_with_four_processes_one_says_it_as_a_line_of_its_log(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Each of them had said it, as text between the JSON."""
    (tmp_path / "a.log").write_text("line\n" * 10)
    (tmp_path / "ingestd.toml").write_text(
        f"""
        [daemon]
        state = "{tmp_path}/state"
        http = ""
        workers = 2
        [clusters.local]
        embedded = true
        [tails.access]
        paths = ["{tmp_path}/*.log"]
        cluster = "local"
        topic = "access"
        """
    )
    ran = subprocess.run(
        [sys.executable, "-m", "ingestd", "run", "--once", str(tmp_path / "ingestd.toml")],
        capture_output=True,
        env=environment,
        timeout=SECONDS,
        check=True,
    )
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    said = [event for event in events if "plain Python" in event["event"]]
    assert [(event["level"], event["process"]) for event in said] == [("warning", "supervisor")]


def test_a_tool_says_it_on_a_line(embedded: BrokerProcess, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "ingestd", "topics", "list", "-b", embedded.servers, "--output", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=True)
    (line,) = ran.stderr.splitlines()
    assert "plain Python" in line
    json.loads(ran.stdout)
