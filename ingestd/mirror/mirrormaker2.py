"""Where MirrorMaker 2 stopped: the offsets of its source connector, which Kafka Connect keeps on the target.

topic    `mm2-offsets.ALIAS.internal`, where ALIAS is what MirrorMaker 2 calls the source cluster
key      JSON: ["MirrorSourceConnector", {"cluster": ALIAS, "partition": 0, "topic": "orders"}]
value    JSON: {"offset": 41}, of the last record that was copied; nothing, where it was dropped
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from ingestd.client.client import Client

__all__ = ["note_offset", "offsets_topic", "read_offsets"]

_CONNECTOR: Final = "MirrorSourceConnector"


def offsets_topic(alias: str) -> str:
    """Where MirrorMaker 2 keeps its offsets on the target, by what it calls the source."""
    return f"mm2-offsets.{alias}.internal"


async def read_offsets(target: Client, alias: str, timeout: float) -> dict[TopicPartition, int]:
    """The next offset to read of each partition at the source; nothing if there is no such topic.

    Raises `IngestdError`, also for a record that MirrorMaker 2 does not write.
    """
    topic = offsets_topic(alias)
    known = (await target.metadata.refresh({topic}, timeout)).topics.get(topic)
    if known is None or known.error is ErrorCode.unknown_topic_or_partition:
        return {}
    if known.error is not ErrorCode.none:
        raise KafkaError(known.error, f"{topic}, which has the offsets of MirrorMaker 2, can not be read")
    found: dict[TopicPartition, int] = {}
    settings = ConsumerSettings(isolation="read_committed", out_of_range="earliest", metadata_timeout=timeout)
    async with Consumer(target, settings) as consumer:
        for partition in range(len(known.partitions)):
            async for record in await consumer.consume_partition(topic, partition, "earliest", "latest"):
                note_offset(found, alias, record.key, record.value)
    return found


def note_offset(found: dict[TopicPartition, int], alias: str, key: bytes | None, value: bytes | None) -> None:
    """Put what one record says into `found`. Raises `IngestdError` if it can not be understood."""
    try:
        connector, of = orjson.loads(key or b"")
        if connector != _CONNECTOR or of["cluster"] != alias:
            return
        partition = TopicPartition(str(of["topic"]), int(of["partition"]))
        last = None if value is None else int(orjson.loads(value)["offset"])
    except (ValueError, TypeError, KeyError) as error:
        raise IngestdError(
            f"{offsets_topic(alias)} has the record {key!r}, {value!r}; expected what MirrorMaker 2 writes, as "
            f'["{_CONNECTOR}",{{"cluster":"{alias}","partition":0,"topic":"orders"}}] with {{"offset":41}}'
        ) from error
    if last is None:
        found.pop(partition, None)
    else:
        found[partition] = last + 1
