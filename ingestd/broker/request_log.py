"""Request log: counts requests by API and client id and, if a file is given, writes a JSON line per request."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import orjson

from ingestd.broker.log.files import FILE_MODE
from ingestd.logs import get_logger
from ingestd.wire.apis import api_name

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.broker.request import Request
    from ingestd.broker.session import Session
    from ingestd.errors import ErrorCode

__all__ = ["RequestLog"]

_DISTINCT: Final = 10_000
_OTHERS: Final = ("others", "")
_log = get_logger(__name__)


class RequestLog:
    """Notes every request when it is answered.

    `counts` has (API name, client id) → requests. Clients choose their ids, so beyond 10,000 pairs the rest is one.
    A line of the file has `time` (s since the epoch), `api`, `version`, `client_id`, `correlation_id`, `peer` (port),
    `principal` (empty before authentication), `error` (name) and `seconds` from the request's last byte to the answer.
    """

    def __init__(self, path: Path | None) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._descriptor = -1
        if path is not None:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)

    def answered(self, session: Session, request: Request, error: ErrorCode) -> None:
        """Note a request and the first error of its answer."""
        key = api_name(request.api), request.client_id or ""
        if key not in self.counts and len(self.counts) >= _DISTINCT:
            key = _OTHERS
        self.counts[key] += 1
        if self._descriptor >= 0:
            self._write(session, request, error)

    def _write(self, session: Session, request: Request, error: ErrorCode) -> None:
        line = orjson.dumps(
            {
                "time": time.time(),
                "api": api_name(request.api),
                "version": request.version,
                "client_id": request.client_id,
                "correlation_id": request.correlation_id,
                "peer": session.peer_port,
                "principal": session.principal,
                "error": error.name,
                "seconds": time.monotonic() - request.received,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        try:
            os.write(self._descriptor, line)
        except OSError as failure:
            _log.error("request log ends here", error=str(failure))
            self.close()

    def close(self) -> None:
        """Close the file. Counting goes on."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
