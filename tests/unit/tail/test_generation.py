"""Generations of a log: which is found by its source, and by its file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail.file_id import FileId
from ingestd.tail.generation import Generation, Generations, Phase
from ingestd.tail.known import Known


def generation(source: str, inode: int) -> Generation:
    return Generation(source, Known("/d/a", "/d/a", FileId(1, inode)), 0, Phase.READING)


@given(st.lists(st.tuples(st.sampled_from(["append", "insert", "remove", "know"]), st.integers(0, 3), st.integers())))
def test_what_is_found_is_what_a_look_at_all_finds(operations: list[tuple[str, int, int]]) -> None:
    made, plain = Generations(), list[Generation]()
    for number, (operation, inode, at) in enumerate(operations):
        if operation == "append":
            made.append(generation(str(number), inode))
            plain.append(made[-1])
        elif operation == "insert":
            where = at % (len(plain) + 1)
            made.insert(where, generation(str(number), inode))
            plain.insert(where, made[where])
        elif plain and operation == "remove":
            made.remove(plain.pop(at % len(plain)))
        elif plain:
            moved = plain[at % len(plain)]
            made.know(moved, moved.known._replace(file=FileId(1, inode)))
            assert moved.known.file.inode == inode
        assert made == plain
    for each in plain:
        assert made.named(each.source) is each
    assert made.named("none") is None
    for inode in range(5):
        assert [*made.with_inode(inode)] == [each for each in reversed(plain) if each.known.file.inode == inode]
