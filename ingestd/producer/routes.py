"""What partitions need of the stages around them: where a leader's requests are filled, and who ends everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ingestd.client.metadata import MetadataSource
    from ingestd.errors import IngestdError
    from ingestd.producer.partition_producer import PartitionProducer
    from ingestd.producer.transaction_members import TransactionMembers

__all__ = ["Route", "Routes"]


class Route(Protocol):
    """A leader's broker producer, as partitions see it."""

    def ready(self, partition: PartitionProducer) -> None:
        """This partition has a batch to send: ask it with `next` when a request has room."""
        ...


class Routes(Protocol):
    """What partitions need of the dispatcher."""

    metadata: MetadataSource
    transaction: TransactionMembers | None

    def route(self, node: int) -> Route:
        """The broker producer of a node."""
        ...

    def fatal(self, error: IngestdError) -> None:
        """The producer as a whole cannot go on: ends every batch of every partition with `error`, soon."""
        ...
