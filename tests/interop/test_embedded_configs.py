"""Configurations of topics on a real Kafka and on the embedded broker: the same requests, the same answers."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from embedded.raw import RawClient

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedded.process import BrokerProcess
    from harness.cluster import KafkaCluster

SECOND = timedelta(seconds=10)
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

SET_BY_HARNESS = {"min.insync.replicas", "retention.ms"}
"""Defaults that one of the two brokers was started with."""


OWN_DEFAULTS = {"max.connections", "queued.max.request.bytes"}
"""Bounds of the embedded broker that Kafka has not."""


def of(api: Api, version: int, kind: str, /, **fields: Any) -> Any:
    """A part of a request, with those of `fields` that this version has."""
    entity = getattr(import_module(f"kio.schema.{api.name}.v{version}.request"), kind)
    known = {field.name for field in dataclasses.fields(entity)}
    return entity(**{name: value for name, value in fields.items() if name in known})


def create(name: str, config: dict[str, str], *, validate_only: bool = False) -> Any:
    configs = tuple(
        of(Api.create_topics, 7, "CreatableTopicConfig", name=key, value=value) for key, value in config.items()
    )
    topic = of(
        Api.create_topics, 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
        configs=configs,
    )  # fmt: skip
    return of(Api.create_topics, 7, "CreateTopicsRequest", topics=(topic,), timeout=SECOND, validate_only=validate_only)


def describe(*names: str, version: int = 4, kind: int = TOPIC, keys: tuple[str, ...] | None = None) -> Any:
    api = Api.describe_configs
    resources = tuple(
        of(api, version, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys)
        for name in names
    )
    return of(
        api, version, "DescribeConfigsRequest", resources=resources, include_synonyms=True, include_documentation=True
    )


def incremental(*resources: tuple[int, str, list[tuple[str, int, str | None]]], validate_only: bool = False) -> Any:
    api = Api.incremental_alter_configs
    altered = tuple(
        of(
            api, 1, "AlterConfigsResource", resource_type=kind, resource_name=name,
            configs=tuple(
                of(api, 1, "AlterableConfig", name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ),
        )
        for kind, name, changes in resources
    )  # fmt: skip
    return of(api, 1, "IncrementalAlterConfigsRequest", resources=altered, validate_only=validate_only)


def replace(*resources: tuple[int, str, dict[str, str | None]], validate_only: bool = False) -> Any:
    api = Api.alter_configs
    altered = tuple(
        of(
            api, 2, "AlterConfigsResource", resource_type=kind, resource_name=name,
            configs=tuple(of(api, 2, "AlterableConfig", name=key, value=value) for key, value in configs.items()),
        )
        for kind, name, configs in resources
    )  # fmt: skip
    return of(api, 2, "AlterConfigsRequest", resources=altered, validate_only=validate_only)


def described(client: RawClient, name: str) -> dict[str, Any]:
    (result,) = client.ask(describe(name)).results
    assert result.error_code is ErrorCode.none
    return {config.name: config for config in result.configs}


def settle(client: RawClient, marker: str, number: int) -> None:
    """Wait until the broker tells all that was changed before: it learns of changes in their order, a moment later.

    `marker`: a topic for this alone; `number`: another one each time.
    """
    client.ask(incremental((TOPIC, marker, [("retention.ms", SET, str(number))])))
    deadline = time.monotonic() + 30
    while described(client, marker)["retention.ms"].value != str(number):
        assert time.monotonic() < deadline, "a change is not told"


def own(client: RawClient, name: str) -> dict[str, str]:
    """What is set for the topic itself."""
    return {key: config.value for key, config in described(client, name).items() if config.config_source == 1}


@pytest.fixture(params=["embedded", "kafka"])
def port(request: pytest.FixtureRequest) -> int:
    servers: str = request.getfixturevalue(request.param).servers
    return int(servers.rpartition(":")[2])


@pytest.fixture
def both(kafka: KafkaCluster, embedded: BrokerProcess) -> Iterator[tuple[RawClient, RawClient]]:
    with RawClient(int(kafka.servers.rpartition(":")[2])) as theirs, RawClient(embedded.port) as ours:
        yield theirs, ours


def test_every_configuration_of_a_topic_is_described_as_kafka_describes_it(
    both: tuple[RawClient, RawClient], new_topic: str
) -> None:
    asked = {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": ".05",
        "segment.ms": " 60000 ",
        "preallocate": "TRUE",
        "compression.type": "zstd",
        "max.compaction.lag.ms": "+7",
        "follower.replication.throttled.replicas": "0:1,1:1",
    }
    found: list[dict[str, Any]] = []
    for client in both:
        (made,) = client.ask(create(new_topic, asked)).topics
        assert made.error_code is ErrorCode.none, made.error_message
        found.append(described(client, new_topic))
    theirs, ours = found
    assert theirs.keys() == ours.keys()
    assert len(theirs) > 30
    assert [name for name, config in ours.items() if not config.documentation] == []
    for name in theirs.keys() - SET_BY_HARNESS:
        one, other = (dataclasses.replace(each[name], documentation="") for each in found)
        assert (name, fields(one)) == (name, fields(other))
    assert [theirs[name].config_type for name in SET_BY_HARNESS] == [ours[name].config_type for name in SET_BY_HARNESS]


def fields(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(fields, value))
    if dataclasses.is_dataclass(value):
        return {field.name: fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def test_a_created_topic_is_told_the_same_configurations(both: tuple[RawClient, RawClient], new_topic: str) -> None:
    told = []
    for client in both:
        (made,) = client.ask(create(new_topic, {"retention.bytes": "77", "cleanup.policy": ""})).topics
        told.append(
            {
                config.name: (config.value, config.config_source, config.read_only, config.is_sensitive)
                for config in made.configs
                if config.name not in SET_BY_HARNESS
            }
        )
    assert told[0] == told[1]
    assert told[0]["retention.bytes"] == ("77", 1, False, False)


VALUES = {
    "cleanup.policy": [
        "delete",
        "compact",
        "compact,delete",
        "delete, compact",
        "",
        "Compact",
        "compact,compact",
        "x",
        "delete,",
    ],
    "compression.gzip.level": ["-1", "0", "1", "9", "10"],
    "compression.lz4.level": ["-1", "0", "1", "17", "18"],
    "compression.type": ["producer", "uncompressed", "none", "gzip", "lz4", "snappy", "zstd", "ZSTD"],
    "compression.zstd.level": ["-131072", "-131073", "0", "22", "23"],
    "delete.retention.ms": ["0", "-1", "x", "9223372036854775807", "9223372036854775808"],
    "file.delete.delay.ms": ["0", "-1"],
    "flush.messages": ["0", "1"],
    "flush.ms": ["-1", "0"],
    "follower.replication.throttled.replicas": ["", "*", "0:1", "0:1,1:2", "0", "none", "0:1,", "*,0:1"],
    "index.interval.bytes": ["-1", "0", "2147483647", "2147483648"],
    "internal.segment.bytes": ["100"],
    "leader.replication.throttled.replicas": ["*", "a:b"],
    "local.retention.bytes": ["-3", "-2", "5"],
    "local.retention.ms": ["-3", "-2"],
    "max.compaction.lag.ms": ["0", "1"],
    "max.message.bytes": ["-1", "0", "1_000", "1 000", "", "1.0", "0x10", "٣"],
    "message.timestamp.after.max.ms": ["-1", "0"],
    "message.timestamp.before.max.ms": ["-1", "0"],
    "message.timestamp.type": ["CreateTime", "LogAppendTime", "logappendtime"],
    "min.cleanable.dirty.ratio": ["-0.1", "0", "1", "1.1", "1e-5", "x", "NaN"],
    "min.compaction.lag.ms": ["-1", "0"],
    "min.insync.replicas": ["0", "1", "5"],
    "preallocate": ["true", "FALSE", "yes", "1"],
    "remote.log.copy.disable": ["true"],
    "remote.log.delete.on.disable": ["true"],
    "remote.storage.enable": ["false", "true"],
    "retention.bytes": ["-5", "0"],
    "retention.ms": ["-2", "-1", "0"],
    "segment.bytes": ["1048575", "1048576"],
    "segment.index.bytes": ["3", "4"],
    "segment.jitter.ms": ["-1", "0"],
    "segment.ms": ["0", "1"],
    "unclean.leader.election.enable": ["true", "maybe"],
    "message.format.version": ["3.0"],
    "no.such.configuration": ["1"],
}
"""Values, and what is no value, of every configuration."""


def test_each_value_is_taken_or_refused_as_kafka_does(both: tuple[RawClient, RawClient], new_topic: str) -> None:
    tried = [(name, value) for name, values in VALUES.items() for value in values]
    outcomes = []
    for client in both:
        client.ask(create(new_topic, {}))
        client.ask(create(f"{new_topic}-marker", {}))
        outcome = {}
        for number, (name, value) in enumerate(tried):
            client.ask(incremental((TOPIC, new_topic, [("retention.ms", SET, "77")])))
            (answer,) = client.ask(incremental((TOPIC, new_topic, [(name, SET, value)]))).responses
            settle(client, f"{new_topic}-marker", number)
            now = described(client, new_topic).get(name)
            outcome[name, value] = answer.error_code, None if now is None else now.value
            client.ask(incremental((TOPIC, new_topic, [(name, DELETE, None)])))
        outcomes.append(outcome)
    assert [(key, each, outcomes[1][key]) for key, each in outcomes[0].items() if each != outcomes[1][key]] == []
    assert described(both[1], new_topic).keys() - VALUES.keys() == set()


def changes(topic: str) -> Iterator[Any]:
    yield incremental((TOPIC, topic, [("retention.ms", SET, "5000"), ("segment.ms", SET, "6000")]))
    yield incremental((TOPIC, topic, [("cleanup.policy", APPEND, "compact")]))
    yield incremental((TOPIC, topic, [("cleanup.policy", APPEND, "compact,delete")]))
    yield incremental((TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]))
    yield incremental((TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]))
    yield incremental((TOPIC, topic, [("cleanup.policy", SUBTRACT, "compact")]))
    yield incremental((TOPIC, topic, [("cleanup.policy", APPEND, "rubbish")]))
    yield incremental((TOPIC, topic, [("retention.ms", APPEND, "1")]))
    yield incremental((TOPIC, topic, [("no.such", SUBTRACT, "1")]))
    yield incremental((TOPIC, topic, [("retention.ms", SET, "7000"), ("retention.ms", SET, "8000")]))
    yield incremental((TOPIC, topic, [("retention.ms", SET, None)]))
    yield incremental((TOPIC, topic, [("retention.ms", SET, "9000"), ("segment.ms", SET, "x")]))
    yield incremental((TOPIC, topic, [("retention.ms", SET, "9000")]), validate_only=True)
    yield incremental((TOPIC, topic, [("retention.ms", SET, "-9")]), validate_only=True)
    yield incremental((TOPIC, topic, [("segment.ms", DELETE, None)]))
    yield incremental((TOPIC, topic, [("segment.ms", DELETE, "x")]))
    yield incremental((TOPIC, topic, []))
    yield incremental((TOPIC, "nowhere", [("retention.ms", SET, "1")]))
    yield incremental((TOPIC, "nowhere", [("retention.ms", SET, "x")]))
    yield incremental((TOPIC, "", [("retention.ms", SET, "1")]))
    yield incremental((TOPIC, "a/b", [("retention.ms", SET, "1")]))
    yield incremental((TOPIC, topic, [("retention.ms", SET, "1")]), (TOPIC, "nowhere", [("retention.ms", SET, "1")]))
    yield incremental((TOPIC, topic, [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "9")]))
    yield incremental((TOPIC, topic, [("min.compaction.lag.ms", SET, "10")]))
    yield incremental((TOPIC, topic, [("max.compaction.lag.ms", SET, "9")]))
    yield incremental((77, topic, [("retention.ms", SET, "1")]))
    yield incremental((BROKER, "1", [("node.id", SET, "7")]))
    yield incremental((BROKER, "", [("process.roles", SET, "broker")]))
    yield incremental((BROKER, "1", [("leader.replication.throttled.rate", DELETE, None)]))
    yield incremental((BROKER, "99", [("log.retention.ms", SET, "7")]))
    yield incremental((BROKER, "x", [("log.retention.ms", SET, "7")]))
    yield incremental((LOGGER, "99", [("root", SET, "INFO")]))
    yield replace((TOPIC, topic, {"retention.ms": "1234"}))
    yield replace((TOPIC, topic, {"segment.ms": "99"}), validate_only=True)
    yield replace((TOPIC, topic, {"segment.ms": "x"}))
    yield replace((TOPIC, topic, {"segment.ms": None}))
    yield replace((TOPIC, "nowhere", {"segment.ms": "1"}))
    yield replace((LOGGER, "1", {"root": "INFO"}))
    yield replace((BROKER, "1", {"node.id": "7"}))
    yield replace((TOPIC, topic, {}))


def test_each_change_is_made_or_refused_as_kafka_does(both: tuple[RawClient, RawClient], new_topic: str) -> None:
    outcomes = []
    for client in both:
        client.ask(create(new_topic, {"retention.bytes": "5"}))
        client.ask(create(f"{new_topic}-marker", {}))
        outcome = []
        for number, change in enumerate(changes(new_topic)):
            answer = client.ask(change)
            told = sorted((one.resource_type, one.resource_name, one.error_code) for one in answer.responses)
            settle(client, f"{new_topic}-marker", number)
            outcome.append((change, told, own(client, new_topic)))
        outcomes.append(outcome)
    assert [pair for pair in zip(*outcomes, strict=True) if pair[0] != pair[1]] == []


def test_resources_are_described_or_refused_as_kafka_does(both: tuple[RawClient, RawClient], new_topic: str) -> None:
    outcomes = []
    for client in both:
        client.ask(create(new_topic, {}))
        outcome = []
        for version in (1, 4):
            for kind, name in (
                (TOPIC, "nowhere"), (TOPIC, "a/b"), (TOPIC, ""), (BROKER, "1"), (BROKER, "99"), (BROKER, "x"),
                (LOGGER, ""), (LOGGER, "1"), (LOGGER, "99"),
            ):  # fmt: skip
                (result,) = client.ask(describe(name, kind=kind, version=version)).results
                outcome.append((kind, name, result.error_code, bool(result.configs)))
            answer = client.ask(describe(new_topic, version=version, keys=("retention.bytes", "no.such")))
            outcome.append([(config.name, config.value) for result in answer.results for config in result.configs])
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


def test_what_is_told_of_the_broker_is_told_by_kafka_under_that_name(both: tuple[RawClient, RawClient]) -> None:
    theirs, ours = (
        {config.name: config for config in client.ask(describe("1", kind=BROKER)).results[0].configs}
        for client in both
    )  # fmt: skip
    assert sorted(ours.keys() - theirs.keys()) == []
    assert [name for name, config in ours.items() if config.config_type != theirs[name].config_type] == []
    defaults = {
        name: (config.value, theirs[name].value)
        for name, config in ours.items()
        if config.config_source == theirs[name].config_source == 5 and name not in OWN_DEFAULTS
    }
    assert {name: values for name, values in defaults.items() if values[0] != values[1]} == {}
    assert len(defaults) > 30
