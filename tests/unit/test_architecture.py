"""What ARCHITECTURE.md and the READMEs of the rooms name is there: files, tests, headings, names of the code."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PAGES = [ARCHITECTURE, ROOT / "tests" / "README.md", *sorted((ROOT / "ingestd").rglob("README.md"))]
ROOMS = sorted(path.parent for path in (ROOT / "ingestd").glob("*/__init__.py"))

MOST_LINES, LONGEST_LINE = 260, 110
"""What can be read in twenty minutes."""

FILE = re.compile(r"[\w./-]+\.(?:py|pyx|pxd|md|toml|java)")
DIRECTORY = re.compile(r"\.?[\w-]+(?:/[\w-]+)+/?|(?:tests|load-tests|ingestd)/?")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
TEST = re.compile(r"test_\w+")

PYTHON = [path for top in ("ingestd", "tests", "load-tests") for path in sorted((ROOT / top).rglob("*.py"))]
CYTHON = sorted((ROOT / "ingestd").rglob("*.pyx"))
ELSEWHERE = {"__globPaths__", "forbidden_modules", "name_to_handle_at", "readdir"}
"""Names in code spans that are not of the code: an option of Spark's, a key of pyproject.toml, system calls."""


def spans(page: Path) -> list[str]:
    """The code spans of a page, but for code blocks, and for those where NAME stands for a name to choose."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [span for span in re.findall(r"`([^`\n]+)`", text) if "NAME" not in span]


def unknown_paths(page: Path) -> list[str]:
    """What looks like a path and is none: from the root, from the page, or, for a name alone, below the page."""
    named = [span for span in spans(page) if FILE.fullmatch(span) or DIRECTORY.fullmatch(span)]
    places = [ROOT, page.parent, ROOT / "ingestd", ROOT / "tests"]

    def is_there(path: str) -> bool:
        below = page.parent is not ROOT and "/" not in path and any(page.parent.rglob(path))
        return below or any((place / path).exists() for place in places)

    return [path for path in named if not is_there(path)]


def is_module(dotted: str) -> bool:
    """Whether there is a module or package of this name."""
    path = ROOT / dotted.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def imports_of(node: ast.AST) -> Iterator[str]:
    """What a module imports, at its start or later; not what only its annotations need."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (name for other in child.orelse for name in imports_of(other))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield whole if is_module(whole) else str(child.module)
        else:
            yield from imports_of(child)


@pytest.fixture(scope="module")
def names() -> dict[str, set[Path]]:
    """Every name in the code, and the files that have it."""
    found: dict[str, set[Path]] = defaultdict(set)
    for path in PYTHON:
        with path.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.NAME:
                    found[token.string].add(path)
    for path in CYTHON:
        for word in re.findall(r"\w+", path.read_text()):
            found[word].add(path)
    return found


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """Every test function."""
    trees = [ast.parse(path.read_text()) for path in PYTHON if path.name.startswith("test_")]
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, defined)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_on_a_page_is_there(page: Path) -> None:
    assert unknown_paths(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        file, _, heading = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        lines = there.read_text().splitlines() if heading else []
        headings = {re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines}
        assert not heading or heading in headings, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_is_one_of_the_code(page: Path, names: dict[str, set[Path]], tests: set[str]) -> None:
    unknown = []
    for span in spans(page):
        if not NAME.fullmatch(span) or FILE.fullmatch(span) or span in ELSEWHERE:
            continue
        first, *rest = span.split(".")
        if TEST.fullmatch(first):
            known = first in tests
        elif rest and not first[0].isupper():
            known = first != "ingestd" or is_module(span)
        else:  # of a class and what belongs to it, one file has both
            known = bool(set.intersection(*(names.get(part, set()) for part in (first, *rest))))
        if not known:
            unknown.append(span)
    assert unknown == []


def test_every_room_is_on_the_map() -> None:
    text = ARCHITECTURE.read_text()
    assert [room.name for room in ROOMS if f"`ingestd/{room.name}`" not in text] == []


def test_no_import_closes_a_circle() -> None:
    paths = sorted((ROOT / "ingestd").rglob("*.py"))
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    graph = {name: set(imports_of(ast.parse(path.read_text()))) & modules.keys() for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises a `CycleError` that has the circle


def test_the_architecture_is_read_in_twenty_minutes() -> None:
    lines = ARCHITECTURE.read_text().splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > LONGEST_LINE and not line.startswith("|")] == []
