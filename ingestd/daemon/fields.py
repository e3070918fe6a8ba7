"""Kinds of values that settings take, each with words for what is expected. A field names its kind: `topic: Topic`.

They hold where a configuration file is read (`tables.py`), and stand on the page of all keys. Settings that a program
makes itself are not held to them. A worker imports this module, so it imports no pydantic: `Rule` has the two methods
that pydantic looks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ingestd.checks import did_you_mean, parse_address
from ingestd.client.metadata import TOPIC_NAME
from ingestd.patterns import pattern_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = [
    "Address",
    "BrokerAddress",
    "ClusterName",
    "Delivery",
    "Expected",
    "Interval",
    "Pattern",
    "RecordPattern",
    "RestOfFile",
    "Rule",
    "Seconds",
    "Topic",
    "is_address",
]


@dataclass(frozen=True, slots=True)
class RestOfFile:
    """What a rule may ask of the rest of the file; None if that is not known, because it is faulty."""

    clusters: Collection[str] | None
    arena_bytes: int | None


class Rule:
    """A rule for the values of a field, beyond their type. It stands in the field's type: `Annotated[int, Rule(…)]`.

    problem: says what is wrong with a value, given the rest of the file; None: nothing.
    expected: the rule in words, for the page of all keys; empty: the field's docstring says it.
    """

    def __init__(self, problem: Callable[[Any, RestOfFile], str | None], expected: str = "") -> None:
        self._problem = problem
        self._expected = expected

    def _check(self, value: Any, info: Any) -> Any:
        problem = self._problem(value, info.context)
        if problem is not None:
            raise ValueError(problem)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        check = {"type": "with-info", "function": self._check}
        return {"type": "function-after", "function": check, "schema": handler(source)}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(schema), **({"expected": self._expected} if self._expected else {})}


class Expected(Rule):
    """The rule that a value is what the words say, whatever the rest of the file says."""

    def __init__(self, words: str, holds: Callable[[Any], object]) -> None:
        super().__init__(lambda value, _: None if holds(value) else f"expected {words}", words)


def is_address(text: str) -> bool:
    """Whether it is `HOST:PORT`."""
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def _bad_pattern(pattern: str, _: RestOfFile) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        return f"expected a regular expression: {error}"
    return None


def _bad_record_pattern(pattern: str, _: RestOfFile) -> str | None:
    problem = pattern_problem(pattern)
    return None if problem is None else f"expected a regular expression: {problem}"


def _unknown_cluster(name: str, rest: RestOfFile) -> str | None:
    known = rest.clusters
    if known is None or name in known:
        return None
    return f"no such [clusters.NAME] ({', '.join(known) or 'none is configured'})" + did_you_mean(name, known)


Seconds = Annotated[float, Expected("seconds, more than 0", lambda seconds: seconds > 0)]
Interval = Annotated[float, Expected("seconds, more than 0, at most 86400", lambda seconds: 0 < seconds <= 86400)]
BrokerAddress = Annotated[
    str,
    Expected(
        'an address "HOST:PORT" with a port from 1 to 65535', lambda text: is_address(text) and parse_address(text)[1]
    ),
]
Address = Annotated[str, Expected('an address "HOST:PORT" with a port up to 65535', is_address)]
Pattern = Annotated[str, Rule(_bad_pattern, "a regular expression")]
"""For names: Python's own `re` reads it."""
RecordPattern = Annotated[str, Rule(_bad_record_pattern, "a regular expression of RE2")]
"""For what is looked for in each record, which anybody may have written: see `ingestd.patterns`."""
Topic = Annotated[
    str, Expected("1 to 249 of letters, digits, '.', '_' and '-', but not '.' or '..' alone", TOPIC_NAME.fullmatch)
]
Delivery = Annotated[
    str, Expected('"at-least-once" (exactly-once delivery is not built yet)', {"at-least-once"}.__contains__)
]
ClusterName = Annotated[str, Rule(_unknown_cluster)]
