"""Picks the hot loops: the compiled ones, or those in Python if a module was not built. That is logged once."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from ingestd import imports

_missing = ""

if TYPE_CHECKING:
    from ingestd.records import _decode_plain as _decode
    from ingestd.records import _encode_plain as _encode
    from ingestd.records import _intake_plain as _intake
else:
    try:
        from ingestd.records import _decode_compiled as _decode
        from ingestd.records import _encode_compiled as _encode
        from ingestd.records import _intake_compiled as _intake
    except ImportError as error:
        from ingestd.records import _decode_plain as _decode
        from ingestd.records import _encode_plain as _encode
        from ingestd.records import _intake_plain as _intake

        _missing = str(error)

__all__ = [
    "BUDGET_SPENT",
    "COMPILED",
    "FINISHED",
    "SLOT_FULL",
    "Allowance",
    "ColumnScatter",
    "Record",
    "RecordBuffer",
    "RecordCursor",
    "RecordIntake",
    "RecordStream",
    "SendResults",
    "TopicIntake",
    "allocate",
    "encode_lines",
    "line_ends",
    "make_records",
    "murmur2",
    "parse_records",
    "partition_column",
    "partition_keys",
    "say_if_plain",
    "scatter_lines",
    "tell_results",
]

COMPILED: Final[bool] = _encode.NAME == "compiled"
"""Whether the compiled loops are in use."""

FINISHED = _encode.FINISHED
SLOT_FULL = _encode.SLOT_FULL
BUDGET_SPENT = _encode.BUDGET_SPENT

Allowance = _intake.Allowance
SendResults = _intake.SendResults
ColumnScatter = _intake.ColumnScatter
RecordBuffer = _intake.RecordBuffer
RecordCursor = _intake.RecordCursor
RecordIntake = _intake.RecordIntake
TopicIntake = _intake.TopicIntake
tell_results = _intake.tell_results
allocate = _encode.allocate
encode_lines = _encode.encode_lines
line_ends = _encode.line_ends
murmur2 = _encode.murmur2
Record = _decode.Record
RecordStream = _decode.RecordStream
make_records = _decode.make_records
parse_records = _decode.parse_records
partition_column = _intake.partition_column
partition_keys = _encode.partition_keys
scatter_lines = _encode.scatter_lines

_SAID: Final = "INGESTD_SAID_THAT_IT_IS_NOT_COMPILED"
"""The environment variable that tells children that their parent has said so."""


def say_if_plain() -> None:
    """Log that the loops in use are not compiled, if they are not; once, of a process and its children."""
    if not COMPILED and _SAID not in os.environ:
        os.environ[_SAID] = "1"
        logging.getLogger(__name__).warning(
            "ingestd.records works in plain Python, some fifty times slower: a compiled module of it is missing (%s); "
            "install ingestd with a C compiler at hand",
            _missing,
        )


if not imports.own_process:
    say_if_plain()
