"""Options of a query that reads: text in, frozen values out.

The names and meanings are those of Spark's Kafka connector, so that a query moves by changing its format:
https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.consumer.settings import AtTime, ConsumerSettings, Edge, Isolation, OutOfRange, Start, TopicPartition
from ingestd.errors import ConfigurationError
from ingestd.spark.cluster import CLUSTER_OPTIONS, REFUSED, Cluster, cluster_of
from ingestd.spark.given import Given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Assigned",
    "BatchOptions",
    "Committed",
    "RangeBounds",
    "ReadOptions",
    "Rows",
    "StreamOptions",
    "Subscribed",
    "SubscribedPattern",
    "Subscription",
    "batch_options",
    "read_options",
    "stream_options",
]

_PREFETCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of answers that wait for a task. Where more wait, none is freed for the next one, which takes new memory."""

_LATEST: Final = -1
_EARLIEST: Final = -2

_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_TRIGGERS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minOffsetsFile", "maxTriggerDelay")
_NAMES: Final = (
    *CLUSTER_OPTIONS,
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingOffsetsByGroupStrategy",
    *_ENDING,
    *_TRIGGERS,
    "commitTo",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includePosition",
    "rows",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "groupIdPrefix",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.client.rack",
    "kafka.check.crcs",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
    "kafka.default.api.timeout.ms",
)
_NO_EFFECT: Final = ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs")
"""Options that are about polls of Java's consumer, and the group that it is in. The readers here have neither."""
_OF_GROUPS: Final = ("kafka.group.id", "startingOffsetsByGroupStrategy")
"""Options that have no effect unless startingOffsets = group."""
_GROUP: Final = "group"
_OF_SPARK: Final = "Spark's checkpoint has the offsets, and columns are bytes, as with Spark's Kafka connector"
_REFUSED: Final = (
    REFUSED
    | {"kafka.auto.offset.reset": "expected startingOffsets"}
    | dict.fromkeys(
        (
            "kafka.enable.auto.commit",
            "kafka.interceptor.classes",
            "kafka.key.deserializer",
            "kafka.value.deserializer",
        ),
        _OF_SPARK,
    )
)
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


class Rows(Enum):
    """What a row is. Source and sink have the option `rows`."""

    records = "records"
    """A record, with the columns of Spark's Kafka connector."""
    batches = "batches"
    """A record batch, as the broker keeps it."""


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
class Committed:
    """`startingOffsets = group`: where this consumer group has committed."""

    group: str
    otherwise: Edge | None
    """Where a partition starts of which the group has committed nothing. None: it is an error, unless it is empty."""


@dataclass(frozen=True, slots=True)
class RangeBounds:
    """Where every partition starts or ends: `everywhere`, or one bound for each partition. `option` said so."""

    option: str
    everywhere: Start | Committed | None = None
    each: Mapping[TopicPartition, Start] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What any query reads. Pickles. Its repr shows no secret."""

    cluster: Cluster
    consumer: ConsumerSettings
    subscription: Subscription
    starting: RangeBounds
    latest_if_no_timestamp: bool
    """Whether a starting timestamp after the last record means the end of the partition; otherwise it is an error."""
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    rows: Rows
    include_headers: bool
    include_position: bool
    """Whether rows have a column that says where they come from, for a sink that writes each of them once."""


@dataclass(frozen=True, slots=True)
class BatchOptions(ReadOptions):
    """What a batch query reads."""

    ending: RangeBounds


@dataclass(frozen=True, slots=True)
class StreamOptions(ReadOptions):
    """What a streaming query reads."""

    max_offsets: int | None
    """Most offsets of a micro-batch, over all partitions."""
    min_offsets: int | None
    """No micro-batch before there are so many offsets …"""
    min_offsets_file: Path | None
    """A file on the driver's host that says `min_offsets`, which may change. Until it is there, nothing is enough."""
    max_delay: float
    """… or so many seconds have passed."""
    retries: int
    """How often a leader is asked again whose log seems to be cut."""
    retry_interval: float
    """Seconds between two such questions."""
    commit_to: str | None
    """The consumer group that is told how far the query is."""

    @property
    def waits(self) -> bool:
        """Whether a micro-batch waits for a number of offsets."""
        return self.min_offsets is not None or self.min_offsets_file is not None

    def least(self) -> float:
        """The offsets that a micro-batch waits for now. Raises `OSError`, and `ValueError` for a damaged file."""
        if self.min_offsets_file is None:
            return 0 if self.min_offsets is None else self.min_offsets
        try:
            return int(self.min_offsets_file.read_text())
        except FileNotFoundError:
            return math.inf


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """What batch and streaming queries have in common; names in any case. Logs options that have no effect.

    Raises `ConfigurationError`.
    """
    given = _given(options)
    found = ReadOptions(**_common(given, Edge.latest))  # a stream may start there; a batch query is refused later
    given.warn_of_unused(*_NO_EFFECT, *(() if isinstance(found.starting.everywhere, Committed) else _OF_GROUPS))
    return found


def batch_options(options: Mapping[str, str]) -> BatchOptions:
    """What a batch query reads. Raises `ConfigurationError`."""
    given = _given(options)
    given.warn_of_unused(*_TRIGGERS)
    if "commitTo" in given:
        raise given.error(
            "option commitTo is for streaming queries: Spark does not tell a source how a batch query ended"
        )
    return BatchOptions(**_common(given, Edge.earliest), ending=_bounds(given, "ending", {"latest": Edge.latest}))


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """What a streaming query reads. Raises `ConfigurationError`."""
    given = _given(options)
    if (ending := next((option for option in _ENDING if option in given), None)) is not None:
        raise given.error(f"option {ending} is for batch queries; expected a streaming query without an end")
    if given.boolean("includePosition", default=False):
        for option in ("minPartitions", "maxRecordsPerPartition"):
            if option in given:
                raise given.error(
                    f"options includePosition and {option} exclude each other; expected one task for each partition"
                )
    retries = given.number("fetchOffset.numRetries", least=0)
    found = StreamOptions(
        **_common(given, Edge.latest),
        max_offsets=given.number("maxOffsetsPerTrigger"),
        min_offsets=given.number("minOffsetsPerTrigger"),
        min_offsets_file=None if (file := given.text("minOffsetsFile")) is None else Path(file),
        max_delay=_duration(given, "maxTriggerDelay", 900.0),
        retries=3 if retries is None else retries,
        retry_interval=given.seconds("fetchOffset.retryIntervalMs", least_ms=0) or 0.01,
        commit_to=given.text("commitTo"),
    )
    if found.min_offsets is not None and found.min_offsets_file is not None:
        raise given.error("options minOffsetsPerTrigger and minOffsetsFile exclude each other; expected one")
    if found.commit_to == "":
        raise given.wrong("commitTo", "a consumer group's name")
    if found.max_offsets is not None and found.min_offsets is not None and found.min_offsets > found.max_offsets:
        raise given.wrong("minOffsetsPerTrigger", "at most maxOffsetsPerTrigger")
    return found


def _given(options: Mapping[str, str]) -> Given:
    return Given("ingestd source", options, _NAMES, _REFUSED)


def _common(given: Given, default: Edge) -> dict[str, Any]:
    """The fields of `ReadOptions`. `default`: where a query without any starting option starts."""
    words = {"earliest": Edge.earliest} | ({"latest": Edge.latest} if default is Edge.latest else {})
    fail = given.boolean("failOnDataLoss", default=True)
    rows = given.choice("rows", {each.value: each for each in Rows}, default=Rows.records)
    headers = given.boolean("includeHeaders", default=False)
    if headers and rows is Rows.batches:
        raise given.error("option includeHeaders is for rows = records: a record batch has its headers in it")
    return {
        "cluster": cluster_of(given),
        "consumer": _consumer(given, rows, fail_on_data_loss=fail),
        "subscription": _subscription(given),
        "starting": _bounds(given, "starting", words, default),
        "latest_if_no_timestamp": given.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, default=False
        ),
        "min_partitions": given.number("minPartitions"),
        "max_records_per_partition": given.number("maxRecordsPerPartition"),
        "fail_on_data_loss": fail,
        "rows": rows,
        "include_headers": headers,
        "include_position": given.boolean("includePosition", default=False),
    }


def _consumer(given: Given, rows: Rows, *, fail_on_data_loss: bool) -> ConsumerSettings:
    isolation = given.choice("kafka.isolation.level", {each.name: each for each in Isolation}, default=None)
    if rows is Rows.batches:
        if isolation is Isolation.read_uncommitted:
            raise given.wrong(
                "kafka.isolation.level", "read_committed beside rows = batches: what passes is not aborted"
            )
        isolation = Isolation.read_committed
    found: dict[str, Any] = {
        "rack": given.text("kafka.client.rack"),
        "fetch_min_bytes": given.number("kafka.fetch.min.bytes"),
        "fetch_max_bytes": given.number("kafka.fetch.max.bytes"),
        "fetch_max_wait": given.seconds("kafka.fetch.max.wait.ms"),
        "partition_max_bytes": given.number("kafka.max.partition.fetch.bytes"),
        "request_timeout": given.seconds("kafka.request.timeout.ms"),
        "metadata_timeout": given.seconds("kafka.default.api.timeout.ms"),
    }
    try:
        return ConsumerSettings(
            isolation=isolation or Isolation.read_uncommitted,
            out_of_range=OutOfRange.error if fail_on_data_loss else OutOfRange.earliest,
            check_crcs=given.boolean("kafka.check.crcs", default=True),
            prefetch_bytes=max(_PREFETCH_BYTES, 2 * (found["partition_max_bytes"] or 0)),
            **{name: value for name, value in found.items() if value is not None},
        )
    except ConfigurationError as error:
        raise given.error(str(error)) from None


def _subscription(given: Given) -> Subscription:
    option = given.one_of(("assign", "subscribe", "subscribePattern"))
    if option is None:
        raise given.error("none of assign, subscribe, subscribePattern is given; expected one")
    if option == "assign":
        return Assigned(_assigned(given))
    text = given.text(option) or ""
    if option == "subscribe":
        topics = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
        if not topics:
            raise given.wrong(option, "topics separated by commas")
        return Subscribed(topics)
    try:
        re.compile(text)
    except re.error as error:
        raise given.wrong(option, f"a regular expression ({error})") from None
    return SubscribedPattern(text)


def _assigned(given: Given) -> tuple[TopicPartition, ...]:
    expected = 'JSON such as {"topic": [0, 1]}'
    found = []
    for topic, partitions in given.json("assign", expected).items():
        if not isinstance(partitions, list) or not partitions:
            raise given.wrong("assign", expected)
        found += [TopicPartition(topic, _partition(given, "assign", expected, number)) for number in partitions]
    if not found or len(set(found)) < len(found):
        raise given.wrong("assign", f"{expected}, each partition once")
    return tuple(found)


def _bounds(given: Given, side: str, words: Mapping[str, Edge], default: Edge | None = None) -> RangeBounds:
    """Where partitions start or end. A time for all takes precedence over times for each, and these over offsets."""
    if (option := f"{side}Timestamp") in given:
        text = given.text(option) or ""
        if not re.fullmatch(r"\d{1,18}", text):
            raise given.wrong(option, "milliseconds since 1970 UTC")
        return RangeBounds(option, AtTime(int(text)))
    if (option := f"{side}OffsetsByTimestamp") in given:
        expected = 'JSON such as {"topic": {"0": 1767225600000}}, in milliseconds since 1970 UTC'
        return RangeBounds(
            option, each=_each(given, option, expected, lambda value: AtTime(value) if value >= 0 else None)
        )
    option = f"{side}Offsets"
    if option not in given:
        return RangeBounds(option, default or next(iter(words.values())))
    word = (given.text(option) or "").lower()
    if word in words:
        return RangeBounds(option, words[word])
    if side == "starting" and word == _GROUP:
        return RangeBounds(option, _committed(given))
    numbers = {_NUMBERS[edge]: edge for edge in words.values()}
    meanings = ", ".join(f"{number} is {edge.value}" for number, edge in numbers.items())
    known = ", ".join([*words, _GROUP] if side == "starting" else words)
    expected = f'{known}, or JSON such as {{"topic": {{"0": 23, "1": {min(numbers)}}}}}, where {meanings}'
    return RangeBounds(
        option, each=_each(given, option, expected, lambda value: value if value >= 0 else numbers.get(value))
    )


def _committed(given: Given) -> Committed:
    group = given.text("kafka.group.id")
    if not group:
        raise given.error(
            "option startingOffsets = group: kafka.group.id is missing; expected the group whose offsets to start from"
        )
    choices = {"error": None, "earliest": Edge.earliest, "latest": Edge.latest}
    return Committed(group, given.choice("startingOffsetsByGroupStrategy", choices, default=None))


_NUMBERS: Final = {Edge.earliest: _EARLIEST, Edge.latest: _LATEST}


def _each(
    given: Given, option: str, expected: str, bound: Callable[[int], Start | None]
) -> dict[TopicPartition, Start]:
    found: dict[TopicPartition, Start] = {}
    for topic, by_partition in given.json(option, expected).items():
        if not isinstance(by_partition, dict):
            raise given.wrong(option, expected)
        for number, value in by_partition.items():
            start = bound(value) if type(value) is int else None
            if start is None:
                raise given.wrong(option, expected)
            found[TopicPartition(topic, _partition(given, option, expected, number))] = start
    if not found:
        raise given.wrong(option, expected)
    return found


def _partition(given: Given, option: str, expected: str, number: object) -> int:
    if type(number) is int and number >= 0:
        return number
    if isinstance(number, str) and re.fullmatch(r"\d{1,9}", number):
        return int(number)
    raise given.wrong(option, expected)


def _duration(given: Given, option: str, default: float) -> float:
    """Seconds from a text such as `90s`; a number alone is milliseconds, as in Spark."""
    if option not in given:
        return default
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", (given.text(option) or "").lower())
    if found is None or found[2] not in _UNITS:
        raise given.wrong(option, "a duration such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _UNITS[found[2]]
