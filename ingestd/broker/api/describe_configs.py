"""DescribeConfigs: topics' configurations with the source of each value; the broker's settings from its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topic_config import CONFIGURATIONS, ConfigSource, ConfigType, values_of
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.broker import Broker
    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_configs
VERSIONS: Final = range(1, 5)

_TOPIC: Final = 2
_BROKER: Final = 4


def handle(context: Context, request: Request) -> Answer:
    """Each resource has its own result."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    results = []
    first = ErrorCode.none
    for resource in asked.resources:
        error, configs = KafkaError(ErrorCode.none), ()
        try:
            configs = tuple(_describe(broker, schema, asked, resource))
        except KafkaError as refused:
            error = refused
        first = first or error.code
        results.append(
            schema.make(
                "DescribeConfigsResult",
                error_code=error.code,
                error_message=error.detail or None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return Answer([schema.encode(throttle_time=NO_THROTTLE, results=tuple(results))], first)


def _describe(broker: Broker, schema: Messages, asked: Any, resource: Any) -> Iterator[Any]:
    if resource.resource_type == _TOPIC:
        values = _topic_values(broker, resource.resource_name)
    elif resource.resource_type == _BROKER:
        values = _broker_values(broker, resource.resource_name)
    else:
        raise KafkaError(ErrorCode.invalid_request, f"resource type {resource.resource_type} has no configuration here")
    for name, value, source, value_type, documentation in values:
        # For "all", Java's client sends an empty list; others send null.
        if resource.configuration_keys and name not in resource.configuration_keys:
            continue
        synonyms: tuple[Any, ...] = ()
        if asked.include_synonyms:
            synonyms = (schema.make("DescribeConfigsSynonym", name=name, value=value, source=source),)
        yield schema.make(
            "DescribeConfigsResourceResult",
            name=name,
            value=value,
            read_only=resource.resource_type == _BROKER,
            config_source=source,
            is_sensitive=False,
            synonyms=synonyms,
            config_type=value_type,
            documentation=documentation if getattr(asked, "include_documentation", False) else None,
        )


def _topic_values(broker: Broker, name: str) -> Iterator[tuple[str, str, int, int, str]]:
    topic = broker.topic_named(name)
    for known, value, source in values_of(topic.config, broker.settings.topic_defaults):
        configuration = CONFIGURATIONS[known]
        yield known, value, source, configuration.type, configuration.documentation


def _broker_values(broker: Broker, name: str) -> Iterator[tuple[str, str, int, int, str]]:
    if name not in {"", str(broker.node.id)}:
        raise KafkaError(ErrorCode.invalid_request, f"node {name!r}: the only node is {broker.node.id}")
    settings = broker.settings
    for key, value, value_type, documentation in (
        ("auto.create.topics.enable", str(settings.auto_create_topics).lower(), 1, "Whether Metadata creates topics."),
        ("default.replication.factor", "1", ConfigType.INT, "There is one node."),
        ("fetch.max.bytes", str(settings.max_fetch_bytes), ConfigType.INT, "Largest answer to a fetch request."),
        ("node.id", str(settings.node_id), ConfigType.INT, "This node's id."),
        ("num.partitions", str(settings.default_partitions), ConfigType.INT, "Partitions of a topic made on demand."),
        ("socket.request.max.bytes", str(settings.max_request_bytes), ConfigType.INT, "Largest request taken."),
    ):
        yield key, value, ConfigSource.STATIC_BROKER, value_type, documentation
