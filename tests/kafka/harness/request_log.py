"""Reads a Kafka node's request log (`kafka.request.logger` at DEBUG): who asked what."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["LoggedRequest", "read_request_log", "requests_by_client"]

MARK = "Completed request:"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request that a node answered."""

    api: str
    """The API's name as Kafka's protocol page has it (`Metadata`, `InitProducerId`)."""
    client_id: str
    version: int
    remote: str
    """HOST:PORT of the client: with it a test finds the process that held the socket."""


def read_request_log(path: Path) -> Iterator[LoggedRequest]:
    """The requests in order of completion. A torn last line (still being written) is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if MARK not in line or not line.endswith("\n"):
                continue
            entry, _ = json.JSONDecoder().raw_decode(line[line.index(MARK) + len(MARK) :].lstrip())
            header = entry["requestHeader"]
            yield LoggedRequest(
                api=_protocol_name(header["requestApiKeyName"]),
                client_id=header.get("clientId") or "",
                version=header["requestApiVersion"],
                remote=_remote(entry["connection"]),
            )


def requests_by_client(requests: Iterable[LoggedRequest]) -> dict[str, Counter[str]]:
    """For each client id, how often it asked what."""
    counted: dict[str, Counter[str]] = {}
    for request in requests:
        counted.setdefault(request.client_id, Counter())[request.api] += 1
    return counted


def _protocol_name(key_name: str) -> str:
    return "".join(word.capitalize() for word in key_name.split("_"))


def _remote(connection: str) -> str:
    # LOCAL_HOST:PORT-REMOTE_HOST:PORT-PROCESSOR-NUMBER
    return connection.split("-")[1]
