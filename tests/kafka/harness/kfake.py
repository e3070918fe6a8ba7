"""franz-go's fake cluster as a program (`tests/interop/go/kfake`): a broker written elsewhere that makes trouble."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.errors import ErrorCode
    from ingestd.wire.apis import Api

__all__ = ["Kfake"]

END_SECONDS = 30


class Kfake:
    """A running cluster of nodes 0, 1, … with one topic. It checks sequences and remembers producers, as Kafka does.

    But it has one epoch for a producer where Kafka has one for each partition: a producer that recovers with a new
    epoch in one partition is refused in the others.
    """

    def __init__(self, binary: Path, *, topic: str, partitions: int, nodes: int = 3) -> None:
        self._process = subprocess.Popen(
            [str(binary), "-brokers", str(nodes), "-topic", topic, "-partitions", str(partitions)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.topic = topic
        self.bootstrap: list[str] = self._hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    @property
    def servers(self) -> str:
        """The addresses as one string."""
        return ",".join(self.bootstrap)

    def fail(self, api: Api, code: ErrorCode, requests: int = 1) -> None:
        """Answer so many requests with an error for each partition, when faults told before are used up.

        REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND are answered after the batch was appended.
        """
        self._tell(do="fail", key=api, code=code, count=requests)

    def disconnect(self, api: Api, requests: int = 1) -> None:
        """Close the connection instead of answering so many requests, and before anything is done."""
        self._tell(do="disconnect", key=api, count=requests)

    def lead(self, partition: int, node: int) -> None:
        """Make a node the leader of a partition."""
        self._tell(do="move", topic=self.topic, partition=partition, node=node)

    def remove(self, node: int) -> None:
        """Take a node out of the cluster; all partitions get new leaders. Its connections stay, and lead nowhere."""
        self._tell(do="remove", node=node)

    def add(self, node: int) -> None:
        """Add a node of this id, which no node had before; all partitions get new leaders."""
        self._tell(do="add", node=node)

    def _tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._hear()
        if "error" in answer:
            raise RuntimeError(f"kfake: {answer['error']}")

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"kfake ended: {self._process.communicate()[1]}")
        return json.loads(line)
