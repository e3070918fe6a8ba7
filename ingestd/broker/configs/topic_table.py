"""Every topic configuration of Kafka 4.3: type, default, rule, and what this broker does with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.kinds import (
    INT_MAX,
    LONG_MAX,
    ConfigType,
    Configuration,
    at_least,
    between,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.broker.configs.kinds import Rule, Value

__all__ = ["INTERNAL", "TOPIC_CONFIGURATIONS"]

_DAY_MS: Final = 86_400_000
_MIB: Final = 1 << 20
_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")
_ONE_NODE: Final = "No effect: there is one node."
_NO_TIERS: Final = "No effect: this broker has no tiered storage."
_AS_PRODUCED: Final = "No effect: batches are kept as their producer compressed them."


def _any(_value: Value) -> bool:
    return True


def _words(*words: str) -> Rule:
    return lambda value: isinstance(value, list) and set(value) <= set(words)


def _level(highest: int) -> Rule:
    return lambda value: value == -1 or (isinstance(value, int) and 1 <= value <= highest)


def _replicas(value: Value) -> bool:
    return isinstance(value, list) and (value == ["*"] or all(not word or _REPLICA.fullmatch(word) for word in value))


def _int(name: str, default: int, rule: Rule, expected: str, says: str, broker: str | None = None) -> Configuration:
    """A number of 32 bits. `broker`: the broker's configuration that has the default."""
    fallback = None if broker is None else (broker, str(default))
    return Configuration(name, ConfigType.INT, str(default), says, expected, rule, broker, fallback)


def _long(
    name: str, default: int, rule: Rule, expected: str, says: str, broker: str | None = None,
    fallback: tuple[str, str] | None = None,
) -> Configuration:  # fmt: skip
    """A number of 64 bits. `fallback`: the broker's configuration that has the default, if it is not `broker`."""
    if broker is not None and fallback is None:
        fallback = broker, str(default)
    return Configuration(name, ConfigType.LONG, str(default), says, expected, rule, broker, fallback)


def _flag(name: str, says: str, broker: str | None = None) -> Configuration:
    fallback = None if broker is None else (broker, "false")
    return Configuration(name, ConfigType.BOOLEAN, "false", says, "true or false", _any, broker, fallback)


def _from(lowest: int) -> str:
    return f"an integer of at least {lowest}"


INTERNAL: Final = frozenset({"internal.segment.bytes"})
"""What is described where it is set, and nowhere else, as in Kafka."""

TOPIC_CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    configuration.name: configuration
    for configuration in (
        Configuration(
            "cleanup.policy", ConfigType.LIST, "delete",
            "delete: segments beyond retention are removed. compact: the latest record of each key stays. Empty: "
            "everything stays.",
            "delete, compact, both or nothing", _words("delete", "compact"),
            "log.cleanup.policy", ("log.cleanup.policy", "delete"), distinct=True,
        ),
        _int("compression.gzip.level", -1, _level(9), "-1, or an integer from 1 to 9", _AS_PRODUCED,
             "compression.gzip.level"),
        _int("compression.lz4.level", 9, between(1, 17), "an integer from 1 to 17", _AS_PRODUCED,
             "compression.lz4.level"),
        Configuration(
            "compression.type", ConfigType.STRING, "producer", _AS_PRODUCED, f"one of {', '.join(_CODECS)}",
            one_of(*_CODECS), "compression.type", ("compression.type", "producer"),
        ),
        _int("compression.zstd.level", 3, between(-131_072, 22), "an integer from -131072 to 22", _AS_PRODUCED,
             "compression.zstd.level"),
        _long("delete.retention.ms", _DAY_MS, at_least(0), _from(0),
              "Milliseconds that a tombstone stays in a compacted topic after it was first compacted.",
              "log.cleaner.delete.retention.ms"),
        _long("file.delete.delay.ms", 60_000, at_least(0), _from(0), "No effect: files are removed at once.",
              "log.segment.delete.delay.ms"),
        _long("flush.messages", LONG_MAX, at_least(1), _from(1),
              "No effect: the broker's own setting says when batches are forced to the disk.",
              "log.flush.interval.messages"),
        _long("flush.ms", LONG_MAX, at_least(0), _from(0),
              "No effect: the broker's own setting says when batches are forced to the disk.",
              "log.flush.interval.ms", ("log.flush.scheduler.interval.ms", str(LONG_MAX))),
        Configuration(
            "follower.replication.throttled.replicas", ConfigType.LIST, "", _ONE_NODE,
            "a list of PARTITION:BROKER, or *", _replicas,
        ),
        _int("index.interval.bytes", 4096, at_least(0), _from(0),
             "Bytes of log between two entries of the sparse index.", "log.index.interval.bytes"),
        Configuration(
            "leader.replication.throttled.replicas", ConfigType.LIST, "", _ONE_NODE,
            "a list of PARTITION:BROKER, or *", _replicas,
        ),
        _long("local.retention.bytes", -2, at_least(-2), _from(-2), _NO_TIERS, "log.local.retention.bytes"),
        _long("local.retention.ms", -2, at_least(-2), _from(-2), _NO_TIERS, "log.local.retention.ms"),
        _long("max.compaction.lag.ms", LONG_MAX, at_least(1), _from(1),
              "Milliseconds after which a record of a compacted topic is compacted, whatever the dirty ratio. And "
              "after which a new segment is begun, if segment.ms is longer.",
              "log.cleaner.max.compaction.lag.ms"),
        _int("max.message.bytes", 1_048_588, at_least(0), _from(0),
             "Largest record batch that is taken, in bytes, header included.", "message.max.bytes"),
        _long("message.timestamp.after.max.ms", 3_600_000, at_least(0), _from(0),
              "Milliseconds that a record's timestamp may be ahead of the broker's clock.",
              "log.message.timestamp.after.max.ms"),
        _long("message.timestamp.before.max.ms", LONG_MAX, at_least(0), _from(0),
              "Milliseconds that a record's timestamp may be behind the broker's clock.",
              "log.message.timestamp.before.max.ms"),
        Configuration(
            "message.timestamp.type", ConfigType.STRING, "CreateTime",
            "CreateTime: timestamps are the producer's. LogAppendTime: they are the time of the append.",
            "CreateTime or LogAppendTime", one_of("CreateTime", "LogAppendTime"),
            "log.message.timestamp.type", ("log.message.timestamp.type", "CreateTime"),
        ),
        Configuration(
            "min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5",
            "A compacted topic's partition is compacted when more than this part of its bytes was not compacted yet.",
            "a number from 0 to 1", between(0, 1),
            "log.cleaner.min.cleanable.ratio", ("log.cleaner.min.cleanable.ratio", "0.5"),
        ),
        _long("min.compaction.lag.ms", 0, at_least(0), _from(0),
              "Milliseconds that a record of a compacted topic stays, also if a later one has its key.",
              "log.cleaner.min.compaction.lag.ms"),
        _int("min.insync.replicas", 1, at_least(1), _from(1), _ONE_NODE, "min.insync.replicas"),
        _flag("preallocate", "No effect: files grow as they are written.", "log.preallocate"),
        _flag("remote.log.copy.disable", _NO_TIERS),
        _flag("remote.log.delete.on.disable", _NO_TIERS),
        _flag("remote.storage.enable", "Only false: this broker has no tiered storage."),
        _long("retention.bytes", -1, _any, "an integer", "Bytes of a partition that are kept; -1 for no bound.",
              "log.retention.bytes"),
        _long("retention.ms", 7 * _DAY_MS, at_least(-1), _from(-1), "Milliseconds a record is kept; -1 for ever.",
              "log.retention.ms", ("log.retention.hours", "168")),
        _int("segment.bytes", 1 << 30, at_least(_MIB), _from(_MIB), "Largest segment file, in bytes.",
             "log.segment.bytes"),
        _int("segment.index.bytes", 10 * _MIB, at_least(4), _from(4), "No effect: an index grows with its segment.",
             "log.index.size.max.bytes"),
        _long("segment.jitter.ms", 0, at_least(0), _from(0), "No effect: segments are begun after segment.ms.",
              "log.roll.jitter.ms", ("log.roll.jitter.hours", "0")),
        _long("segment.ms", 7 * _DAY_MS, at_least(1), _from(1), "Milliseconds after which a new segment is begun.",
              "log.roll.ms", ("log.roll.hours", "168")),
        _flag("unclean.leader.election.enable", _ONE_NODE, "unclean.leader.election.enable"),
        Configuration(
            "internal.segment.bytes", ConfigType.INT, None, "Largest segment file in tests, in bytes.",
            f"an integer up to {INT_MAX}", _any,
        ),
    )
}  # fmt: skip
