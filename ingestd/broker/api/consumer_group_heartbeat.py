"""ConsumerGroupHeartbeat (KIP-848): a member joins, lives, says what it reads and what it has, and leaves."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.groups.consumer_values import JOINING, LEAVING, LEAVING_FOR_NOW, HeartbeatAnswer, HeartbeatAsked
from ingestd.broker.messages import NO_THROTTLE, Messages, by_topic_id, messages, seconds
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.consumer_group_heartbeat
VERSIONS: Final = range(2)

_FIRST_WITH_CLIENTS_MEMBER_ID: Final = 1


def handle(context: Context, request: Request) -> Handled:
    """Answered when what it changes is in the log."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    try:
        _check(asked, request.version, context.broker.groups.rules.assignors)
        heartbeat = _read(context, request, asked)
        waiting = context.members_partition(asked.group_id).consumer_heartbeat(asked.group_id, heartbeat)
    except KafkaError as refused:
        return _answer(schema, HeartbeatAnswer(refused.code, message=refused.detail or None))
    return when_done(waiting, lambda answer: _answer(schema, answer))


def _check(asked: Any, version: int, assignors: tuple[str, ...]) -> None:
    """Raise `KafkaError` for a request that says too little, or what can not be."""
    epoch = asked.member_epoch
    needs_id = version >= _FIRST_WITH_CLIENTS_MEMBER_ID or epoch > 0 or epoch == LEAVING
    for name, value in (
        ("MemberId", asked.member_id if needs_id else None),
        ("GroupId", asked.group_id),
        ("InstanceId", asked.instance_id),
        ("RackId", asked.rack_id),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == JOINING:
        _check_join(asked)
    elif epoch == LEAVING_FOR_NOW and asked.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVING_FOR_NOW:
        raise _invalid("MemberEpoch is invalid.")
    if asked.server_assignor is not None and asked.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {asked.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(asked: Any) -> None:
    if seconds(asked.rebalance_timeout) is None:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if asked.topic_partitions is None or asked.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if asked.subscribed_topic_names is None and getattr(asked, "subscribed_topic_regex", None) is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, why)


def _read(context: Context, request: Request, asked: Any) -> HeartbeatAsked:
    names, owned = asked.subscribed_topic_names, asked.topic_partitions
    return HeartbeatAsked(
        asked.member_id or str(uuid.uuid4()),
        asked.member_epoch,
        request.client_id or "",
        f"/{context.session.peer_host}",
        asked.instance_id,
        asked.rack_id,
        seconds(asked.rebalance_timeout),
        None if names is None else frozenset(names),
        getattr(asked, "subscribed_topic_regex", None),
        asked.server_assignor,
        None if owned is None else frozenset((one.topic_id, number) for one in owned for number in one.partitions),
    )


def _answer(schema: Messages, answer: HeartbeatAnswer) -> Answer:
    assignment = None
    if answer.assigned is not None:
        topics = tuple(
            schema.make("TopicPartitions", topic_id=topic, partitions=numbers)
            for topic, numbers in by_topic_id(answer.assigned)
        )
        assignment = schema.make("Assignment", topic_partitions=topics)
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval=timedelta(seconds=answer.interval),
        assignment=assignment,
    )
    return Answer([body], answer.error)
