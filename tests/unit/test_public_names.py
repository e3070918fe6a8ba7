"""What `from ingestd import …` gives: every name that is promised, found where type checkers find it."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ingestd
from ingestd import errors

NAMES = sorted(set(ingestd.__all__) - {"__version__"})
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "tests" / "examples").glob("*.py"))


def as_type_checkers_see_it() -> dict[str, str]:
    """The module that each name is imported from in the stub."""
    stub = ast.parse(Path(ingestd.__file__).with_suffix(".pyi").read_text())
    imports = [part for part in stub.body if isinstance(part, ast.ImportFrom)]
    return {alias.asname: imported.module for imported in imports for alias in imported.names}


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there_where_type_checkers_look_for_it(name: str) -> None:
    home = importlib.import_module(as_type_checkers_see_it()[name])
    assert getattr(ingestd, name) is getattr(home, name)
    assert name in home.__all__
    assert name in dir(ingestd)


def test_nothing_is_promised_twice_or_hidden() -> None:
    assert sorted(as_type_checkers_see_it()) == NAMES


def test_every_error_is_among_them() -> None:
    raised = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert raised <= set(NAMES)


def imported_modules(program: str) -> set[str]:
    """The modules of the package that a program imports from."""
    found: set[str] = set()
    for part in ast.walk(ast.parse(program)):
        if isinstance(part, ast.ImportFrom):
            found.add(part.module or "")
        elif isinstance(part, ast.Import):
            found.update(alias.name for alias in part.names)
    return {module for module in found if module.partition(".")[0] == "ingestd"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_imports_from_the_package_alone(example: Path) -> None:
    assert imported_modules(example.read_text()) == {"ingestd"}


def test_so_does_the_readme() -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # The package imports no Spark, so what registers the data source has a place of its own. So has what tests use.
    modules = {module for program in programs for module in imported_modules(program)}
    assert modules == {"ingestd", "ingestd.spark", "ingestd.testing"}


def test_an_unknown_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="'ingestd' has no attribute 'Nonsense'"):
        ingestd.Nonsense  # noqa: B018


def test_a_name_is_imported_when_it_is_asked_for_and_no_sooner() -> None:
    program = "import sys, ingestd; before = 'ingestd.client.client' in sys.modules; ingestd.Client; print(before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
