"""Changes configurations, as AlterConfigs and IncrementalAlterConfigs ask for it. Those that pass are stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ingestd.broker.configs.changes import DELETE, SET
from ingestd.broker.configs.resources import ResourceType, check_own_node, named_twice
from ingestd.broker.messages import NO_THROTTLE
from ingestd.broker.request import Answer
from ingestd.broker.topic_config import check_topic_configs
from ingestd.broker.topics import check_topic_name
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingestd.broker.messages import Messages
    from ingestd.broker.session import Context
    from ingestd.broker.topics import Topic

    Wanted: TypeAlias = Callable[[dict[str, str], Iterable[Any]], dict[str, str]]

__all__ = ["alter"]


def alter(context: Context, schema: Messages, asked: Any, wanted: Wanted) -> Answer:
    """Change what a request asks for, and answer it. Each resource has its own result.

    `wanted` gives a topic's own configurations after the changes, from those before. It raises `KafkaError` for changes
    that make no sense. A resource is changed as a whole or not at all.
    """
    resources = tuple(asked.resources)
    outcomes = _outcomes(context, resources, wanted, validate_only=asked.validate_only)
    responses = tuple(
        schema.make(
            "AlterConfigsResourceResponse",
            error_code=outcome.code,
            error_message=outcome.detail or None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, outcome in zip(resources, outcomes, strict=True)
    )
    first = next((outcome.code for outcome in outcomes if outcome.code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, responses=responses)], first)


def _outcomes(context: Context, resources: Sequence[Any], wanted: Wanted, *, validate_only: bool) -> list[KafkaError]:
    """The outcome of each resource, in their order. The code is NONE if it was changed."""
    twice = named_twice(resources)
    outcomes: list[KafkaError] = []
    altered: dict[int, Topic] = {}
    for number, resource in enumerate(resources):
        if (resource.resource_type, resource.resource_name) in twice:
            outcomes.append(KafkaError(ErrorCode.invalid_request, "the resource is named twice"))
            continue
        try:
            topic = _altered(context, resource, wanted)
        except KafkaError as error:
            outcomes.append(error)
        else:
            outcomes.append(KafkaError(ErrorCode.none))
            if topic is not None:
                altered[number] = topic
    if altered and not validate_only:
        try:
            context.broker.storage.configure(altered.values())
        except KafkaError as error:
            for number in altered:
                outcomes[number] = error
    return outcomes


def _altered(context: Context, resource: Any, wanted: Wanted) -> Topic | None:
    """The topic after its change; None if there is nothing to change."""
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        return _altered_topic(context, name, resource.configs, wanted)
    if resource.resource_type in {ResourceType.BROKER, ResourceType.BROKER_LOGGER}:
        if name or resource.resource_type == ResourceType.BROKER_LOGGER:
            check_own_node(context, name)
        # Tools remove throttles that nobody has set, after each move of replicas.
        names = [change.name for change in resource.configs if getattr(change, "config_operation", SET) != DELETE]
        if not names:
            return None
        raise KafkaError(
            ErrorCode.invalid_request,
            f"{', '.join(names)}: the broker's own configurations change with a restart only",
        )
    raise KafkaError(ErrorCode.invalid_request, f"resource type {resource.resource_type} has no configuration here")


def _altered_topic(context: Context, name: str, changes: Iterable[Any], wanted: Wanted) -> Topic:
    broker = context.broker
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "topics have no configuration for all of them")
    check_topic_name(name)
    topic = broker.storage.topics.named(name)
    # As in Kafka, wrong values are told before the topic is looked for.
    after = wanted(dict(topic.config) if topic is not None else {}, changes)
    checked = check_topic_configs(after, broker.settings.topic_defaults)
    return replace(broker.topic_named(name) if topic is None else topic, config=checked)
