from ingestd.records._decode_plain import NAME as NAME
from ingestd.records._decode_plain import parse_records as parse_records
