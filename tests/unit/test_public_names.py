"""What `from ingestd import …` gives: every name that is promised, found where type checkers find it."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ingestd

NAMES = sorted(set(ingestd.__all__) - {"__version__"})


def as_type_checkers_see_it() -> dict[str, str]:
    """The module that each name is imported from in the `if TYPE_CHECKING` block."""
    module = ast.parse(Path(inspect.getsourcefile(ingestd)).read_text())
    block = next(part for part in module.body if isinstance(part, ast.If))
    return {alias.name: imported.module for imported in block.body for alias in imported.names}


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there_where_type_checkers_look_for_it(name: str) -> None:
    home = importlib.import_module(as_type_checkers_see_it()[name])
    assert getattr(ingestd, name) is getattr(home, name)
    assert name in dir(ingestd)


def test_nothing_is_promised_twice_or_hidden() -> None:
    assert sorted(as_type_checkers_see_it()) == NAMES


def test_an_unknown_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="'ingestd' has no attribute 'Nonsense'"):
        ingestd.Nonsense  # noqa: B018


def test_a_name_is_imported_when_it_is_asked_for_and_no_sooner() -> None:
    program = "import sys, ingestd; before = 'ingestd.client.client' in sys.modules; ingestd.Client; print(before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
