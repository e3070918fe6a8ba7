"""The register of systems that must all work names a test for each, or says where it is to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seed_systems import System, load, not_shown, unknown_tests, without_evidence

if TYPE_CHECKING:
    from pathlib import Path

SYSTEMS_OF_THE_MISSION = 38


def system(*tests: str, status: str = "", part: str = "") -> System:
    return System(area="area", name="name", behaviour="behaviour", tests=tests, status=status, part=part)


def test_no_system_was_dropped_from_the_register() -> None:
    systems = load()
    assert len(systems) == SYSTEMS_OF_THE_MISSION
    assert len({(each.area, each.name) for each in systems}) == SYSTEMS_OF_THE_MISSION


def test_every_system_names_a_test_or_the_part_it_is_to_come_with() -> None:
    assert without_evidence(load()) == []


def test_every_test_that_the_register_names_exists() -> None:
    assert unknown_tests(load()) == []


def test_a_system_without_test_and_without_a_part_to_come_with_is_refused() -> None:
    assert without_evidence([system()]) == ["name"]
    assert without_evidence([system(status="to come")]) == ["name"]
    assert without_evidence([system(status="done", part="some")]) == ["name"]
    assert without_evidence([system(status="to come", part="some"), system("tests/a.py::b")]) == []


def test_a_test_that_no_file_has_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("async def test_one(): ...\nclass TestTwo:\n    def test_three(self): ...\n")
    here = ("test_a.py::test_one", "test_a.py::TestTwo::test_three")
    gone = ("test_a.py", "test_a.py::test_two", "test_a.py::TestTwo::test_four", "test_b.py::test_one")
    assert unknown_tests([system(*here, *gone)], tmp_path) == list(gone)


def test_a_test_that_did_not_run_or_did_not_pass_shows_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.a.test_a" name="test_passed[one]"/>
        <testcase classname="tests.a.test_a" name="test_failed_once[one]"/>
        <testcase classname="tests.a.test_a" name="test_failed_once[two]"><failure/></testcase>
        <testcase classname="tests.a.test_a" name="test_skipped"><skipped/></testcase>
        </testsuite></testsuites>"""
    )
    named = [f"tests/a/test_a.py::test_{name}" for name in ("passed", "failed_once", "skipped", "never_ran")]
    assert not_shown([system(*named)], [report]) == named[1:]
