"""Coverage-guided fuzzing of everything that reads foreign bytes, and its corpus as ordinary tests.

    python tests/fuzz/test_records.py FOUND tests/fuzz/records_corpus -max_total_time=600

needs the extra `fuzz` (atheris) and leaves inputs that reach new branches in the directory FOUND. The plain twin of the
hot loops guides it, since its branches are seen; the compiled one must give the same result for every input.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from zlib import crc32

import pytest

if __name__ == "__main__":
    import atheris

    with atheris.instrument_imports(include=["ingestd.records"]):
        importlib.import_module("ingestd.records.decode")
        importlib.import_module("ingestd.records.message_set")
        importlib.import_module("ingestd.records._decode_plain")
        importlib.import_module("ingestd.records._encode_plain")

from ingestd.errors import CorruptBatch, UnsupportedCodec
from ingestd.records import _decode_compiled, _decode_plain, _encode_compiled, _encode_plain
from ingestd.records.batch import HEADER_BYTES, check_crc, read_header, seal, split_batches
from ingestd.records.codecs import Codec, decompress
from ingestd.records.decode import decode_columns, decode_control, decode_records
from ingestd.records.message_set import batches_of, decode_message_set

CORPUS = Path(__file__).with_name("records_corpus")
LIMIT = 1 << 20


def outcome(call, *arguments, **named):
    """What came of it; None for a refusal. Whatever else is raised is a finding."""
    try:
        return call(*arguments, **named)
    except (CorruptBatch, UnsupportedCodec):
        return None


def batches_as_they_came(data):
    for view in outcome(lambda: list(split_batches(data))) or [memoryview(data)]:
        outcome(check_crc, view)
        outcome(decode_records, view, limit=LIMIT)
        outcome(decode_control, view)


def batch_with_a_sound_header(data):
    """Magic, length and CRC are right, so that what is behind them is reached."""
    if len(data) < HEADER_BYTES:
        return
    made = bytearray(data)
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[16] = 2
    view = memoryview(made)
    seal(view)
    if outcome(read_header, view) is not None:
        check_crc(view)
    columns = outcome(decode_columns, view, limit=LIMIT)
    if columns is not None:
        assert len(decode_records(view, limit=LIMIT)) == columns.count


def records_by_both_twins(data):
    """The first bytes are the number of records, the last offset delta and the kind of timestamp."""
    if len(data) < 3:
        return
    arguments = (data[3:], data[0], data[1], 5, -1 if data[2] & 1 else 7, 9 if data[2] & 2 else None)
    assert outcome(_decode_compiled.parse_records, *arguments) == outcome(_decode_plain.parse_records, *arguments)


def stream_of_a_codec(data):
    """The first byte chooses the codec."""
    if not data:
        return
    plain = outcome(decompress, Codec(1 + data[0] % 4), data[1:], LIMIT)
    assert plain is None or len(memoryview(plain)) <= LIMIT


def lines_by_both_twins(data):
    """The first bytes are the room, the limit and the key; what is written is read, and nothing else is written."""
    if len(data) < 4:
        return
    room, limit, key, raw = data[0] * 8, data[1] * 4, data[2:4] if data[2] & 1 else None, data[4:]
    made, out = {}, {}
    for twin in (_encode_compiled, _encode_plain):
        out[twin] = bytearray(room)
        made[twin] = twin.encode_lines(raw, 0, out[twin], limit, key)
    assert made[_encode_compiled] == made[_encode_plain]
    assert out[_encode_compiled] == out[_encode_plain]
    _, written, count = made[_encode_plain]
    _decode_plain.parse_records(out[_encode_plain][:written], count, count, 0, 0, None)
    assert not any(out[_encode_compiled][written:])


def messages_as_they_came(data):
    outcome(lambda: list(decode_message_set(data, limit=LIMIT)))
    for batch in outcome(lambda: list(batches_of(data, limit=LIMIT))) or ():
        outcome(decode_records, batch, limit=LIMIT)


def messages_with_sound_checksums(data):
    """Each message's magic, length and CRC are made right, so that what is behind them is reached, and read alike."""
    made, at = bytearray(), 0
    while len(data) - at >= 24:
        magic, length = data[at + 16] % 2, 14 + data[at + 11] % 64
        message = bytearray(data[at : at + 12 + length])
        length = len(message) - 12
        message[8:12] = length.to_bytes(4, "big")
        message[16] = magic
        message[12:16] = crc32(message[16:]).to_bytes(4, "big")
        made += message
        at += 12 + length
    records = outcome(lambda: list(decode_message_set(made, limit=LIMIT)))
    if records is not None:
        batches = list(batches_of(made, limit=LIMIT))
        assert [record for batch in batches for record in decode_records(batch, limit=LIMIT)] == records
        for batch in batches:
            check_crc(batch)


WAYS = (
    batches_as_they_came,
    batch_with_a_sound_header,
    records_by_both_twins,
    stream_of_a_codec,
    lines_by_both_twins,
    messages_as_they_came,
    messages_with_sound_checksums,
)


def one_input(data):
    """The first byte chooses the way."""
    if data:
        WAYS[data[0] % len(WAYS)](data[1:])


@pytest.mark.parametrize("seed", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_the_corpus_is_read_or_refused(seed):
    one_input(seed.read_bytes())


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
