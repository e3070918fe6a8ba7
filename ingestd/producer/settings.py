"""Producer settings: one frozen value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ingestd.checks import check_kinds, require_at_least, require_positive_seconds, take_text
from ingestd.errors import ConfigurationError
from ingestd.producer.partitioners import PARTITIONERS
from ingestd.records.codecs import Compression
from ingestd.retry import Backoff

if TYPE_CHECKING:
    from ingestd.producer.interceptors import Interceptor
    from ingestd.producer.partitioners import Partitioner, PartitionerFactory

__all__ = ["ACKS_ALL", "REMEMBERED_BATCHES", "ProducerSettings"]

ACKS_ALL: Final = -1
"""Every in-sync replica has the batch before it is acknowledged."""

REMEMBERED_BATCHES: Final = 5
"""Brokers remember so many batches per producer and partition (KIP-98). With more in flight, duplicates could pass."""

_COUNTS: Final = (
    "batch_bytes",
    "batch_records",
    "request_bytes",
    "buffer_bytes",
    "in_flight_requests",
    "breaker_failures",
)
_LONGEST_LINGER: Final = 86_400
_SECONDS: Final = (
    "delivery_timeout",
    "request_timeout",
    "acknowledge_timeout",
    "connect_timeout",
    "metadata_timeout",
    "retry_initial",
    "retry_maximum",
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of an `AsyncProducer`. Bytes and seconds. Raises `ConfigurationError` naming the setting."""

    acks: int | Literal["all"] = "all"
    """"all", or -1: all in-sync replicas; 1: the leader; 0: none, and neither offsets nor errors come back."""
    idempotent: bool | None = None
    """None: whenever `acks` is -1. Without it a partition has one batch in flight, and a retry may write twice."""
    compression: Compression | str = "none"
    """For records given to `send`; ready batches keep their own. As text: "none", "gzip", "snappy", "lz4" or "zstd". A
    level may follow, as in "zstd:3"."""
    partitioner: PartitionerFactory | str = "murmur2"
    """Makes the partitioner of each topic, for records given to `send` without a partition. As text, one of
    `PARTITIONERS`: "murmur2" chooses as Java's producer does, "crc32" as librdkafka's, "fnv1a" as sarama's; "random",
    "round-robin", "sticky", "manual"; "murmur2-all", "crc32-all" and "fnv1a-all" hash a missing key as an empty one."""
    interceptors: tuple[Interceptor, ...] = ()
    """See and change records given to `send`, one after the other, before they are partitioned."""
    batch_bytes: int = 1024 * 1024
    """The largest batch made of records given to `send`, its header counted, before compression; a larger record gets
    a batch of its own. It must stay within the topic's `max.message.bytes`; the default does, within Kafka's default.
    Brokers refuse a larger batch: its halves are sent then, and `ProducerEvents.retried` is told."""
    batch_records: int = 1_000_000
    """An open batch is sent when it has so many records."""
    linger: float = 0.005
    """An open batch is sent when its first record is this old."""
    request_bytes: int = 8 * 1024 * 1024
    """Batches of several partitions share a request up to this size. A larger batch has a request of its own."""
    buffer_bytes: int = 64 * 1024 * 1024
    """Records accepted by `send` and not yet done, before compression; beyond it `send` raises `BufferFull`."""
    in_flight_requests: int = REMEMBERED_BATCHES
    """Requests in flight per broker."""
    delivery_timeout: float = 120.0
    """From acceptance until the last attempt may begin; `inf` never gives up. An attempt under way is waited for."""
    request_timeout: float = 30.0
    """From a request until its answer; then the connection is aborted."""
    acknowledge_timeout: float = 20.0
    """What the leader may wait for its in-sync replicas before it answers REQUEST_TIMED_OUT."""
    connect_timeout: float = 10.0
    """For opening a connection to a leader."""
    metadata_timeout: float = 60.0
    """How long to wait for a topic that the cluster does not know: this, at most `delivery_timeout`. For a partition
    that the topic does not have it is 10 s."""
    create_topics: bool = True
    """Whether the first record of a missing topic creates it, if the brokers allow that
    (`auto.create.topics.enable`). Otherwise its records fail after `metadata_timeout`."""
    retry_initial: float = 0.05
    """The first backoff of a partition."""
    retry_maximum: float = 1.0
    """The longest backoff of a partition."""
    transactional_id: str | None = None
    """Makes the producer transactional. Brokers know it by this name, and let one producer at a time use it."""
    transaction_timeout: float = 60.0
    """What a transaction may take; then the broker aborts it and fences the producer. At most the broker's
    `transaction.max.timeout.ms`, 15 minutes by default."""
    breaker_failures: int = 3
    """After so many waits in a row for a topic's metadata that ended without it, its records are refused at once …"""
    breaker_pause: float = 10.0
    """… for this long; then one more wait decides."""

    def __post_init__(self) -> None:
        take_text(self, "acks", _acks)
        take_text(self, "compression", Compression.parse)
        take_text(self, "partitioner", _partitioner)
        self._check_kinds()
        if self.acks not in (-1, 0, 1):
            raise ConfigurationError(f"acks: {self.acks}; expected -1 (all), 1 or 0")
        if self.idempotent and self.acks != ACKS_ALL:
            raise ConfigurationError(f"idempotent: true with acks {self.acks}; expected acks -1 (all)")
        if self.transactional_id is not None:
            self._check_transactional(self.transactional_id)
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}: {getattr(self, name)}; expected at least 1")
        if self.in_flight_requests > REMEMBERED_BATCHES:
            raise ConfigurationError(
                f"in_flight_requests: {self.in_flight_requests}; expected at most {REMEMBERED_BATCHES}"
            )
        require_at_least(self, 0, "seconds", ("linger", "breaker_pause"))
        if self.linger > _LONGEST_LINGER:
            raise ConfigurationError(f"linger: {self.linger}; expected seconds, at most {_LONGEST_LINGER}")
        require_positive_seconds(self, _SECONDS)
        if self.acknowledge_timeout * 1000 >= 1 << 31:
            raise ConfigurationError(f"acknowledge_timeout: {self.acknowledge_timeout}; expected below 2^31 ms")

    def _check_kinds(self) -> None:
        kinds = {"acks": int, "idempotent": bool, "compression": Compression, "partitioner": object}
        check_kinds(self, kinds | {"interceptors": tuple, "transactional_id": str})
        if not callable(self.partitioner):
            raise ConfigurationError(f"partitioner: {self.partitioner!r}; expected what makes a topic's partitioner")

    def _check_transactional(self, transactional_id: str) -> None:
        if not transactional_id:
            raise ConfigurationError("transactional_id: empty; expected a name, or None")
        if not self.numbered:
            raise ConfigurationError("transactional_id: needs an idempotent producer with acks -1 (all)")
        if not 1 <= self.transaction_timeout * 1000 < 1 << 31:
            raise ConfigurationError(
                f"transaction_timeout: {self.transaction_timeout}; expected seconds, at least 0.001, below 2^31 ms"
            )

    @property
    def required_acks(self) -> int:
        """`acks` as the protocol has it."""
        return _acks(self.acks) if isinstance(self.acks, str) else self.acks

    @property
    def numbered(self) -> bool:
        """Whether batches have producer id, epoch and sequence."""
        return self.acks == ACKS_ALL if self.idempotent is None else self.idempotent

    @property
    def window(self) -> int:
        """Most batches of one partition in flight. Without idempotence it is 1, because only that keeps their order."""
        return self.in_flight_requests if self.numbered else 1

    def backoff(self) -> Backoff:
        """A new backoff, for one partition or one purpose."""
        return Backoff(self.retry_initial, self.retry_maximum)

    def new_partitioner(self, topic: str) -> Partitioner:
        """The partitioner for one topic."""
        factory = _partitioner(self.partitioner) if isinstance(self.partitioner, str) else self.partitioner
        return factory(topic)


def _acks(text: str) -> int:
    if text not in ("all", "-1", "0", "1"):
        raise ConfigurationError(f'{text!r}; expected "all", -1, 1 or 0')
    return ACKS_ALL if text == "all" else int(text)


def _partitioner(name: str) -> PartitionerFactory:
    if name not in PARTITIONERS:
        raise ConfigurationError(f"{name!r}; expected one of {', '.join(PARTITIONERS)}")
    return PARTITIONERS[name]
