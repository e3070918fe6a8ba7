"""Missing: why a topic's partitions are not known, for the errors of records that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.errors import ConnectionLost, ErrorCode, KafkaError

if TYPE_CHECKING:
    from ingestd.client.metadata import MetadataSource
    from ingestd.errors import IngestdError
    from ingestd.producer.settings import ProducerSettings

__all__ = ["why_unknown"]


def why_unknown(metadata: MetadataSource, topic: str, settings: ProducerSettings) -> IngestdError:
    """A new error to raise: the brokers refuse this client, none of them answers, or what they say about the topic."""
    for error in (metadata.failure, metadata.last_error):
        if error is not None:
            return type(error)(*error.args)
    known = metadata.snapshot.topics.get(topic)
    if known is None and not metadata.snapshot.nodes:
        return ConnectionLost("no broker has answered yet")
    code = ErrorCode.unknown_topic_or_partition if known is None else known.error
    if code is ErrorCode.none:
        code = ErrorCode.leader_not_available
    if code is ErrorCode.unknown_topic_or_partition:
        made = "the brokers do not create it" if settings.create_topics else "create_topics is off"
        return KafkaError(code, f"there is no topic {topic}, and {made}")
    return KafkaError(code, topic)
