"""Logs: one event a line on standard error, text on a terminal and JSON otherwise, of ours and of the libraries alike.

Every room of the daemon logs with `get_logger(__name__)`, which is structlog's: an event in plain words, and what it is
about as keywords.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import orjson

from ingestd.imports import without
from ingestd.output import Output, unhindered

# structlog prints tracebacks with rich where there is one. We have it print plain ones, and save every process rich;
# which holds as long as nobody imports structlog before this module does.
with without("rich"):
    import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import TypeAlias

    Event: TypeAlias = MutableMapping[str, Any]

__all__ = ["configure_logs", "get_logger"]

get_logger = structlog.get_logger

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SECRET_KEY: Final = re.compile(r"passw|secret|token|credential|sasl_", re.IGNORECASE)


def configure_logs(
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["auto", "text", "json"] = "auto",
    *,
    process: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send this process's logs to `stream` (None: standard error); called once, as the process starts.

    Nobody who logs waits for the reader of standard error. Lines that find no room in 1 MiB are dropped; how many, is
    logged when there is room again.

    `process` ("worker-2") stands in every event. `form` "auto": text when the stream is a terminal. Text has colors on
    a terminal, and elsewhere if the environment variable FORCE_COLOR is set. What libraries log through `logging` takes
    the same way, from `warning` on (from `level` on when that is `debug`).
    """
    own, stream = stream is None, sys.stderr if stream is None else stream
    as_text = form == "text" or (form == "auto" and stream.isatty())
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if as_text else "iso", utc=not as_text),
        structlog.processors.StackInfoRenderer(),
        _Marks(process),
        _hide_secrets,
    ]
    handler = logging.StreamHandler(unhindered(stream) if own else stream)
    if isinstance(handler.stream, Output):
        handler.stream.dropped = _tell_dropped
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *before],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(stream, as_text=as_text),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if level == "debug" else max(_LEVELS[level], logging.WARNING))
    logging.getLogger("ingestd").setLevel(_LEVELS[level])
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _tell_dropped(lines: int) -> None:
    get_logger("ingestd.logs").warning("lines of log dropped, nobody read standard error", lines=lines)


def _rendering(stream: TextIO, *, as_text: bool) -> list[structlog.typing.Processor]:
    if as_text:
        plain = structlog.dev.plain_traceback
        colors = stream.isatty() or bool(os.environ.get("FORCE_COLOR"))
        return [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _to_json]


def _to_json(_logger: object, _method: str, event: Event) -> str:
    ordered = {
        "timestamp": event.pop("timestamp", None),
        "level": event.pop("level", None),
        "event": event.pop("event", ""),
    }
    return orjson.dumps({**ordered, **event}, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


class _Marks:
    """Says in every event which process it comes from."""

    def __init__(self, process: str | None) -> None:
        self._process = process

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        if self._process is not None:
            event.setdefault("process", self._process)
        return event


def _hide_secrets(_logger: object, _method: str, event: Event) -> Event:
    for key in event:
        if _SECRET_KEY.search(key):
            event[key] = "(hidden)"
    return event
