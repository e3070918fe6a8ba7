"""The configurations of the broker itself, by Kafka's names: what it was started with. None changes while it runs."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.kinds import ConfigSource, ConfigType
from ingestd.broker.configs.topic_table import TOPIC_CONFIGURATIONS
from ingestd.broker.settings import BrokerSettings
from ingestd.broker.topic_config import Described

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["described_broker"]

_UNITS: Final = {"ms": 1_000, "minutes": 1 / 60}

# Kafka's name, our setting, the unit of Kafka's value if it is a time, type, and what it says.
_SETTINGS: Final = (
    ("auto.create.topics.enable", "auto_create_topics", "", ConfigType.BOOLEAN, "Whether Metadata creates topics."),
    ("broker.id", "node_id", "", ConfigType.INT, "This node's id."),
    ("connections.max.idle.ms", "idle_timeout", "ms", ConfigType.LONG, "An idle connection is closed after this time."),
    ("fetch.max.bytes", "max_fetch_bytes", "", ConfigType.INT, "Largest answer to a fetch request."),
    (
        "group.consumer.assignors", "consumer_assignors", "", ConfigType.LIST,
        "Assignors that members of KIP-848 groups may choose, the default first.",
    ),
    (
        "group.consumer.heartbeat.interval.ms", "consumer_heartbeat_interval", "ms", ConfigType.INT,
        "Time between heartbeats that members of KIP-848 groups are told.",
    ),
    (
        "group.consumer.session.timeout.ms", "consumer_session_timeout", "ms", ConfigType.INT,
        "How long members of KIP-848 groups may be silent.",
    ),
    (
        "group.initial.rebalance.delay.ms", "initial_rebalance_delay", "ms", ConfigType.INT,
        "How long a new group waits for more members.",
    ),
    ("group.max.session.timeout.ms", "max_session_timeout", "ms", ConfigType.INT, "Longest session timeout."),
    ("group.min.session.timeout.ms", "min_session_timeout", "ms", ConfigType.INT, "Shortest session timeout."),
    (
        "log.cleaner.backoff.ms", "cleaner_interval", "ms", ConfigType.LONG,
        "Time between two looks for logs to compact.",
    ),
    (
        "log.cleaner.dedupe.buffer.size", "cleaner_map_bytes", "", ConfigType.LONG,
        "Memory for the keys of the log that is compacted.",
    ),
    (
        "log.retention.check.interval.ms", "retention_check_interval", "ms", ConfigType.LONG,
        "Time between two checks of retention.",
    ),
    ("max.connections", "max_connections", "", ConfigType.INT, "Most connections at a time."),
    (
        "max.incremental.fetch.session.cache.slots", "max_fetch_sessions", "", ConfigType.INT,
        "Most fetch sessions at a time.",
    ),
    ("node.id", "node_id", "", ConfigType.INT, "This node's id."),
    ("num.partitions", "default_partitions", "", ConfigType.INT, "Partitions of a topic made on demand."),
    ("offset.metadata.max.bytes", "offset_metadata_bytes", "", ConfigType.INT, "Longest metadata of a commit."),
    (
        "offsets.retention.check.interval.ms", "offsets_retention_check_interval", "ms", ConfigType.LONG,
        "Time between two checks for expired offsets.",
    ),
    (
        "offsets.retention.minutes", "offsets_retention", "minutes", ConfigType.INT,
        "How long the offsets of an empty group are kept; 0: for ever.",
    ),
    (
        "offsets.topic.num.partitions", "offsets_partitions", "", ConfigType.INT,
        "Partitions of the topic of the groups.",
    ),
    (
        "producer.id.expiration.ms", "producer_expiry", "ms", ConfigType.INT,
        "A producer that wrote nothing for this time is forgotten.",
    ),
    ("queued.max.request.bytes", "max_in_flight_bytes", "", ConfigType.LONG, "Bytes of requests and answers in work."),
    ("socket.request.max.bytes", "max_request_bytes", "", ConfigType.INT, "Largest request taken."),
)  # fmt: skip
_REPLICATION: Final = (
    ("default.replication.factor", ConfigType.INT),
    ("offsets.topic.replication.factor", ConfigType.SHORT),
)
_CONSTANT: Final = (
    ("log.cleaner.enable", "true", ConfigType.BOOLEAN, "Compacted topics are compacted."),
    ("log.cleaner.threads", "1", ConfigType.INT, "One log is compacted at a time."),
    ("process.roles", "broker,controller", ConfigType.LIST, "The node is its own controller."),
)

_DEFAULTS: Final = {one.name: one.default for one in fields(BrokerSettings)}


def described_broker(settings: BrokerSettings, address: tuple[str, int]) -> Iterator[Described]:
    """Every configuration of the broker. `address` is the one that clients are told."""
    for name, field, unit, kind, says in _SETTINGS:
        value = getattr(settings, field)
        yield _described(name, _text(value, unit), kind, says, is_set=value != _DEFAULTS[field])
    for name, kind in _REPLICATION:
        yield _described(name, str(settings.nodes), kind, "Every node has every log.", is_set=settings.nodes > 1)
    for name, text, kind, says in _CONSTANT:
        yield _described(name, text, kind, says, is_set=False)
    host, port = address
    yield _described(
        "advertised.listeners",
        f"{settings.security.protocol}://{host}:{port}",
        ConfigType.LIST,
        "Where clients connect.",
        is_set=True,
    )
    yield _described("log.dirs", str(settings.data), ConfigType.LIST, "The directory of the topics.", is_set=True)
    yield from _defaults_of_topics(settings)


def _text(value: object, unit: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, int | float) and unit:
        return str(round(value * _UNITS[unit]))
    return str(value)


def _described(name: str, text: str, kind: int, says: str, *, is_set: bool) -> Described:
    source = ConfigSource.STATIC_BROKER if is_set else ConfigSource.DEFAULT
    return Described(name, text, kind, says, ((name, text, source),))


def _defaults_of_topics(settings: BrokerSettings) -> Iterator[Described]:
    """What topics have that have no value of their own, by the names of the broker's configurations."""
    for name, known in TOPIC_CONFIGURATIONS.items():
        own = settings.topic_defaults.get(name)
        says = f"Default of {name}. {known.documentation}"
        if own is not None:
            yield _described(known.broker_name or name, known.canonical(own), known.type, says, is_set=True)
        elif known.fallback is not None:
            broker_name, value = known.fallback
            kind = ConfigType.INT if broker_name.endswith(".hours") else known.type
            yield _described(broker_name, value, kind, says, is_set=False)
