"""Records as columns in Arrow's memory layout: plain buffers, no object per record, no pyarrow.

Integers are in this machine's byte order, as in Arrow. In a validity bitmap, bit i % 8 of byte i // 8 is set if value i
is not null. https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BinaryColumn", "Columns", "HeaderColumn"]


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Arrow's `binary`, or `utf8` for header keys: value i is data[offsets[i]:offsets[i + 1]].

    `offsets`: int32, one more than values. `validity`: the bitmap, None if no value is null. `nulls`: how many are
    null.
    """

    offsets: Buffer
    data: Buffer
    validity: Buffer | None
    nulls: int


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """Arrow's `list<struct<key: utf8, value: binary>>`: record i has the entries offsets[i] to offsets[i + 1].

    `offsets`: int32, one more than records. `count`: entries of all records. Neither a list, nor an entry, nor a key is
    ever null.
    """

    offsets: Buffer
    count: int
    keys: BinaryColumn
    values: BinaryColumn


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of one batch. `offsets` and `timestamps` (ms) are int64 and never null."""

    count: int
    offsets: Buffer
    timestamps: Buffer
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn
