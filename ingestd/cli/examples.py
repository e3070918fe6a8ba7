"""`ingestd example`: the configurations that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["REFERENCE", "example", "examples"]

_DIRECTORY: Final = Path(__file__).resolve().parents[1] / "config"

REFERENCE: Final = _DIRECTORY / "REFERENCE.md"
"""The page with every key."""


def examples() -> Iterator[tuple[str, str]]:
    """The name of each example, with its first sentence."""
    for file in sorted(_DIRECTORY.glob("*.toml")):
        yield file.stem, file.read_text().splitlines()[0].removeprefix("# ")


def example(name: str) -> str:
    """The text of an example. Raises `ConfigurationError` for one that there is not."""
    names = [each for each, _ in examples()]
    if name not in names:
        raise ConfigurationError(f"example {name!r}: expected one of {', '.join(names)}")
    return (_DIRECTORY / f"{name}.toml").read_text()
