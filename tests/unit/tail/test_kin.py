"""Kin: what a file is compared with, and what a search may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.tail import kin as kin_module
from ingestd.tail.facts import Copy, Empty, Examined, Plain, Read, Repeated
from ingestd.tail.file_id import FileId
from ingestd.tail.files import Files
from ingestd.tail.generation import Phase
from ingestd.tail.globs import Globs
from ingestd.tail.kin import Families, Kin
from ingestd.tail.known import Sample, Witness
from ingestd.tail.listings import Near
from ingestd.tail.log import Log, Place

if TYPE_CHECKING:
    import pytest

PATH = "/d/app.log"
ROTATED = f"{PATH}.1"


def file(inode: int) -> FileId:
    return FileId(1, inode, inode, f"{inode:x}", "1")


def begin(log: Log, place: Place) -> str:
    witness = Witness.of(Sample.of(place.size, b"x" * place.size))
    (read,) = (each for each in log.step(Examined(place, Plain(0, witness))) if isinstance(each, Read))
    return read.generation.source


def kin_of(*logs: Log, files: Files | None = None) -> Kin:
    kin = Kin({log.path: log for log in logs}, {}, files or Files(), lambda _: None, Globs([], []), once=False)
    for log in logs:
        kin.name(log.path, log.path)
    return kin


def test_what_stands_at_a_logs_path_is_compared_with_what_is_younger_alone() -> None:
    """That one may be a copy, to truncate the log next. What is older was renamed: the log's file is the next one."""
    log = Log(PATH)
    older, younger = begin(log, Place(ROTATED, file(6), 4, 100)), begin(log, Place(f"{PATH}.2", file(8), 4, 100))
    log.step(Examined(Place(PATH, file(7), 4, 100), Plain(0, None)))
    log._here = file(7)
    compared = [each.source for each in kin_of(log).originals(Place(PATH, file(7), 4, 100))]
    assert older not in compared
    assert compared == [younger]


def test_a_file_that_is_back_is_compared_with_what_is_stored_of_it_and_the_next_one_is_not() -> None:
    """Its disk was mounted after the start, as another device."""
    log = Log(PATH)
    source = begin(log, Place(PATH, file(7), 4, 100))
    log.generations[0].phase, log.generations[0].links = Phase.DONE, 0
    back, new = file(7)._replace(device=2, volume="2"), file(8)
    for each, compared in ((back, [source]), (new, [])):
        log._here = each
        assert [found.source for found in kin_of(log).originals(Place(PATH, each, 4, 100))] == compared


def test_a_log_may_be_the_original_of_what_looks_like_its_rotation() -> None:
    """Its copy, in the making, was met first: it counts as akin, and is waited for."""
    rotated = Log(ROTATED)
    begin(rotated, Place(ROTATED, file(8), 4, 100))
    kin = kin_of(rotated, Log(PATH))
    assert [each.akin for each in kin.originals(Place(PATH, file(7), 4, 100))] == [True]
    assert [each.akin for each in kin.originals(Place("/d/app-5.log", file(7), 4, 100))] == [False]


def test_what_is_known_to_begin_in_another_way_is_no_original() -> None:
    log = Log(PATH)
    sources = [begin(log, Place(f"{PATH}.{number}", file(number), 4, 100)) for number in (1, 2, 3)]
    compared = kin_of(log).originals(Place(f"{PATH}.4", file(7), 4, 100), (), lambda each: each.source == sources[1])
    assert [each.source for each in compared] == [sources[0], sources[2]]


def test_a_log_of_the_same_name_elsewhere_does_not_keep_a_file_waiting() -> None:
    """A new app.log was taken for a copy in the making of another directory's, and rotated away meanwhile, unread."""
    log = Log(PATH)
    begin(log, Place(PATH, file(6), 4, 100))
    akin = {
        path: [each.akin for each in kin_of(log).originals(Place(path, file(7), 4, 100))]
        for path in (f"{PATH}.1", "/d/old/app.log.1", "/e/app.log", "/e/app.log.1", "/d2/app.log", "/app.log.1")
    }
    assert [path for path, found in akin.items() if found == [True]] == [f"{PATH}.1", "/d/old/app.log.1"]
    assert [path for path, found in akin.items() if found == [False]] == [*akin][2:]


def test_among_many_logs_a_file_is_compared_with_what_is_called_like_it_by_now() -> None:
    """A copy was met as a log of its own, app.log.1, and renamed to app.log.3 before it was compressed."""
    logs = [Log(f"{PATH}.{number}") for number in range(1, 10)]
    sources = [begin(log, Place(log.path, file(10 + number), 4, 100)) for number, log in enumerate(logs)]
    (renamed,) = logs[0].generations
    renamed.known = renamed.known._replace(path=f"{PATH}.3")
    compressed = Place(f"{PATH}.3.gz", file(7), 4, 100, codec="gz")
    assert {each.source for each in kin_of(*logs).originals(compressed)} == {sources[0], sources[2]}


def test_all_that_are_alike_have_one_eldest() -> None:
    """They are examined one after the other: a copy is known only if its original was examined before."""
    kin = kin_of(*(Log(f"/d/worker-{number}.log") for number in (3, 1, 2)))
    names = ("worker-1.log", "worker-2.log", "worker-2.log.1", "worker-3-20260101.log.gz")
    assert {kin.eldest(f"/d/{name}") for name in names} == {"/d/worker-1.log"}
    assert kin.eldest("/d/other.log") == "/d/other.log"


def test_where_many_logs_are_called_the_same_those_are_alike_that_are_near_a_file() -> None:
    """Of 40 directories with an app.log each, of which the copies are logs of their own until they are examined."""
    kin = kin_of(*(Log(f"/d/{number}/{name}") for number in range(40) for name in ("app.log", "app.log.1")))
    assert kin.alike("/d/7/app.log.1") == {"/d/7/app.log", "/d/7/app.log.1"}
    assert kin.alike("/d/7/old/app-20261127.log.gz") == {"/d/7/app.log", "/d/7/app.log.1"}
    assert {kin.eldest(f"/d/7/{name}") for name in ("app.log", "app.log.1", "app.log.2")} == {"/d/7/app.log"}
    assert kin.alike("/archive/7/app.log.2.gz") == {"/d/7/app.log", "/d/7/app.log.1"}
    assert kin.alike("/elsewhere/app.log.2") == set()


def test_of_many_logs_with_one_name_each_is_sought_near_its_directory() -> None:
    """What was moved with 40 directories would be looked at for each of 40 searches."""
    logs = [Log(f"/d/{number}/{name}") for number in range(40) for name in ("app.log", "app.log.1")]
    begin(logs[0], Place(logs[0].path, file(6), 4, 100))
    search = kin_of(*logs).search(logs[0], logs[0].generations[0])
    assert search.near == Near("0", ("/d/0",))
    assert not search.others_in
    assert search.part == "0"
    few = logs[:20]
    search = kin_of(*few).search(few[0], few[0].generations[0])
    assert search.near is None
    assert {*search.others_in} == {f"/d/{number}" for number in range(1, 10)}
    assert not search.part


def test_what_a_link_leads_to_is_alike_with_the_log() -> None:
    """However short its name is: it has a second name, perhaps, and its copy beside it has none."""
    kin = kin_of(Log("/d/app.log"))
    kin.name("/l/0.log", "/d/app.log")
    assert {kin.eldest(path) for path in ("/l/0.log", "/l/0.log.1", "/d/app.log.2")} == {"/d/app.log"}


def test_a_file_with_names_of_two_families_makes_them_one() -> None:
    families = Families()
    met = [families.join("a"), families.join("c", "b"), families.join("d"), families.join("b", "a")]
    assert [families.of(each) for each in met] == ["c", "c", "d", "c"]


def test_a_search_may_take_what_seems_to_be_the_copy_of_what_is_sought() -> None:
    """As far as it went it was a copy of another log, with the same header."""
    log, rotated, files = Log(PATH), Log(ROTATED), Files()
    begin(log, Place(PATH, file(7), 4, 100))
    (generation,) = log.generations
    making = Place(ROTATED, file(8), 2, 100)
    rotated.step(Repeated(making, Copy("other", 2, Witness.of(Sample.of(2, b"xx"))), apart=True))
    (repeated,) = rotated.generations
    files.note(None, rotated, repeated)  # type: ignore[arg-type]
    search = kin_of(log, rotated, files=files).search(log, generation)
    assert search.taken(making)
    repeated.known = repeated.known._replace(apart=False)
    assert not search.taken(making), "it waits"
    assert search.taken(making._replace(file=making.file._replace(birth=generation.known.file.birth))), "made before"
    repeated.known = repeated.known._replace(apart=True)
    log.step(Examined(making, Copy(generation.source, 0, sure=False), ROTATED))
    assert not search.taken(making)


def test_a_search_does_not_find_what_is_known_to_be_empty_until_it_is_written_to() -> None:
    """It was found by the search of each log that is called so, and looked at for each, five times."""
    log, other, files = Log(PATH), Log("/e/app.log"), Files()
    begin(log, Place(PATH, file(7), 4, 100))
    empty = Place("/moved/e/app.log.1", file(8), 0, 100)
    other.step(Examined(empty, Empty()))
    files.note(None, other, other.generations[0])  # type: ignore[arg-type]
    search = kin_of(log, other, files=files).search(log, log.generations[0])
    assert search.taken(empty)
    assert not search.taken(empty._replace(size=1))


def test_a_log_that_is_forgotten_is_the_original_of_nothing() -> None:
    kin = kin_of(Log(PATH), Log("/d/app-5.log"))
    kin.name("/e/other-7.log", PATH)
    assert kin.alike("/e/other-8.log") == {PATH}
    kin.unname(PATH)
    kin.unname(PATH)
    assert kin.alike("/e/other-8.log") == set()
    assert kin.alike(ROTATED) == {"/d/app-5.log"}
    kin.unname("/d/app-5.log")
    assert not kin._named
    assert not kin._names


def test_of_the_names_of_a_log_the_last_are_remembered_and_its_own() -> None:
    kin = kin_of(Log(PATH))
    for number in range(1000):
        kin.name(f"/e/{number}/other{number}x.log", PATH)
    assert kin.alike("/d/app.log.1") == kin.alike("/f/other999x.log.1") == {PATH}
    assert not kin.alike("/f/other1x.log.1")
    assert len(kin._named) < 1000


def test_what_names_say_is_asked_once_for_a_log_however_many_generations_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, asked = Log(PATH), []
    for inode in range(100, 300):
        begin(log, Place(f"{PATH}.{inode}", file(inode), 4, 100))
    monkeypatch.setattr(kin_module, "is_rotated_from", lambda *paths: asked.append(paths))
    assert len(kin_of(log).originals(Place(PATH, file(7), 4, 100))) == 200
    assert len(asked) == 1


def test_what_links_that_are_beside_each_other_lead_to_are_other_logs() -> None:
    """The kubelet's: each log leads to a `0.log` of a pod. Files of one pod were read as those of another one."""
    logs = [Log(f"/containers/{name}.log") for name in ("a", "b")]
    ways = {log.path: (f"/pods/{log.path[12]}/0.log",) for log in logs}
    kin = Kin({log.path: log for log in logs}, ways, Files(), lambda _: None, Globs([], []), once=False)
    for log in logs:
        kin.name(log.path, log.path)
        kin.name(ways[log.path][0], log.path)
    begin(logs[0], Place("/pods/a/0.log", file(7), 4, 100))
    others, own = (f"/pods/{name}/0.log.1" for name in ("b", "a"))
    for path, called, akin in ((others, logs[1].path, False), (own, logs[0].path, True)):
        compared = kin.originals(Place(path, file(8), 4, 100), [called])
        assert [each.akin for each in compared] == [akin]
