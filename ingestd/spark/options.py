"""Options of the Spark source: text in, frozen values out. A refusal names the option, its value, what was expected.

The names and meanings are those of Spark's Kafka connector for batch queries, so that a query moves by changing its
format: https://spark.apache.org/docs/latest/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.consumer.settings import AtTime, Edge, Isolation, Start, TopicPartition
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Assigned", "RangeBounds", "ReadOptions", "Subscribed", "SubscribedPattern", "Subscription", "parse_options"]

_LATEST: Final = -1
_EARLIEST: Final = -2

_NAMES: Final = (
    "bootstrap",
    "kafka.bootstrap.servers",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.isolation.level",
)
_CANONICAL: Final = {name.lower(): name for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Assigned:
    """`assign`: these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """`subscribe`: every partition of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribedPattern:
    """`subscribePattern`: every partition of the topics whose whole name matches."""

    pattern: str


Subscription: TypeAlias = Assigned | Subscribed | SubscribedPattern


@dataclass(frozen=True, slots=True)
class RangeBounds:
    """Where every partition starts or ends: `everywhere`, or one bound for each partition. `option` said so."""

    option: str
    everywhere: Start | None = None
    each: Mapping[TopicPartition, Start] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch query reads. Pickles."""

    bootstrap: tuple[str, ...]
    subscription: Subscription
    starting: RangeBounds
    ending: RangeBounds
    latest_if_no_timestamp: bool = False
    """Whether a starting timestamp after the last record means the end of the partition; otherwise it is an error."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    isolation: Isolation = Isolation.read_uncommitted


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Read the options (names in any case). Raises `ConfigurationError`."""
    given = _Given(options)
    return ReadOptions(
        bootstrap=given.bootstrap(),
        subscription=given.subscription(),
        starting=given.bounds("starting", Edge.earliest),
        ending=given.bounds("ending", Edge.latest),
        latest_if_no_timestamp=given.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, default=False
        ),
        min_partitions=given.positive("minPartitions"),
        max_records_per_partition=given.positive("maxRecordsPerPartition"),
        fail_on_data_loss=given.choice("failOnDataLoss", {"true": True, "false": False}, default=True),
        include_headers=given.choice("includeHeaders", {"true": True, "false": False}, default=False),
        isolation=given.choice(
            "kafka.isolation.level",
            {isolation.name: isolation for isolation in Isolation},
            default=Isolation.read_uncommitted,
        ),
    )


class _Given:
    """The options by their proper names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        unknown = sorted(name for name in options if name.lower() not in _CANONICAL)
        if unknown:
            raise ConfigurationError(
                f"ingestd source: unknown option {', '.join(unknown)}; expected some of {', '.join(_NAMES)}"
            )
        self._values = {_CANONICAL[name.lower()]: str(value).strip() for name, value in options.items()}

    def wrong(self, option: str, expected: str) -> ConfigurationError:
        return ConfigurationError(
            f"ingestd source: option {option} = {self._values.get(option)!r}; expected {expected}"
        )

    def _one_of(self, names: Iterable[str]) -> str | None:
        names = tuple(names)
        found = [name for name in names if name in self._values]
        if len(found) > 1:
            raise ConfigurationError(f"ingestd source: options {' and '.join(found)} exclude each other; expected one")
        return found[0] if found else None

    def bootstrap(self) -> tuple[str, ...]:
        option = self._one_of(("kafka.bootstrap.servers", "bootstrap"))
        if option is None:
            raise ConfigurationError("ingestd source: option kafka.bootstrap.servers is missing; expected HOST:PORT, …")
        addresses = tuple(filter(None, map(str.strip, self._values[option].split(","))))
        if not addresses or not all(re.fullmatch(r".+:\d{1,5}", address) for address in addresses):
            raise self.wrong(option, "HOST:PORT, several separated by commas")
        return addresses

    def subscription(self) -> Subscription:
        option = self._one_of(("assign", "subscribe", "subscribePattern"))
        if option is None:
            raise ConfigurationError(
                "ingestd source: none of assign, subscribe, subscribePattern is given; expected one"
            )
        if option == "assign":
            return Assigned(self._assigned())
        text = self._values[option]
        if option == "subscribe":
            topics = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
            if not topics:
                raise self.wrong(option, "topics separated by commas")
            return Subscribed(topics)
        try:
            re.compile(text)
        except re.error as error:
            raise self.wrong(option, f"a regular expression ({error})") from None
        return SubscribedPattern(text)

    def _assigned(self) -> tuple[TopicPartition, ...]:
        expected = 'JSON such as {"topic": [0, 1]}'
        found = []
        for topic, partitions in self._json("assign", expected).items():
            if not isinstance(partitions, list) or not partitions:
                raise self.wrong("assign", expected)
            found += [TopicPartition(topic, self._partition("assign", expected, number)) for number in partitions]
        if not found or len(set(found)) < len(found):
            raise self.wrong("assign", f"{expected}, each partition once")
        return tuple(found)

    def bounds(self, side: str, default: Edge) -> RangeBounds:
        option = self._one_of((f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"))
        if option is None:
            return RangeBounds(f"{side}Offsets", default)
        text = self._values[option]
        if option == f"{side}Timestamp":
            if not re.fullmatch(r"\d{1,18}", text):
                raise self.wrong(option, "milliseconds since 1970 UTC")
            return RangeBounds(option, AtTime(int(text)))
        if option == f"{side}OffsetsByTimestamp":
            expected = 'JSON such as {"topic": {"0": 1767225600000}}, in milliseconds since 1970 UTC'
            return RangeBounds(
                option, each=self._each(option, expected, lambda value: AtTime(value) if value >= 0 else None)
            )
        word, number = ("earliest", _EARLIEST) if default is Edge.earliest else ("latest", _LATEST)
        if text.lower() == word:
            return RangeBounds(option, default)
        expected = f'{word}, or JSON such as {{"topic": {{"0": 23, "1": {number}}}}}, where {number} is {word}'
        return RangeBounds(
            option,
            each=self._each(
                option, expected, lambda value: default if value == number else value if value >= 0 else None
            ),
        )

    def _each(self, option: str, expected: str, bound: Callable[[int], Start | None]) -> dict[TopicPartition, Start]:
        found: dict[TopicPartition, Start] = {}
        for topic, by_partition in self._json(option, expected).items():
            if not isinstance(by_partition, dict):
                raise self.wrong(option, expected)
            for number, value in by_partition.items():
                start = bound(value) if type(value) is int else None
                if start is None:
                    raise self.wrong(option, expected)
                found[TopicPartition(topic, self._partition(option, expected, number))] = start
        if not found:
            raise self.wrong(option, expected)
        return found

    def _json(self, option: str, expected: str) -> dict[str, Any]:
        try:
            value = json.loads(self._values[option])
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.wrong(option, expected)
        return value

    def _partition(self, option: str, expected: str, number: object) -> int:
        if type(number) is int and number >= 0:
            return number
        if isinstance(number, str) and re.fullmatch(r"\d{1,9}", number):
            return int(number)
        raise self.wrong(option, expected)

    def positive(self, option: str) -> int | None:
        text = self._values.get(option)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,18}", text) or int(text) == 0:
            raise self.wrong(option, "a whole number above 0")
        return int(text)

    def choice(self, option: str, choices: Mapping[str, Any], *, default: Any) -> Any:
        text = self._values.get(option)
        if text is None:
            return default
        if text.lower() not in choices:
            raise self.wrong(option, " or ".join(choices))
        return choices[text.lower()]
