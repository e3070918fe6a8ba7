"""What we tell people to begin with is right."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingestd.cli.configured import load_configuration
from ingestd.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("example", sorted((ROOT / "config").glob("*.toml")), ids=lambda path: path.name)
def test_an_example_configuration_is_good(example: Path) -> None:
    configuration = load_configuration(example)
    assert configuration.routes or configuration.pipelines


def test_examples_are_listed_and_written_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 0
    listed = capsys.readouterr().out
    for file in (ROOT / "config").glob("*.toml"):
        assert f"\n{file.stem} " in listed
        assert main(["example", file.stem]) == 0
        assert capsys.readouterr().out == file.read_text()
    assert main(["example", "tials"]) == 2
    assert "example 'tials': expected one of access-logs, embedded, " in capsys.readouterr().err


@pytest.mark.parametrize("example", sorted((ROOT / "tests/examples").glob("*.py")), ids=lambda path: path.stem)
def test_a_program_without_arguments_says_what_it_takes(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`main() missing 2 required positional arguments` was all that a newcomer saw."""
    monkeypatch.setattr(sys, "argv", [str(example)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(example), run_name="__main__")
    assert f"`python {example.name} BOOTSTRAP " in str(ended.value)


@pytest.mark.peers
def test_systemd_is_content_with_the_unit() -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "systemd-analyze is in Debian's package `systemd`"
    unit = ROOT / "systemd" / "ingestd.service"
    answer = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
