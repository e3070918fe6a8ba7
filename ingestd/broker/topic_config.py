"""A topic's configuration: the values that its logs use, and all values with the places that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.broker.configs.kinds import LONG_MAX, ConfigSource
from ingestd.broker.configs.topic_table import INTERNAL, TOPIC_CONFIGURATIONS
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingestd.broker.configs.kinds import Value

__all__ = ["Described", "TopicConfig", "check_topic_configs", "described_topic"]


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
    append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    max_compaction_lag_ms: int
    min_compaction_lag_ms: int
    min_dirty_ratio: float
    delete_retention_ms: int

    @classmethod
    def of(cls, own: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
        """From a topic's own configurations and the broker's defaults. They were checked when they were set."""
        texts = {**defaults, **own}

        def text(name: str) -> str:
            return texts.get(name) or TOPIC_CONFIGURATIONS[name].default or ""

        policies = texts.get("cleanup.policy", "delete").replace(" ", "").split(",")
        return cls(
            index_interval=int(text("index.interval.bytes")),
            max_message_bytes=int(text("max.message.bytes")),
            retention_bytes=int(text("retention.bytes")),
            retention_ms=int(text("retention.ms")),
            segment_bytes=int(text("internal.segment.bytes") or text("segment.bytes")),
            segment_ms=int(text("segment.ms")),
            deletes="delete" in policies,
            compacts="compact" in policies,
            append_time=text("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(text("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(text("message.timestamp.after.max.ms")),
            max_compaction_lag_ms=int(text("max.compaction.lag.ms")),
            min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
            min_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
            delete_retention_ms=int(text("delete.retention.ms")),
        )

    @property
    def longest_segment_ms(self) -> int:
        """After how many ms a new segment is begun."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def needs_records(self) -> bool:
        """Whether a batch's header does not tell if the topic takes it."""
        return self.compacts or (not self.append_time and self.timestamp_before_max_ms < LONG_MAX)


@dataclass(frozen=True, slots=True)
class Described:
    """One configuration as it is now: the values that it may come from, (name, value, source), the strongest first.

    `value` is the strongest one's. If there is none, it is the default.
    """

    name: str
    value: str
    type: int
    documentation: str
    synonyms: tuple[tuple[str, str, int], ...]

    @property
    def source(self) -> int:
        """Where the value comes from."""
        return self.synonyms[0][2] if self.synonyms else ConfigSource.DEFAULT


def described_topic(own: Mapping[str, str], defaults: Mapping[str, str]) -> Iterator[Described]:
    """Every configuration of a topic that has its own and a broker that has defaults."""
    for name, known in TOPIC_CONFIGURATIONS.items():
        if name in INTERNAL and name not in own and name not in defaults:
            continue
        synonyms = []
        if name in own:
            synonyms.append((name, known.canonical(own[name]), ConfigSource.TOPIC))
        if name in defaults:
            synonyms.append((known.broker_name or name, known.canonical(defaults[name]), ConfigSource.STATIC_BROKER))
        # Kafka names no default where it is converted: that of `log.retention.hours` to milliseconds, say.
        if known.fallback is not None and known.fallback[0] == known.broker_name:
            synonyms.append((*known.fallback, ConfigSource.DEFAULT))
        value = known.default or ""
        if name in own or name in defaults:
            value = synonyms[0][1]
        yield Described(name, value, known.type, known.documentation, tuple(synonyms))


def check_topic_configs(own: Mapping[str, str | None], defaults: Mapping[str, str]) -> dict[str, str]:
    """The configurations that a topic shall have, as they are stored. Raises `KafkaError` (INVALID_CONFIG)."""
    checked: dict[str, str] = {}
    for name, text in own.items():
        if name not in TOPIC_CONFIGURATIONS:
            raise KafkaError(ErrorCode.invalid_config, f"{name!r} is no configuration of topics")
        if text is None:
            raise KafkaError(ErrorCode.invalid_config, f"{name}: null is no value")
        checked[name] = text
    _check_together({name: _value(name, text) for name, text in {**defaults, **checked}.items()})
    return checked


def _value(name: str, text: str) -> Value:
    known = TOPIC_CONFIGURATIONS.get(name)
    if known is None:
        raise KafkaError(ErrorCode.invalid_config, f"{name!r} is no configuration of topics")
    return known.parse(text)


def _check_together(values: Mapping[str, Value]) -> None:
    shortest, longest = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", LONG_MAX)
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"min.compaction.lag.ms = {shortest}: expected at most max.compaction.lag.ms, which is {longest}",
        )
    if values.get("remote.storage.enable"):
        raise KafkaError(ErrorCode.invalid_config, "remote.storage.enable = true: this broker has no tiered storage")
