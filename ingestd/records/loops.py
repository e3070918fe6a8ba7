"""The hot loops in use: compiled where the module could be built, in Python otherwise, which is logged once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ingestd.records import _plain as _chosen
else:
    try:
        from ingestd.records import _compiled as _chosen
    except ImportError as error:
        from ingestd.records import _plain as _chosen

        logging.getLogger(__name__).warning(
            "ingestd.records works in plain Python, some fifty times slower: its compiled module is missing (%s); "
            "install ingestd with a C compiler at hand",
            error,
        )

__all__ = [
    "BUDGET_SPENT",
    "COMPILED",
    "FINISHED",
    "SLOT_FULL",
    "RecordBuffer",
    "allocate",
    "encode_lines",
    "line_ends",
    "murmur2",
    "parse_records",
    "partition_keys",
    "scatter_lines",
]

COMPILED: Final[bool] = _chosen.NAME == "compiled"
"""Whether the fast loops are in use."""

FINISHED = _chosen.FINISHED
SLOT_FULL = _chosen.SLOT_FULL
BUDGET_SPENT = _chosen.BUDGET_SPENT

RecordBuffer = _chosen.RecordBuffer
allocate = _chosen.allocate
encode_lines = _chosen.encode_lines
line_ends = _chosen.line_ends
murmur2 = _chosen.murmur2
parse_records = _chosen.parse_records
partition_keys = _chosen.partition_keys
scatter_lines = _chosen.scatter_lines
