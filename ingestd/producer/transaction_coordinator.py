"""Transaction coordinator: what a transactional producer asks of its cluster, and the requests that ask it.

A supervisor may implement `TransactionCoordinator` too. Then it begins and ends transactions for a producer in another
process, which only writes batches.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingestd.client.client import CoordinatorKind
from ingestd.errors import (
    CommitOutcomeUnknown,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    ProducerFenced,
    is_retriable,
)
from ingestd.producer.identity import ProducerIdentity
from ingestd.retry import Backoff
from ingestd.tasks import end_task
from ingestd.wire.requests.groups import CommittedOffset
from ingestd.wire.requests.transactions import (
    add_offsets_to_transaction,
    add_partitions_to_transaction,
    end_transaction,
    init_producer_id,
    read_added_partitions,
    read_transaction_offsets,
    transaction_offset_commit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from kio.static.protocol import RequestPayload

    from ingestd.client.client import Client
    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.producer.settings import ProducerSettings
    from ingestd.retry import Deadline
    from ingestd.wire.connection import Connection
    from ingestd.wire.requests import Build

__all__ = ["EndedTransaction", "RequestedTransactions", "TransactionCoordinator", "fencing"]

_PURPOSE: Final = "transactions"
"""Connections of their own: a join that waits for other members of a group must not hold up a commit."""

_FEATURE: Final = "transaction.version"
_IMPLICIT: Final = 2
"""From this level on a partition is added by its first batch, and every end increments the epoch (KIP-890)."""

_SLOW: Final = 3.0
"""Seconds without an answer. Then the coordinator is looked up again. If it is another one, the answer is given up."""

_FENCING: Final = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)

# Answers that come before anything was written. Any other may come after a write: a coordinator that steps down while
# it waits for its replicas answers NOT_COORDINATOR, although its successor will find the write in the log.
_BEFORE_WRITE: Final = frozenset({ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress})

_MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.request_timed_out})


def fencing(error: KafkaError) -> KafkaError:
    """The error; a `ProducerFenced` if it says that the producer is fenced."""
    if error.code not in _FENCING or isinstance(error, ProducerFenced):
        return error
    why = "another producer has the transactional id by now, or the transaction took longer than its timeout"
    return ProducerFenced(error.code, f"{error.detail}: {why}")


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """What follows a transaction."""

    identity: ProducerIdentity
    """The producer's identity from now on. It is a new one if the end incremented the epoch."""
    repeated: bool = False
    """The request was sent more than once. A late copy could end the next transaction. So that one needs another
    epoch."""


class TransactionCoordinator(Protocol):
    """The requests of one transactional id. Each is repeated while errors pass, until its deadline.

    All raise `ProducerFenced`, `KafkaError` (refused for good), `DeadlineExceeded`, `UnsupportedVersion`, `Closed`.
    """

    @property
    def implicit(self) -> bool:
        """After `initialize`: whether a first batch adds its partition, and each end increments the epoch (KIP-890)."""
        ...

    async def initialize(self, previous: ProducerIdentity | None, deadline: Deadline) -> ProducerIdentity:
        """A new epoch. It fences all earlier ones, and their open transaction is aborted first (InitProducerId).

        With `previous`: the epoch after one's own. Refused if another producer has taken over (KIP-360).
        """
        ...

    async def add_partitions(
        self, identity: ProducerIdentity, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> bool:
        """Make partitions part of the open transaction (AddPartitionsToTxn).

        True: the request was repeated. A late copy could count for the next transaction of the same epoch.
        """
        ...

    async def add_group(self, identity: ProducerIdentity, group_id: str, deadline: Deadline) -> bool:
        """Make a group part of the open transaction (AddOffsetsToTxn). True: as for `add_partitions`."""
        ...

    async def commit_offsets(
        self,
        identity: ProducerIdentity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMember,
        *,
        implicit: bool,
        deadline: Deadline,
    ) -> bool:
        """Have a group's offsets become visible with the transaction (TxnOffsetCommit). True: as above.

        The group was added before, unless `implicit`.
        """
        ...

    async def end(
        self, identity: ProducerIdentity, *, commit: bool, implicit: bool, deadline: Deadline
    ) -> EndedTransaction:
        """Commit or abort (EndTxn). If the answer was lost, the request is repeated, which the coordinator allows.

        Raises `CommitOutcomeUnknown` if a commit may have happened. If its cause is retriable, asking again may tell.
        Any other error means that nothing was committed.
        """
        ...


class RequestedTransactions:
    """Asks the coordinators of a cluster. See `TransactionCoordinator`.

    Invariants
        A request is repeated only if its answer was lost, or was an error that passes, and if repeating it is allowed.
    """

    def __init__(self, client: Client, settings: ProducerSettings) -> None:
        """`settings` has a transactional id."""
        assert settings.transactional_id is not None
        self._client = client
        self._id = settings.transactional_id
        self._timeout_ms = int(settings.transaction_timeout * 1000)
        self._settings = settings
        self._level = 0

    @property
    def implicit(self) -> bool:
        """See `TransactionCoordinator`. From the finalized feature, as the coordinator said it last."""
        return self._level >= _IMPLICIT

    async def initialize(self, previous: ProducerIdentity | None, deadline: Deadline) -> ProducerIdentity:
        """See `TransactionCoordinator`."""
        held = {} if previous is None else {"producer_id": previous.producer_id, "producer_epoch": previous.epoch}
        build = init_producer_id(self._id, transaction_timeout_ms=self._timeout_ms, **held)
        answer = await self._asking().ask(build, f"{self._id}: InitProducerId", _single, deadline)
        return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))

    async def add_partitions(
        self, identity: ProducerIdentity, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> bool:
        """See `TransactionCoordinator`."""
        build = add_partitions_to_transaction(self._id, identity.producer_id, identity.epoch, partitions)
        asking = self._asking()
        doing = f"{self._id}: AddPartitionsToTxn"
        await asking.ask(build, doing, lambda answer: _worst(read_added_partitions(answer)), deadline)
        return asking.uncertain

    async def add_group(self, identity: ProducerIdentity, group_id: str, deadline: Deadline) -> bool:
        """See `TransactionCoordinator`."""
        build = add_offsets_to_transaction(self._id, identity.producer_id, identity.epoch, group_id)
        asking = self._asking()
        await asking.ask(build, f"{self._id}: AddOffsetsToTxn of {group_id}", _single, deadline)
        return asking.uncertain

    async def commit_offsets(
        self,
        identity: ProducerIdentity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMember,
        *,
        implicit: bool,
        deadline: Deadline,
    ) -> bool:
        """See `TransactionCoordinator`."""
        commit = transaction_offset_commit(
            self._id,
            identity.producer_id,
            identity.epoch,
            member.group_id,
            [
                CommittedOffset(partition.topic, partition.partition, each.offset, each.leader_epoch, each.metadata)
                for partition, each in offsets.items()
            ],
            generation=member.generation,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            implicit=implicit,
        )
        asking = _Asking(self._client, self._settings, member.group_id, CoordinatorKind.group, lambda _: None)
        doing = f"{self._id}: TxnOffsetCommit of {member.group_id}"
        await asking.ask(commit, doing, lambda answer: _worst(read_transaction_offsets(answer)), deadline)
        return asking.uncertain

    async def end(
        self, identity: ProducerIdentity, *, commit: bool, implicit: bool, deadline: Deadline
    ) -> EndedTransaction:
        """See `TransactionCoordinator`."""
        build = end_transaction(self._id, identity.producer_id, identity.epoch, commit=commit, implicit=implicit)
        asking = self._asking()
        doing = f"{self._id}: EndTxn ({'commit' if commit else 'abort'})"
        try:
            answer = await asking.ask(build, doing, _single, deadline)
        except IngestdError as error:
            if commit and asking.uncertain:
                raise CommitOutcomeUnknown(f"the commit was sent and its answer was lost; then: {error}") from error
            raise
        following = identity
        if implicit and answer.producer_id >= 0:
            following = ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))
        return EndedTransaction(following, asking.uncertain)

    def _asking(self) -> _Asking:
        return _Asking(self._client, self._settings, self._id, CoordinatorKind.transaction, self._learn)

    def _learn(self, connection: Connection) -> None:
        self._level = connection.versions.feature(_FEATURE)


class _Asking:
    """One request to the coordinator of one key, repeated until there is an answer.

    `uncertain`: an attempt may have taken effect although no answer said so.
    """

    def __init__(
        self,
        client: Client,
        settings: ProducerSettings,
        key: str,
        kind: CoordinatorKind,
        connected: Callable[[Connection], None],
    ) -> None:
        self._client = client
        self._settings = settings
        self._key = key
        self._kind = kind
        self._connected = connected
        self.uncertain = False

    async def ask(
        self, build: Build, doing: str, read: Callable[[Any], tuple[ErrorCode, str]], deadline: Deadline
    ) -> Any:
        """The answer that has no error. Raises as `TransactionCoordinator` says."""
        # CONCURRENT_TRANSACTIONS: the markers of the transaction before are being written. That takes milliseconds.
        backoff = Backoff(initial=0.005, maximum=self._settings.retry_maximum)
        while True:
            try:
                return await self._attempt(build, doing, read, deadline)
            except IngestdError as error:
                if not is_retriable(error):
                    raise
                if not isinstance(error, KafkaError) or error.code in _MOVED:
                    self._client.forget_coordinator(self._key, self._kind)
                trouble = error
            delay = backoff.next_delay()
            if delay >= deadline.remaining:
                raise DeadlineExceeded(f"{doing}: not done within {deadline.shown} s; the last trouble: {trouble}")
            await asyncio.sleep(delay)

    async def _attempt(
        self, build: Build, doing: str, read: Callable[[Any], tuple[ErrorCode, str]], deadline: Deadline
    ) -> Any:
        broker = await self._client.coordinator(self._key, self._kind, deadline.remaining, purpose=_PURPOSE)
        connection = await broker.connection(min(self._settings.connect_timeout, deadline.remaining))
        self._connected(connection)
        request = build(connection.versions)
        try:
            answer = await self._answer(broker.node.id, connection, request, deadline)
        except BaseException as error:
            self.uncertain = True
            if isinstance(error, IngestdError) and not is_retriable(error):
                # An answer that cannot be read.
                raise ConnectionLost(f"{doing}: {error}") from error
            raise
        code, detail = read(answer)
        if code is ErrorCode.none:
            return answer
        refusal = fencing(KafkaError(code, f"{doing}: {detail}" if detail else doing))
        if refusal.retriable and code not in _BEFORE_WRITE:
            self.uncertain = True
        raise refusal

    async def _answer(self, node_id: int, connection: Connection, request: RequestPayload, deadline: Deadline) -> Any:
        """The answer. If the node is frozen, this waits only until another one is elected."""
        timeout = min(self._settings.request_timeout, deadline.remaining)
        answering = asyncio.ensure_future(connection.request(request, timeout=timeout))
        try:
            while not (await asyncio.wait({answering}, timeout=_SLOW))[0]:
                if await self._moved(node_id, deadline):
                    connection.abort(ConnectionLost(f"node {node_id} does not answer; another one coordinates"))
            return answering.result()
        finally:
            await end_task(answering)

    async def _moved(self, node_id: int, deadline: Deadline) -> bool:
        self._client.forget_coordinator(self._key, self._kind)
        try:
            broker = await self._client.coordinator(
                self._key, self._kind, min(_SLOW, deadline.remaining), purpose=_PURPOSE
            )
        except IngestdError:
            return False  # not known: then it may still be the node that was asked
        return broker.node.id != node_id


def _single(answer: Any) -> tuple[ErrorCode, str]:
    return answer.error_code, ""


def _worst(answers: Iterable[tuple[str, int, ErrorCode]]) -> tuple[ErrorCode, str]:
    """The error that decides: a final one before one that passes. OPERATION_NOT_ATTEMPTED is about other partitions."""
    decisive: tuple[ErrorCode, str] | None = None
    for topic, partition, code in answers:
        if code in (ErrorCode.none, ErrorCode.operation_not_attempted):
            continue
        if decisive is None or (KafkaError(decisive[0]).retriable and not KafkaError(code).retriable):
            decisive = code, f"{topic}-{partition}"
    return decisive or (ErrorCode.none, "")
