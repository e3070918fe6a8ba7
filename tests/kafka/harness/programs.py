"""The programs that tests need beside Python: found, or a failure that says how to install them; never a skip.

`python -m harness.programs NAME…` checks several at once and lists all that are missing.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

__all__ = ["HOW_TO_INSTALL", "MissingProgramError", "ingestd", "missing", "program"]

HOW_TO_INSTALL = {
    "java": "apt-get install openjdk-17-jre-headless",
    "javac": "apt-get install openjdk-17-jdk-headless",
    "mvn": "apt-get install maven",
    "kcat": "apt-get install kcat",
    "rsyslogd": "apt-get install rsyslog",
    "omkafka": "apt-get install rsyslog-kafka",
    "promtool": "apt-get install prometheus",
    "systemd-analyze": "apt-get install systemd",
    "go": "Go 1.26 or newer from https://go.dev/dl",
    "setpriv": "apt-get install util-linux",
    "taskset": "apt-get install util-linux",
    "prlimit": "apt-get install util-linux",
    "unshare": "apt-get install util-linux",
    "sh": "apt-get install dash",
    "logrotate": "apt-get install logrotate",
    "svlogd": "apt-get install runit",
}
SYSTEM_DIRECTORIES = ("/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
RSYSLOG_MODULES = "usr/lib/*/rsyslog/omkafka.so"


class MissingProgramError(RuntimeError):
    """A program that the tests need is not on this machine."""


def program(name: str) -> str:
    """The path of a program. Raises `MissingProgramError`, saying how to install it."""
    found = _find(name)
    if found is None:
        raise MissingProgramError(f"{name} is not installed: {HOW_TO_INSTALL.get(name, 'no recipe known')}")
    return found


def ingestd() -> list[str]:
    """The command line that runs ingestd: with this interpreter, or `$INGESTD_PYTHON` (for load tests)."""
    # -P: what is installed counts, not what lies in the current directory.
    return [os.environ.get("INGESTD_PYTHON", sys.executable), "-P", "-m", "ingestd"]


def missing(names: list[str]) -> list[str]:
    """Those of `names` that are not on this machine."""
    return [name for name in names if _find(name) is None]


def _find(name: str) -> str | None:
    if name == "omkafka":
        return next((str(path) for path in Path("/").glob(RSYSLOG_MODULES)), None)
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_DIRECTORIES))


def main() -> int:
    """Check the programs named on the command line."""
    absent = missing(sys.argv[1:])
    for name in absent:
        print(f"missing: {name}: {HOW_TO_INSTALL.get(name, 'no recipe known')}", file=sys.stderr)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
