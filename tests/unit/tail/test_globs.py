"""Globs take what they say, and a walk finds exactly the files that `matches` takes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ingestd.tail.globs import Globs, is_closed

if TYPE_CHECKING:
    from pathlib import Path


def walk(globs: Globs) -> tuple[set[str], dict[str, str]]:
    troubles: dict[str, str] = {}
    return {entry.path for entry in globs.walk(lambda _: None, troubles.setdefault)}, troubles


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.log", "b.txt", "[x].log", "one/a.log", "one/two/a.log", "one/two/b.log", "one/c.gz", ".hidden.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    return tmp_path


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("a.log", {"a.log"}),
        ("*.log", {"a.log", "[x].log"}),
        (".*.log", {".hidden.log"}),
        (".hidden.log", {".hidden.log"}),
        ("[.]*", set()),
        ("**", {"a.log", "b.txt", "[x].log", "one/a.log", "one/two/a.log", "one/two/b.log", "one/c.gz"}),
        ("?.log", {"a.log"}),
        ("[[]x].log", {"[x].log"}),
        ("[!b].txt", set()),
        ("*/a.log", {"one/a.log"}),
        ("**/a.log", {"a.log", "one/a.log", "one/two/a.log"}),
        ("one/**/b.log", {"one/two/b.log"}),
        ("one/**", {"one/a.log", "one/two/a.log", "one/two/b.log", "one/c.gz"}),
        ("o*/t*/*", {"one/two/a.log", "one/two/b.log"}),
    ],
)
def test_a_walk_finds_what_the_glob_matches(tree: Path, glob: str, expected: set[str]) -> None:
    globs = Globs([f"{tree}/{glob}"], [])
    found, _ = walk(globs)
    assert found == {f"{tree}/{name}" for name in expected}
    files = {str(path) for path in tree.rglob("*") if path.is_file()}
    assert {path for path in files if globs.matches(path)} == found


@pytest.mark.parametrize(
    "glob", ["**", "*/a.log", "**/a.log", "**/two/*.log", "one/**", "o*/t*/*", "one/two/a.log", "**/up/**/b.log"]
)
def test_a_walk_below_a_directory_finds_what_the_whole_walk_finds_there(tree: Path, glob: str) -> None:
    (tree / "one" / "two" / "up").symlink_to(tree / "one")
    (tree / "other" / "two").mkdir(parents=True)
    (tree / "other" / "two" / "a.log").touch()
    globs = Globs([f"{tree}/{glob}", f"{tree}/*/two/*.log"], ["*.txt"])
    found, _ = walk(globs)
    for start in ("one", "one/two", "one/two/up", "other", "other/two", "none", "a.log"):
        troubles: dict[str, str] = {}
        below = [entry.path for entry in globs.walk_below(f"{tree}/{start}", lambda _: None, troubles.setdefault)]
        assert sorted(below) == sorted(path for path in found if path.startswith(f"{tree}/{start}/"))
        assert troubles.keys() <= {f"{tree}/one/two/up"}


def test_excludes_match_names_or_paths(tree: Path) -> None:
    found, _ = walk(Globs([f"{tree}/**", f"{tree}/.*"], ["*.gz", f"{tree}/one/**/a.log", ".*"]))
    assert found == {f"{tree}/{name}" for name in ("a.log", "b.txt", "[x].log", "one/two/b.log")}


def test_a_file_that_two_globs_match_is_found_once(tree: Path) -> None:
    entries = list(Globs([f"{tree}/*.log", f"{tree}/a*"], []).walk(lambda _: None, lambda *_: None))
    assert len(entries) == len({entry.path for entry in entries})


def test_a_loop_of_links_ends_and_is_named(tree: Path) -> None:
    (tree / "one" / "two" / "up").symlink_to(tree)
    found, troubles = walk(Globs([f"{tree}/**/b.log"], []))
    assert found == {f"{tree}/one/two/b.log"}
    assert "loop" in troubles[f"{tree}/one/two/up"]


def test_nothing_to_find_is_said(tree: Path) -> None:
    _, troubles = walk(Globs([f"{tree}/none/*.log", f"{tree}/none.log"], []))
    missing = f"the directory {tree}/none is missing"
    assert troubles == {
        f"{tree}/none/*.log": f"no file matches it yet: {missing}",
        f"{tree}/none.log": "no such file",
    }


def test_the_first_directory_that_is_missing_is_named(tree: Path) -> None:
    # All that was said was "no such file".
    (tree / "link").symlink_to(tree / "nowhere")
    globs = [f"{tree}/one/none/deep/a.log", f"{tree}/none/*/a.log", f"{tree}/link/a.log", f"{tree}/o*/none/a.log"]
    _, troubles = walk(Globs(globs, []))
    assert troubles == {
        globs[0]: f"no such file: the directory {tree}/one/none is missing",
        globs[1]: f"no file matches it yet: the directory {tree}/none is missing",
        globs[2]: f"no such file: the directory {tree}/link leads nowhere",
        globs[3]: "no file matches it yet",
    }


def test_braces_that_match_nothing_are_said_to_be_no_wildcards(tree: Path) -> None:
    # In a shell they would match. All that was said was "no file matches it yet".
    globs = [f"{tree}/*.{{log,txt}}", f"{tree}/{{a,b}}.log", f"{tree}/{{a}}.log"]
    _, troubles = walk(Globs(globs, []))
    assert troubles == {
        globs[0]: "no file matches it yet; {log,txt} is not expanded as in a shell: write a path for each",
        globs[1]: "no such file; {a,b} is not expanded as in a shell: write a path for each",
        globs[2]: "no such file",
    }
    (tree / "x.{log,txt}").touch()
    assert walk(Globs(globs[:1], [])) == ({f"{tree}/x.{{log,txt}}"}, {})


def test_a_class_that_is_not_closed_is_known() -> None:
    for glob in ("/x/[ab.log", "/x/[]ab.log", "/x/[!]b.log", "/[x]/[/a].log", "[a"):
        assert not is_closed(glob)
    for glob in ("/x/[!]x]ab.log", "/x/[]]", "/x/[[]a.log", "/x/a].log", "/x/[0-9][0-9]", "/x/*"):
        assert is_closed(glob)


def test_each_directory_is_entered_before_it_is_listed_so_that_it_can_be_watched(tree: Path) -> None:
    entered: list[str] = []

    def enter(directory: str) -> None:
        entered.append(directory)
        (tree / directory / "b.log").write_text("made when it was watched already\n")

    globs = Globs([f"{tree}/**/b.log"], [])
    found = {entry.path for entry in globs.walk(enter, lambda *_: None)}
    assert entered == [os.fspath(tree), f"{tree}/one", f"{tree}/one/two"]
    assert found == {f"{directory}/b.log" for directory in entered}


def test_a_directory_that_goes_is_nothing_that_can_not_be_entered_is_trouble(tree: Path) -> None:
    def enter(directory: str) -> None:
        if directory.endswith("/one"):
            raise FileNotFoundError(directory)
        if directory.endswith("/three"):
            raise OSError(errno.EIO, "Input/output error")

    (tree / "three").mkdir()
    troubles: dict[str, str] = {}
    found = {entry.path for entry in Globs([f"{tree}/**/a.log"], []).walk(enter, troubles.setdefault)}
    assert found == {f"{tree}/a.log"}
    assert troubles == {f"{tree}/three": "directory can not be read: Input/output error"}


def test_of_a_directory_that_can_not_be_read_nobody_says_that_it_has_no_such_file(tree: Path) -> None:
    def enter(directory: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", directory)

    troubles: dict[str, str] = {}
    globs = Globs([f"{tree}/one/*.txt", f"{tree}/one/c.log"], [])
    assert not list(globs.walk(enter, troubles.setdefault))
    assert troubles == {f"{tree}/one": "directory can not be read: Permission denied"}


@pytest.mark.parametrize(
    ("glob", "through", "not_through"),
    [
        ("/l/*.log", ["/", "/l"], ["/l/a.log", "/l/a", "/m"]),
        ("/l/*/a.log", ["/l", "/l/one", "/l/two"], ["/l/one/two", "/m"]),
        ("/l/**/a.log", ["/l", "/l/one", "/l/one/two"], ["/m"]),
        ("/l/**", ["/l", "/l/one", "/l/one/two"], ["/m"]),
        ("/l/a?/b/*", ["/l/a1", "/l/a1/b"], ["/l/b", "/l/a1/c"]),
    ],
)
def test_directories_that_a_walk_looks_into(glob: str, through: list[str], not_through: list[str]) -> None:
    globs = Globs([glob], [])
    assert [path for path in through + not_through if globs.leads_through(path)] == [
        path for path in through if path != "/"
    ]
