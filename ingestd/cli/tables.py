"""Rows of values as lines of aligned columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["table"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The header and the rows, each column as wide as its widest cell, numbers to the right; None is a dash."""
    body = [list(row) for row in rows]
    cells = [list(header), *([_text(cell) for cell in row] for row in body)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [{type(row[column]) for row in body} - {type(None)} == {int} for column in range(len(header))]
    for row in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def _text(cell: object) -> str:
    return "-" if cell is None else str(cell)
