"""The checksum is the package's, whether it is imported or not."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
import pytest

from ingestd.records.checksum import crc32c

CHECK = 0xE3069283
"""Of the digits 1 to 9 (RFC 3720, the check value of CRC-32C)."""


@pytest.mark.parametrize("before", ["", "import crc32c; ", "import sys; sys.path_importer_cache.clear(); "])
def test_the_check_value_comes_out_in_whatever_order_things_are_imported(before: str) -> None:
    program = f"{before}from ingestd.records.checksum import crc32c; print(crc32c(b'123456789')); import crc32c"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == CHECK


def test_it_goes_on_from_a_checksum() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == package.crc32c(b"123456789") == CHECK
