"""What failed, by the reports of test runs: the names, and the first lines of what was said. CI ends with it."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

WIDTH = 160
LINES = 3


def main(reports: list[str]) -> None:
    """Print the failures of some JUnit reports, a few lines each."""
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            for found in (*case.iterfind("failure"), *case.iterfind("error")):
                print(
                    f"FAILED {case.get('classname')}::{case.get('name')}  ({float(case.get('time', 0)):.0f} s)"[:WIDTH]
                )
                said = (found.get("message") or "").splitlines()
                print(*(f"    {line[:WIDTH]}" for line in said[:LINES]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
