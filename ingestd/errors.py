"""One exception hierarchy, and what a Kafka error code means for whoever meets it.

Everything that ingestd raises on purpose is an `IngestdError`. What a broker answers becomes a `KafkaError`, whose
three properties say what to do about it; no call site keeps a list of codes of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AuthenticationFailed",
    "BufferFull",
    "Closed",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "ConnectionLost",
    "CorruptBatch",
    "DeadlineExceeded",
    "ErrorCode",
    "IngestdError",
    "KafkaError",
    "LogTruncated",
    "ProducerFenced",
    "ProtocolError",
    "TopicRecreated",
    "TransactionFailed",
    "UnsupportedCodec",
    "UnsupportedVersion",
    "UsedAfterFork",
    "WrongLoop",
    "WrongTransactionState",
    "is_retriable",
    "raise_for_code",
]


class IngestdError(Exception):
    """Base of every error that ingestd raises on purpose."""


class ConfigurationError(IngestdError):
    """A setting is wrong; the message names the file, the key, the value and what was expected."""


class WrongSetting(ConfigurationError, ValueError):
    """Raised by a settings class for a value of the right type that it can not take, naming the field.

    beside: other fields that the value is wrong beside. also: what else is wrong in the same settings.
    """

    def __init__(self, key: str, expected: str, *, beside: Iterable[str] = ()) -> None:
        super().__init__(f"{key}: expected {expected}")
        self.key = key
        self.expected = expected
        self.beside = frozenset(beside)
        self.also: tuple[WrongSetting, ...] = ()


class Closed(IngestdError):
    """The object was closed; it accepts nothing more."""


class DeadlineExceeded(IngestdError, TimeoutError):
    """A wait ended at its deadline without the answer."""


class BufferFull(IngestdError):
    """A bounded buffer has no room now; the caller may wait for room or give up."""


class UsedAfterFork(IngestdError):
    """The object was made before `os.fork` and is used in the child; connections and threads belong to the parent."""


class WrongLoop(IngestdError):
    """The object belongs to another event loop, whose connections and tasks it has; make one on each loop."""


class WrongTransactionState(IngestdError):
    """A call that the producer's transaction state does not allow; nothing was done. The message names the state."""


class TransactionFailed(IngestdError):
    """The transaction did not commit, for certain: it was aborted, or can only be aborted. The cause is attached."""


class CommitOutcomeUnknown(IngestdError):
    """A commit was sent and its answer is not known: the transaction may be committed, or may be aborted.

    Calling `commit` again goes on asking, unless the producer was fenced meanwhile.
    """


class ConnectionLost(IngestdError, ConnectionError):
    """No connection to a broker, or it ended with requests in flight; nobody knows whether they took effect."""


class AuthenticationFailed(IngestdError):
    """This client and a broker do not accept each other; the message names the broker and the reason.

    A wrong password, a certificate that is not trusted or has expired, a mechanism that is not enabled, TLS on one side
    only. Trying again is pointless until somebody changes an account, a certificate or a setting.
    """


class ProtocolError(IngestdError):
    """The other side sent bytes that do not follow the protocol, or follow it beyond a stated limit."""


class CorruptBatch(ProtocolError):
    """A record batch fails its checksum, its lengths disagree, or it exceeds a stated limit."""


class LogTruncated(IngestdError):
    """Records that were read are not in the partition's log any more: an unclean election cut it (KIP-320).

    `offset` is where reading would have gone on, `leader_epoch` the epoch under which the record before it was
    appended, `diverged_at` the first offset at which the log is no longer the one that was read.
    """

    def __init__(self, topic: str, partition: int, offset: int, leader_epoch: int, diverged_at: int) -> None:
        super().__init__(topic, partition, offset, leader_epoch, diverged_at)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.diverged_at = diverged_at

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: read up to offset {self.offset} of leader epoch {self.leader_epoch}, but "
            f"the log was cut and is another from offset {self.diverged_at} on"
        )


class TopicRecreated(IngestdError):
    """The topic was deleted and created again under its name: offsets of the old one mean nothing in the new one."""


class UnsupportedVersion(IngestdError):
    """The broker and this package share no version of an API, or of a feature asked for."""


class UnsupportedCodec(IngestdError):
    """A compression codec is unknown, or not known to the broker in question."""


class KafkaError(IngestdError):
    """A broker answered with an error code.

    `code` is the protocol's code (https://kafka.apache.org/protocol#protocol_error_codes); `detail` names the topic,
    partition, group or other thing it was about.
    """

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        name = self.code.name.upper()
        return f"{name} ({int(self.code)}): {self.detail}" if self.detail else f"{name} ({int(self.code)})"

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable or self.code in _REFRESH_METADATA

    @property
    def fatal(self) -> bool:
        """Whether the producer or member that met it can never go on under the same identity."""
        return self.code in _FATAL

    @property
    def refresh_metadata(self) -> bool:
        """Whether what is cached about the cluster is out of date."""
        return self.code in _REFRESH_METADATA


class ProducerFenced(KafkaError):
    """Another producer has taken the transactional id over, or the transaction outlived its timeout. Final."""


_REFRESH_METADATA: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.not_controller,
        ErrorCode.listener_not_found,
        ErrorCode.network_exception,
    }
)

_FATAL: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.fenced_instance_id,
        ErrorCode.unsupported_version,
        ErrorCode.sasl_authentication_failed,
    }
)


def raise_for_code(code: ErrorCode, detail: str = "") -> None:
    """Raise `KafkaError` unless `code` is `none`."""
    if code is not ErrorCode.none:
        raise KafkaError(code, detail)


def is_retriable(error: BaseException) -> bool:
    """Whether the operation that met `error` may succeed when tried again."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, (ConnectionLost, DeadlineExceeded))


def error_kind(error: BaseException) -> str:
    """The name to count an error under: Kafka's own (`not_leader_or_follower`), else that of its class."""
    return error.code.name if isinstance(error, KafkaError) else type(error).__name__
