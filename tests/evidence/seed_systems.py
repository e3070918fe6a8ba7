"""The systems that must all work, and the tests that show it: `tests/seed_systems.toml` checked against the tests.

`python tests/evidence/seed_systems.py REPORT.xml…` says, after the runs, which of the named tests did not run and pass.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

__all__ = ["System", "load", "not_shown", "unknown_tests", "without_evidence"]

ROOT = Path(__file__).resolve().parents[2]
REGISTER = ROOT / "tests" / "seed_systems.toml"
TO_COME = "to come"


@dataclass(frozen=True, slots=True)
class System:
    """One row of the register. `part` says where a system that is to come belongs."""

    area: str
    name: str
    behaviour: str
    tests: tuple[str, ...]
    status: str
    part: str


def load(register: Path = REGISTER) -> list[System]:
    """Every row of the register."""
    rows = tomllib.loads(register.read_text(encoding="utf-8"))["system"]
    return [
        System(
            area=row["area"],
            name=row["name"],
            behaviour=row["behaviour"],
            tests=tuple(row.get("tests", ())),
            status=row.get("status", ""),
            part=row.get("part", ""),
        )
        for row in rows
    ]


def without_evidence(systems: list[System]) -> list[str]:
    """Names of the systems that are neither shown by a test nor marked as to come with the part they belong to."""
    return [
        system.name
        for system in systems
        if not (system.tests or (system.status == TO_COME and system.part)) or system.status not in {"", TO_COME}
    ]


def unknown_tests(systems: list[System], root: Path = ROOT) -> list[str]:
    """Tests that the register names and no file has."""
    return [test for system in systems for test in system.tests if not _exists(test, root)]


def _exists(test: str, root: Path) -> bool:
    file, *names = test.split("::")
    path = root / file
    if not path.is_file():
        return False
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in names:
        found = next((node for node in body if getattr(node, "name", None) == name), None)
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        body = found.body
    return bool(names)


def not_shown(systems: list[System], reports: list[Path]) -> list[str]:
    """Tests that the register names and that the JUnit reports do not have as run and passed."""
    passed: set[str] = set()
    failed: set[str] = set()
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"
            (failed if any(case.find(kind) is not None for kind in ("failure", "error", "skipped")) else passed).add(
                name
            )
    return [test for system in systems for test in system.tests if _dotted(test) not in passed - failed]


def _dotted(test: str) -> str:
    file, *names = test.split("::")
    return ".".join([*Path(file).with_suffix("").parts, *names])


def main() -> int:
    """Check the reports named on the command line."""
    systems = load()
    absent = not_shown(systems, [Path(report) for report in sys.argv[1:]])
    for test in absent:
        print(f"named in {REGISTER.name}, but did not run and pass: {test}", file=sys.stderr)
    shown = sum(1 for system in systems if system.tests)
    print(f"{shown} of {len(systems)} systems have tests, {len(systems) - shown} are to come")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
