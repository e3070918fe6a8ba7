"""Without the compiled module the plain one is used, which is said once."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["ingestd.records._decode_compiled"] = None
from ingestd.records import builder, decode, lines, loops
from ingestd.records.codecs import Codec, Compression
assert not loops.COMPILED
out = memoryview(bytearray(1 << 20))
for codec in Codec:
    _, (batch,) = lines.LineEncoder(Compression(codec), 1 << 16).encode(b"line\\n" * 500, out, timestamp_ms=0)
    assert [record.value for record in decode.decode_records(out[: batch.length])] == [b"line"] * 500
"""


def test_without_the_compiled_module_all_works_and_the_reason_is_said_once():
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("plain Python") == 1
    assert "compiler" in ran.stderr
