"""The Go peers (franz-go, sarama): small programs of `tests/interop/go`, built once and run by tests marked `peers`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.programs import program

__all__ = ["GoPeer", "build_go_peers"]

MODULE = Path(__file__).resolve().parents[2] / "interop" / "go"
BUILD_SECONDS = 170


@dataclass(frozen=True, slots=True)
class GoPeer:
    """One Go client as a program. Each call raises `RuntimeError` with what the program said when it failed."""

    binary: Path

    def produce(self, servers: str, topic: str, values: list[bytes], *options: str) -> list[dict[str, Any]]:
        """Write `values` (none holds a line feed); partition and offset of each, in the same order.

        Options: `-partition N`, `-codec none|gzip|snappy|lz4|zstd`, `-acks all|1`, `-transactional-id ID`.
        """
        lines = b"".join(value + b"\n" for value in values)
        return self._run("produce", servers, topic, *options, stdin=lines)

    def consume(self, servers: str, topic: str, count: int, *options: str) -> list[dict[str, Any]]:
        """Read `count` records from the beginning: partition, offset, timestamp_ms, key, value, headers.

        Bytes are base64. Options: `-isolation read_committed`, and for franz `-group NAME`.
        """
        return self._run("consume", servers, topic, "-count", str(count), *options)

    def transactions(self, servers: str, topic: str, transactional_id: str, *options: str) -> dict[str, Any]:
        """What franz's administrator finds about a transactional id, and about partition 0. Option: `-abort`."""
        (found,) = self._run("transactions", servers, topic, "-transactional-id", transactional_id, *options)
        return found

    def _run(self, verb: str, servers: str, topic: str, *options: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        command = [str(self.binary), verb, "-brokers", servers, "-topic", topic, *options]
        ran = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stderr.decode(errors='replace')}")
        return [json.loads(line) for line in ran.stdout.splitlines()]


def build_go_peers(directory: Path) -> dict[str, GoPeer]:
    """Build `franz`, `sarama` and `kfake` (see `harness.kfake`) into `directory`. The modules are those of go.sum."""
    directory.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        [program("go"), "build", "-o", str(directory), "./..."],
        cwd=MODULE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip
    if built.returncode != 0:
        raise RuntimeError(f"the Go peers do not build:\n{built.stdout}{built.stderr}")
    return {name: GoPeer(directory / name) for name in ("franz", "kfake", "sarama")}
