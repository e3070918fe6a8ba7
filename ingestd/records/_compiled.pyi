"""The hot loops in C. `_plain` has the same names with the same types, and says what they do."""

from ingestd.records._plain import BUDGET_SPENT as BUDGET_SPENT
from ingestd.records._plain import FINISHED as FINISHED
from ingestd.records._plain import NAME as NAME
from ingestd.records._plain import SLOT_FULL as SLOT_FULL
from ingestd.records._plain import RecordBuffer as RecordBuffer
from ingestd.records._plain import allocate as allocate
from ingestd.records._plain import encode_lines as encode_lines
from ingestd.records._plain import line_ends as line_ends
from ingestd.records._plain import parse_records as parse_records
from ingestd.records._plain import scatter_lines as scatter_lines
