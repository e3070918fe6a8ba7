"""Every load test one after the other, or those named. Results lie in `load-tests/results`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOAD_TESTS = (
    "pieces",
    "compare",
    "produce",
    "consume",
    "scaling",
    "latency",
    "idle",
    "rotating",
    "group",
    "mirror",
    "spark",
    "spark_executors",
    "broker",
)
SIZED = {"broker", "compare", "consume", "mirror", "produce", "scaling", "spark", "spark_executors"}
"""Those whose input has a size to choose."""


def main() -> int:
    """Run them; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"of: {', '.join(LOAD_TESTS)}; default: all")
    parser.add_argument("--size", help="of the input, where there is one to choose; official: 2GB")
    parser.add_argument("--fluent-bit", metavar="PATH", help="of a fluent-bit binary: `compare` runs it as well")
    given = parser.parse_args()
    unknown = sorted(set(given.tests) - set(LOAD_TESTS))
    if unknown:
        parser.error(f"no such load test: {', '.join(unknown)} (there are: {', '.join(LOAD_TESTS)})")
    failed = []
    for name in given.tests or LOAD_TESTS:
        print(f"== {name}", flush=True)
        options = ["--size", given.size] if given.size and name in SIZED else []
        if given.fluent_bit and name == "compare":
            options += ["--fluent-bit", given.fluent_bit]
        if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options], check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
