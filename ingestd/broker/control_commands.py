"""What the control endpoint can be asked: commands, their keys, and what the values must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.checks import did_you_mean, is_of, is_text
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["read_command"]

_MOST_TIMES: Final = 1_000_000
_MOST_SECONDS: Final = 86_400.0
_EXAMPLE: Final = '{"fail": "produce", "error": "not_leader_or_follower"}'
_REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class _Field:
    """A key of what is asked: what its value must be, and what it is when it is left out."""

    expected: str
    holds: Callable[[Any], bool]
    default: Any = _REQUIRED


_API: Final = _Field("a request's name, as in 'produce'", is_text)
_NODE: Final = _Field("the id of a node", lambda value: is_of(value, int))
_TRUE: Final = _Field("true", lambda value: value is True)
_HIT: Final = {
    "times": _Field(f"1 to {_MOST_TIMES}", lambda value: is_of(value, int) and 1 <= value <= _MOST_TIMES, 1),
    "node": _Field("the id of a node, or null for any", lambda value: value is None or is_of(value, int), None),
}
"""Which requests are hit."""
_COMMANDS: Final[Mapping[str, Mapping[str, _Field]]] = {
    "move": {
        "move": _Field("a topic", is_text),
        "partition": _Field("a partition", lambda value: is_of(value, int) and value >= 0),
        "node": _NODE,
    },
    "fail": {"fail": _API, "error": _Field("an error's name, as in 'not_leader_or_follower'", is_text), **_HIT},
    "delay": {
        "delay": _API,
        "seconds": _Field(
            f"seconds, 0 to {_MOST_SECONDS:.0f}",
            lambda value: is_of(value, float) and 0 <= value <= _MOST_SECONDS,
        ),
        **_HIT,
    },
    "cut": {"cut": _API, **_HIT},
    "cut_answer": {"cut_answer": _API, **_HIT},
    "refuse": {"refuse": _NODE},
    "clear": {"clear": _TRUE},
    "waiting": {"waiting": _TRUE},
}
"""The keys of each command. One of them names it."""


def read_command(line: bytes) -> Mapping[str, Any]:
    """What is asked, with the defaults of what it leaves out. Raises `IngestdError`."""
    try:
        asked = orjson.loads(line)
    except ValueError as error:
        raise IngestdError(f"not understood: not JSON ({error}); expected {_EXAMPLE}") from None
    if not isinstance(asked, dict):
        raise IngestdError(f"not understood: expected a JSON object, as in {_EXAMPLE}")
    commands = [command for command in _COMMANDS if command in asked]
    if len(commands) != 1:
        what = f"{' and '.join(commands)} together" if commands else "it says nothing that shall go wrong"
        close = "" if commands else "".join(dict.fromkeys(did_you_mean(key, _COMMANDS) for key in asked))
        raise IngestdError(f"not understood: {what}; expected one of {', '.join(_COMMANDS)}{close}")
    (command,) = commands
    fields = _COMMANDS[command]
    for key in asked:
        if key not in fields:
            raise IngestdError(
                f"{key!r} is no key beside {command!r}; expected {', '.join(fields)}{did_you_mean(key, fields)}"
            )
    for key, field in fields.items():
        if key in asked and not field.holds(asked[key]):
            raise IngestdError(f"{key}: {asked[key]!r}; expected {field.expected}")
        if key not in asked and field.default is _REQUIRED:
            raise IngestdError(f"{key!r} is missing beside {command!r}; expected {field.expected}")
    return {key: asked.get(key, field.default) for key, field in fields.items()}
