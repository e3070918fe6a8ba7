"""`make demo`, smaller: the program that people run first ends well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "load-tests" / "demo.py"


def test_the_demo_finds_every_line() -> None:
    answer = subprocess.run(
        [sys.executable, DEMO, "--size", "8MB"], capture_output=True, text=True, timeout=150, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 missing, 0 damaged, 0 out of order" in answer.stdout
    assert answer.stdout.count("rotated: ") == 3
    assert answer.stdout.count("killed: worker ") == 1
