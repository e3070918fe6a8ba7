"""Topic configurations by Kafka's names: those that this broker supports, their defaults, and the allowed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "CONFIGURATIONS",
    "ConfigSource",
    "ConfigType",
    "Configuration",
    "TopicConfig",
    "check_configuration",
    "values_of",
]


class ConfigType:
    """Types of configuration values, with DescribeConfigs' numbers."""

    STRING: Final = 2
    INT: Final = 3
    LONG: Final = 5
    DOUBLE: Final = 6
    LIST: Final = 7


class ConfigSource:
    """Where a configuration's value comes from, with the numbers of DescribeConfigs and CreateTopics."""

    TOPIC: Final = 1
    STATIC_BROKER: Final = 4
    DEFAULT: Final = 5


@dataclass(frozen=True, slots=True)
class Configuration:
    """One topic configuration: its default, type, meaning, and the test that a value must pass."""

    name: str
    default: str
    type: int
    documentation: str
    expected: str
    valid: Callable[[str], bool]


def _integer(lowest: int, highest: int) -> Callable[[str], bool]:
    def valid(value: str) -> bool:
        try:
            return lowest <= int(value) <= highest
        except ValueError:
            return False

    return valid


def _ratio(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def _words(*allowed: str) -> Callable[[str], bool]:
    return lambda value: all(word.strip() in allowed for word in value.split(","))


_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1

CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    configuration.name: configuration
    for configuration in (
        Configuration(
            "cleanup.policy", "delete", ConfigType.LIST,
            "delete: segments beyond retention go. compact: they stay; this broker does not compact yet.",
            "delete, compact or both", _words("delete", "compact"),
        ),
        Configuration(
            "compression.type", "producer", ConfigType.STRING, "Batches are kept as the producer compressed them.",
            "producer", _words("producer"),
        ),
        Configuration(
            "index.interval.bytes", "4096", ConfigType.INT, "Bytes of log between two entries of the sparse index.",
            "an integer of at least 0", _integer(0, _INT_MAX),
        ),
        Configuration(
            "max.message.bytes", "1048588", ConfigType.INT, "Largest record batch taken, in bytes, header included.",
            "an integer of at least 0", _integer(0, _INT_MAX),
        ),
        Configuration(
            "message.timestamp.type", "CreateTime", ConfigType.STRING, "Timestamps are the producer's.",
            "CreateTime", _words("CreateTime"),
        ),
        Configuration(
            "min.cleanable.dirty.ratio", "0.5", ConfigType.DOUBLE, "No effect: this broker does not compact yet.",
            "a number from 0 to 1", _ratio,
        ),
        Configuration(
            "min.insync.replicas", "1", ConfigType.INT, "Replicas that must have a batch before acks=all is answered.",
            "1, since there is one node", _integer(1, 1),
        ),
        Configuration(
            "retention.bytes", "-1", ConfigType.LONG, "Bytes of a partition kept; -1 for no bound.",
            "an integer of at least -1", _integer(-1, _LONG_MAX),
        ),
        Configuration(
            "retention.ms", "604800000", ConfigType.LONG, "Milliseconds a record is kept; -1 for ever.",
            "an integer of at least -1", _integer(-1, _LONG_MAX),
        ),
        Configuration(
            "segment.bytes", "1073741824", ConfigType.INT, "Largest segment file.",
            "an integer of at least 14", _integer(14, _INT_MAX),
        ),
        Configuration(
            "segment.ms", "604800000", ConfigType.LONG, "Milliseconds after which a new segment is begun.",
            "an integer of at least 1", _integer(1, _LONG_MAX),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The values that one topic's logs use. Sizes in bytes, times in ms, -1 for no bound."""

    index_interval: int
    max_message_bytes: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    deletes: bool
    compacts: bool

    @classmethod
    def of(cls, own: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
        """From a topic's own configurations and the broker's defaults. Raises `KafkaError` (INVALID_CONFIG)."""

        def value(name: str) -> str:
            return own.get(name, defaults.get(name, CONFIGURATIONS[name].default))

        for name, text in {**defaults, **own}.items():
            check_configuration(name, text)
        return cls(
            index_interval=int(value("index.interval.bytes")),
            max_message_bytes=int(value("max.message.bytes")),
            retention_bytes=int(value("retention.bytes")),
            retention_ms=int(value("retention.ms")),
            segment_bytes=int(value("segment.bytes")),
            segment_ms=int(value("segment.ms")),
            deletes="delete" in value("cleanup.policy"),
            compacts="compact" in value("cleanup.policy"),
        )


def values_of(own: Mapping[str, str], defaults: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """Name, value and source of each configuration of a topic that has its own and a broker that has defaults."""
    for name, known in CONFIGURATIONS.items():
        if name in own:
            yield name, own[name], ConfigSource.TOPIC
        elif name in defaults:
            yield name, defaults[name], ConfigSource.STATIC_BROKER
        else:
            yield name, known.default, ConfigSource.DEFAULT


def check_configuration(name: str, value: str | None) -> None:
    """Raise `KafkaError` (INVALID_CONFIG) unless this broker supports the configuration with this value."""
    known = CONFIGURATIONS.get(name)
    if known is None:
        raise KafkaError(ErrorCode.invalid_config, f"topic configuration {name!r} is not known to this broker")
    if value is None or not known.valid(value):
        raise KafkaError(ErrorCode.invalid_config, f"{name} = {value!r}: expected {known.expected}")
