"""DescribeConfigs: configurations of topics and of the broker, with the places that the values come from."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.configs.broker_table import described_broker
from ingestd.broker.configs.kinds import ConfigSource, ConfigType
from ingestd.broker.configs.resources import ResourceType, check_own_node
from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topic_config import Described, described_topic
from ingestd.broker.topics import check_topic_name
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_configs
VERSIONS: Final = range(1, 5)

_LOGGERS: Final = ("root", "ingestd")


def handle(context: Context, request: Request) -> Answer:
    """Each resource has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    results = []
    first = ErrorCode.none
    for resource in asked.resources:
        error, configs = KafkaError(ErrorCode.none), ()
        try:
            configs = tuple(_describe(context, schema, asked, resource))
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


def _describe(context: Context, schema: Messages, asked: Any, resource: Any) -> Iterator[Any]:
    changeable = resource.resource_type == ResourceType.TOPIC
    for one in _values(context, resource):
        # For "all", Java's client sends an empty list; others send null.
        if resource.configuration_keys and one.name not in resource.configuration_keys:
            continue
        synonyms: tuple[Any, ...] = ()
        if asked.include_synonyms:
            synonyms = tuple(
                schema.make("DescribeConfigsSynonym", name=name, value=value, source=source)
                for name, value, source in one.synonyms
            )
        yield schema.make(
            "DescribeConfigsResourceResult",
            name=one.name,
            value=one.value,
            read_only=not changeable,
            config_source=one.source,
            is_sensitive=False,
            synonyms=synonyms,
            config_type=one.type,
            documentation=one.documentation if getattr(asked, "include_documentation", False) else None,
        )


def _values(context: Context, resource: Any) -> Iterator[Described]:
    broker, name = context.broker, resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        return described_topic(broker.topic_named(name).config, broker.settings.topic_defaults)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            # The cluster-wide defaults. None can be set.
            return iter(())
        check_own_node(context, name)
        return described_broker(broker.settings, context.node.address(context.session))
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        check_own_node(context, name)
        return _loggers()
    raise KafkaError(ErrorCode.invalid_request, f"resource type {resource.resource_type} has no configuration here")


def _loggers() -> Iterator[Described]:
    for name in _LOGGERS:
        logger = logging.getLogger(None if name == "root" else name)
        level = logging.getLevelName(logger.getEffectiveLevel()).replace("WARNING", "WARN")
        yield Described(name, level, ConfigType.STRING, "", ((name, level, ConfigSource.BROKER_LOGGER),))
