"""A realistic access log (combined format, about 200 bytes a line): equal bytes for equal seeds, at memory speed.

Every line is unique (a serial number in the query) and compresses as real logs do: what repeats lies 13 MB apart,
beyond the windows of lz4 and of zstd at level 1.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AccessLog", "parse_size", "serial_of", "write_log"]

BLOCK_LINES = 1024
DISTINCT_BLOCKS = 64
LINES_PER_SECOND = 4096
START = datetime(2026, 1, 5, 6, 0, 0, tzinfo=UTC)
SERIAL = re.compile(rb"[?&]ref=([0-9a-f]{10})\b")

BROWSERS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.{}.{} Safari/537.36",
    "Mozilla/5.0 (Linux; Android 14; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.{}.{} Mobile Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/{}E{}.{}",
    "Mozilla/5.0 (X11; Linux x86_64; rv:{0}.0) Gecko/20100101 Firefox/{0}.0",
)
CATEGORIES = ("books", "garden", "kitchen", "music", "outdoor", "paper", "tools", "toys")
STATUSES = (200,) * 44 + (304,) * 6 + (301, 302, 404, 404, 403, 500, 499)


class AccessLog:
    """An endless access log. Two logs of the same seed are equal byte for byte, whatever the sizes asked for."""

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed
        self._templates: list[str] = []
        self._made = 0
        self._rest = b""
        self.lines = 0
        """Lines given until now."""

    def block(self) -> bytes:
        """The next lines, 1,024 or what an earlier call of `blocks` left of them, each with its line feed."""
        block, self._rest = self._rest or self._make(), b""
        self.lines += block.count(b"\n")
        return block

    def blocks(self, size: int) -> Iterator[bytes]:
        """The log in blocks of whole lines, until at least `size` bytes were given (less than one line more)."""
        left = size
        while left > 0:
            block = self.block()
            if len(block) > left:
                end = block.index(b"\n", left - 1) + 1
                block, self._rest = block[:end], block[end:]
                self.lines -= self._rest.count(b"\n")
            left -= len(block)
            yield block

    def _make(self) -> bytes:
        number = self._made // BLOCK_LINES
        if number < DISTINCT_BLOCKS:
            self._templates.append(_template(random.Random(f"{self._seed}/{number}")))
        second = START + timedelta(seconds=self._made // LINES_PER_SECOND)
        values: list[object] = [second.strftime("%d/%b/%Y:%H:%M:%S +0000")] * (2 * BLOCK_LINES)
        values[1::2] = range(self._made, self._made + BLOCK_LINES)
        self._made += BLOCK_LINES
        return (self._templates[number % DISTINCT_BLOCKS] % tuple(values)).encode("ascii")


def serial_of(line: bytes) -> int:
    """The serial number of a line: its index in the log. Raises `ValueError` for a line that no access log has."""
    found = SERIAL.search(line)
    if found is None:
        raise ValueError(f"no serial number in {line[:200]!r}")
    return int(found[1], 16)


def write_log(path: Path, size: int, seed: int = 1) -> int:
    """Write an access log of about `size` bytes; how many lines it has."""
    log = AccessLog(seed)
    lines = 0
    with path.open("wb") as out:
        for block in log.blocks(size):
            out.write(block)
            lines += block.count(b"\n")
    return lines


def _template(choose: random.Random) -> str:
    return "".join(_line(choose) for _ in range(BLOCK_LINES))


def _line(choose: random.Random) -> str:
    host = ".".join(str(choose.randrange(1, 255)) for _ in range(4))
    method = "POST" if choose.random() < 0.06 else "GET"
    status, size = choose.choice(STATUSES), int(choose.lognormvariate(8.5, 1.4))
    return (
        f'{host} - - [%s] "{method} {_path(choose)}?ref=%010x HTTP/1.1" {status} {size} '
        f'"{_referer(choose)}" "{_agent(choose)}"\n'
    )


def _path(choose: random.Random) -> str:
    category = choose.choice(CATEGORIES)
    kind = choose.random()
    if kind < 0.5:
        return f"/{category}/items/{choose.randrange(10_000_000)}"
    if kind < 0.8:
        return f"/static/{category}-{choose.randrange(1 << 32):08x}.{choose.choice(('js', 'css', 'png', 'webp'))}"
    return f"/api/v2/{category}/search/{choose.randrange(1 << 48):012x}"


def _referer(choose: random.Random) -> str:
    if choose.random() < 0.5:
        return "-"
    return f"https://shop.example.com/{choose.choice(CATEGORIES)}/{choose.randrange(1 << 64):016x}"


def _agent(choose: random.Random) -> str:
    if choose.random() < 0.4:
        browser = choose.choice(BROWSERS)
        return browser.format(choose.randrange(90, 130), choose.randrange(4000, 7000), choose.randrange(300))
    device = choose.randrange(1 << 64)
    return f"shop-app/8.{choose.randrange(20)}.{choose.randrange(10)} (android; {device:016x})"


def parse_size(text: str) -> int:
    """Bytes from `200MB`, `2GB`, `64kB` (powers of ten) or a plain number. Raises `ValueError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kB|MB|GB)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"not a size: {text!r} (200MB, 2GB, 64kB or bytes)")
    unit = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}[(found[2] or "").lower()]
    return int(float(found[1]) * unit)


def _write_at_rate(out: BinaryIO, log: AccessLog, size: int, rate: int) -> None:
    started = time.monotonic()
    written = 0
    for block in log.blocks(size):
        out.write(block)
        out.flush()
        written += len(block)
        time.sleep(max(0.0, started + written / rate - time.monotonic()))


def main() -> int:
    """Write an access log to a file or to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="where to; - for standard output")
    parser.add_argument("--size", type=parse_size, default=parse_size("200MB"), help="e.g. 200MB, 2GB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=parse_size, default=parse_size("100GB"), help="bytes a second, e.g. 5MB")
    given = parser.parse_args()
    log = AccessLog(given.seed)
    with sys.stdout.buffer if given.path == "-" else Path(given.path).open("wb") as out:
        _write_at_rate(out, log, given.size, given.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
