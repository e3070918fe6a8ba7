"""Produce set: the batches of one produce request, at most one per partition, and the answer to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.client.metadata import NewLeader, Node
from ingestd.errors import ErrorCode, IngestdError, KafkaError, ProtocolError, UnsupportedCodec
from ingestd.records.batch import codec_of
from ingestd.records.codecs import Codec
from ingestd.records.message_set import message_set_of_batch
from ingestd.wire.produce import FIRST_WITH_BATCHES, LOWEST, produce_request, read_produce_answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from ingestd.client.metadata import MetadataSource, TopicMetadata
    from ingestd.producer.batch import Batch
    from ingestd.producer.partition_producer import PartitionProducer
    from ingestd.wire.codec import Buffer
    from ingestd.wire.produce import PartitionAnswer
    from ingestd.wire.versions import ApiVersions

__all__ = ["ProduceSet", "produce_version"]

_BY_TOPIC_ID: Final = 13
_PRODUCE: Final = 0
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_TIMESTAMPS: Final = 2
_SUCCESS: Final = (ErrorCode.none, ErrorCode.duplicate_sequence_number)


def produce_version(versions: ApiVersions) -> int:
    """The newest Produce version that both sides speak. Raises `UnsupportedVersion`."""
    return versions.pick(_PRODUCE, LOWEST, _BY_TOPIC_ID)


class ProduceSet:
    """Collects batches until the request is large enough. Then it stands for the request until the answer.

    Invariants
        One batch per partition: brokers refuse more (INVALID_RECORD).
        Every batch added ends in one call of its partition's `acknowledged` or `returned`.
    """

    __slots__ = ("_by_id", "_converted", "entries", "size")

    def __init__(self) -> None:
        self.entries: list[tuple[PartitionProducer, Batch]] = []
        self.size = 0
        self._by_id: dict[UUID, str] = {}
        self._converted: dict[Batch, Buffer] = {}

    def add(self, partition: PartitionProducer, batch: Batch) -> None:
        """Add a partition's batch. The batch is numbered and sealed."""
        self.entries.append((partition, batch))
        self.size += len(batch.data)

    def suit(self, version: int, node: int) -> list[tuple[PartitionProducer, Batch, IngestdError]]:
        """Make the batches fit for an old broker. Removes those that it cannot take, and returns them with errors.

        Brokers before 0.11 take message sets, which have no headers. Those before 2.1 do not know zstd (KIP-110), and
        their own error for it is unclear.
        """
        if version >= _FIRST_WITH_ZSTD:
            return []
        kept: list[tuple[PartitionProducer, Batch]] = []
        refused: list[tuple[PartitionProducer, Batch, IngestdError]] = []
        for partition, batch in self.entries:
            try:
                if codec_of(batch.data) is Codec.zstd:
                    raise UnsupportedCodec("too old for zstd, which needs Kafka 2.1")
                if version < FIRST_WITH_BATCHES:
                    magic = 1 if version >= _FIRST_WITH_TIMESTAMPS else 0
                    self._converted[batch] = message_set_of_batch(batch.data, magic)
            except IngestdError as error:
                refused.append((partition, batch, type(error)(f"{partition}: node {node}: {error}")))
                continue
            kept.append((partition, batch))
        self.entries[:] = kept
        return refused

    def request(
        self,
        version: int,
        acks: int,
        timeout_ms: int,
        topics: Mapping[str, TopicMetadata],
        transactional_id: str | None = None,
    ) -> tuple[int, list[Buffer]]:
        """The version to use and the request's body. Topics whose ids are not known need a version that names them."""
        by_topic: dict[str, list[tuple[int, Buffer]]] = {}
        for partition, batch in self.entries:
            by_topic.setdefault(partition.topic, []).append(
                (partition.partition, self._converted.get(batch, batch.data))
            )
        ids: dict[str, UUID | None] = dict.fromkeys(by_topic)
        if version >= _BY_TOPIC_ID:
            for topic in by_topic:
                known = topics.get(topic)
                if known is None or not known.topic_id:
                    version = _BY_TOPIC_ID - 1
                    break
                ids[topic] = known.topic_id
                self._by_id[known.topic_id] = topic
        listed = [(topic, ids[topic], batches) for topic, batches in by_topic.items()]
        return version, produce_request(version, acks, timeout_ms, transactional_id, listed)

    def answer(self, version: int, body: memoryview, metadata: MetadataSource) -> int:
        """Give every batch its answer. The throttle time in milliseconds. `ProtocolError`: no batch had an answer.

        Leaders that the answer names (KIP-951) are told to `metadata` first, so that partitions go to them at once.
        """
        whole = read_produce_answer(version, body)
        answers: dict[tuple[str, int], PartitionAnswer] = {}
        for answer in whole.partitions:
            topic = answer.topic if answer.topic_id is None else self._by_id.get(answer.topic_id, "")
            answers[topic, answer.partition] = answer
        found = []
        for partition, batch in self.entries:
            given = answers.get((partition.topic, partition.partition))
            if given is None:
                raise ProtocolError(f"a produce answer without {partition}")
            found.append((partition, batch, given))
        nodes = {node.id: Node(node.id, node.host, node.port, node.rack) for node in whole.nodes}
        leaders = [
            NewLeader(one.topic, one.partition, given.leader_id, given.leader_epoch, nodes.get(given.leader_id))
            for one, _, given in found
            if given.leader_id >= 0
        ]
        if leaders:
            metadata.hints(leaders)
        for partition, batch, given in found:
            if given.error in _SUCCESS:
                partition.acknowledged(batch, given.base_offset, given.log_append_time_ms)
            else:
                said = f"{partition}: {given.error_message}" if given.error_message else str(partition)
                partition.returned(batch, KafkaError(given.error, said))
        return whole.throttle_ms
