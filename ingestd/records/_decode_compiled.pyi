from ingestd.records._decode_plain import NAME as NAME
from ingestd.records._decode_plain import Record as Record
from ingestd.records._decode_plain import RecordStream as RecordStream
from ingestd.records._decode_plain import make_records as make_records
from ingestd.records._decode_plain import parse_records as parse_records
