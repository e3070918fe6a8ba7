"""The judge of the fault tests finds what is missing, foreign, out of order or doubled, and nothing else."""

from __future__ import annotations

from harness.written import Written


def written() -> Written:
    lines = Written()
    lines.add("a", [b"a0", b"a1", b"a2"])
    lines.add("b", [b"b0", b"b1"])
    return lines


def test_all_lines_in_order_of_each_file_are_right_however_files_and_partitions_mix() -> None:
    delivered = written().compare({0: [b"b0", b"a0", b"a2"], 1: [b"a1", b"b1"]})
    delivered.check(duplicates=False)


def test_a_missing_line_is_named_by_file_and_number() -> None:
    assert written().compare({0: [b"a0", b"a2", b"b0", b"b1"]}).missing == [("a", 1)]


def test_a_record_that_is_no_line_is_foreign() -> None:
    assert written().compare({0: [b"a0", b"a"]}).foreign == [b"a"]


def test_a_line_behind_a_later_one_of_its_file_is_out_of_order() -> None:
    assert written().compare({0: [b"a1", b"a0", b"a2"]}).disordered == [(0, "a", 0)]


def test_lines_sent_again_are_duplicates_and_not_out_of_order() -> None:
    delivered = written().compare({0: [b"a0", b"a1", b"a0", b"a1", b"a2", b"b0", b"b1"]})
    assert delivered.duplicates == 2
    delivered.check(duplicates=True)


def test_a_line_that_came_in_two_partitions_is_a_duplicate() -> None:
    assert written().compare({0: [b"a0"], 1: [b"a0"]}).duplicates == 1


def test_a_line_sent_again_to_another_partition_does_not_count_as_out_of_order() -> None:
    delivered = written().compare({0: [b"a0", b"a1"], 1: [b"a2", b"a0", b"b0", b"b1"]})
    assert delivered.duplicates == 1
    delivered.check(duplicates=True)
