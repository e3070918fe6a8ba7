"""Records that are none: which argument is wrong, and what was expected. Looked for once a record is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, cast

__all__ = ["SENT", "require_bytes", "wrong_done", "wrong_headers", "wrong_timestamp"]

_LONGEST_SHOWN: Final = 80


def require_bytes(name: str, given: object) -> None:
    """Refuse a key or value that is no bytes. Raises `TypeError`, naming it."""
    if given is None or isinstance(given, bytes):
        return
    try:
        memoryview(cast("Any", given))
    except TypeError:
        raise TypeError(f"{name}: {_expected_bytes(given)}") from None


def wrong_headers(headers: object) -> TypeError:
    """What is wrong with headers that could not be encoded."""
    if isinstance(headers, (Mapping, str, bytes)) or not isinstance(headers, Iterable):
        return TypeError(f'headers: {_shown(headers)}; expected pairs, as in [("source", b"web")]')
    for index, pair in enumerate(headers):
        try:
            name, value = pair
        except (TypeError, ValueError):
            return TypeError(f'headers[{index}]: {_shown(pair)}; expected a pair, as in ("source", b"web")')
        try:
            if not isinstance(name, str):
                require_bytes(f"headers[{index}]: name", name)
                memoryview(name)
            require_bytes(f"headers[{index}]: value of {_shown(name)}", value)
        except TypeError as wrong:
            return wrong
    return TypeError(f'headers: {_shown(headers)}; expected pairs, as in [("source", b"web")]')


def wrong_done(given: object) -> TypeError:
    """What is wrong with a `done` that can not be called."""
    return TypeError(f"done: {_shown(given)}; expected something to call with the record's Delivery, or None")


def wrong_timestamp(given: object) -> TypeError:
    """What is wrong with a timestamp that is no whole number."""
    return TypeError(f"timestamp_ms: {_shown(given)}; expected milliseconds since 1970, a whole number")


def _expected_bytes(given: object) -> str:
    hint = f", as in {_shown(given)}.encode()" if isinstance(given, str) else ""
    return f"{_shown(given)}; expected bytes, or None{hint}"


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


class _Sent:
    """What `send` gives: nothing that can be awaited, and it says so."""

    __slots__ = ()

    def __await__(self) -> NoReturn:
        raise TypeError(
            "send is a plain call, and was done: the record is on its way. To await its end: send_and_wait; that of "
            "all records: flush"
        )

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "None"


SENT: Final = cast("None", _Sent())
"""To its callers `send` gives None."""
