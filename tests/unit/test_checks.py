"""What a settings class or a constructor does not take is refused there, by name and with what it takes."""

import asyncio
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from ingestd import (
    AsyncProducer,
    Client,
    ClientCredentials,
    ClientSettings,
    ClusterAdmin,
    Codec,
    Compression,
    ConnectionSettings,
    Consumer,
    ConsumerGroup,
    ConsumerGroupHandler,
    ConsumerSettings,
    GroupProtocol,
    GroupSettings,
    Isolation,
    NoOffset,
    OAuthBearer,
    OutOfRange,
    Plain,
    ProducerSettings,
    Scram,
    Secret,
    SyncConsumer,
    SyncConsumerGroup,
    SyncProducer,
    TlsSettings,
    TopicPartition,
)
from ingestd.checks import Checks, did_you_mean, require_mapping, require_seconds
from ingestd.errors import Closed, ConfigurationError, KafkaError, WrongSetting
from ingestd.producer.partitioners import consistent_crc32

NAN = float("nan")
ANY_ADDRESS = ["127.0.0.1:9"]


async def _token() -> str:
    return "token"


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (ProducerSettings, {"linger": "5"}, "linger: '5'; expected a number"),
        (ProducerSettings, {"linger": NAN}, "linger: nan; expected a number"),
        (ProducerSettings, {"linger": float("inf")}, "linger: inf; expected seconds, at most 86400"),
        (ProducerSettings, {"compression": "zst"}, "compression 'zst': expected one of none, gzip, snappy"),
        (ProducerSettings, {"compression": "zstd:x"}, "compression 'zstd:x': expected a level behind the colon"),
        (ProducerSettings, {"compression": "zstd:99"}, "compression: zstd level 99: expected -7 to 22"),
        (ProducerSettings, {"compression": 3}, "compression: 3; expected a Compression"),
        (ProducerSettings, {"acks": "some"}, "acks: 'some'; expected \"all\", -1, 1 or 0"),
        (ProducerSettings, {"acks": 2}, "acks: 2; expected -1"),
        (ProducerSettings, {"acks": True}, "acks: True; expected a whole number"),
        (ProducerSettings, {"batch_bytes": 1.5}, "batch_bytes: 1.5; expected a whole number"),
        (ProducerSettings, {"partitioner": "murmur"}, "partitioner: 'murmur'; expected one of manual, .*murmur2"),
        (ProducerSettings, {"partitioner": 5}, "partitioner: 5; expected what makes a topic's partitioner"),
        (ProducerSettings, {"interceptors": [1]}, "interceptors: something of class list; expected a tuple"),
        (ProducerSettings, {"transactional_id": 5}, "transactional_id: 5; expected a string"),
        (ProducerSettings, {"idempotent": "yes"}, "idempotent: 'yes'; expected True or False"),
        (ProducerSettings, {"delivery_timeout": None}, "delivery_timeout: None; expected a number"),
        (ProducerSettings, {"breaker_pause": -1}, "breaker_pause: -1; expected seconds, 0 or more"),
        (ConsumerSettings, {"isolation": "committed"}, "isolation: 'committed'; expected '.*' or 'read_committed'"),
        (ConsumerSettings, {"isolation": 7}, "isolation: 7; expected"),
        (ConsumerSettings, {"out_of_range": "oldest"}, "out_of_range: 'oldest'; expected 'error' or 'earliest'"),
        (ConsumerSettings, {"rack": None}, "rack: None; expected a string"),
        (ConsumerSettings, {"check_crcs": "no"}, "check_crcs: 'no'; expected True or False"),
        (ConsumerSettings, {"fetch_max_wait": "1"}, "fetch_max_wait: '1'; expected a number"),
        (GroupSettings, {"protocol": "new"}, "protocol: 'new'; expected 'classic' or 'consumer'"),
        (GroupSettings, {"assignors": "range"}, r"assignors: 'range'; expected several, as in \('range',\)"),
        (GroupSettings, {"no_offset": "oldest"}, "no_offset: 'oldest'; expected 'earliest'"),
        (GroupSettings, {"consumer": {}}, "consumer: something of class dict; expected a ConsumerSettings"),
        (GroupSettings, {"group_instance_id": ""}, "group_instance_id: empty"),
        (GroupSettings, {"auto_commit_interval": "5"}, "auto_commit_interval: '5'; expected a number"),
        (ClientSettings, {"connect_timeout": 0}, "connect_timeout: 0; expected seconds, more than 0"),
        (ClientSettings, {"connection": None}, "connection: None; expected a ConnectionSettings"),
        (ClientSettings, {"metadata_attempts": 0}, "metadata_attempts: 0; expected a number, 1 or more"),
        (ClientSettings, {"metadata_max_age": -1.0}, "metadata_max_age: -1.0; expected seconds, 0 or more"),
        (ConnectionSettings, {"client_id": None}, "client_id: None; expected a string"),
        (ConnectionSettings, {"answer_limit": 0}, "answer_limit: 0; expected bytes, 1 or more"),
        (ConnectionSettings, {"tls": True}, "tls: expected TlsSettings"),
        (ConnectionSettings, {"sasl": ("user", "hidden")}, "sasl: expected a mechanism"),
        (TlsSettings, {"ca_file": 5}, "ca_file: expected a path"),
        (TlsSettings, {"verify": "fulll"}, "verify: expected 'full' or 'certificate' or 'none'"),
        (TlsSettings, {"minimum_version": "1.1"}, "minimum_version: expected '1.2' or '1.3'"),
        (Secret, {"environment": 5}, "environment: expected a string"),
        (Secret, {"value": b"hidden"}, "value: expected a string"),
        (Plain, {"username": 5, "password": "hidden"}, "username: expected a name"),
        (Plain, {"username": "me", "password": None}, "password: expected a string or a Secret"),
        (Plain, {"username": "me", "password": b"hidden"}, "secret: expected a string or a Secret"),
        (Scram, {"username": "me", "password": None}, "password: expected a string or a Secret"),
        (OAuthBearer, {"token": "hidden"}, "token: expected what gives a token"),
        (OAuthBearer, {"token": _token, "extensions": {"a": 1}}, "extensions: expected printable ASCII"),
        (
            ClientCredentials,
            {"endpoint": 5, "client_id": "a", "client_secret": "b"},
            "token_endpoint: expected a string",
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_wrong_setting_is_refused_by_name_where_it_is_made(
    kind: Callable[..., object], given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected) as refused:
        kind(**given)
    assert "hidden" not in str(refused.value)


def test_a_far_fetched_name_is_not_asked_for() -> None:
    # `filename_header` was asked whether it means `leave_after`.
    assert did_you_mean("filename_header", ["paths", "leave_after"]) == ""
    assert did_you_mean("tial", ["clusters", "tails"]) == "; did you mean 'tails'?"


def test_what_means_the_same_is_taken() -> None:
    assert ProducerSettings(linger=1).linger == 1  # a whole number of seconds
    assert ConsumerSettings(isolation=1).isolation is Isolation.read_committed  # type: ignore[arg-type]  # the protocol's
    assert ConsumerSettings(isolation="read_committed").isolation is Isolation.read_committed
    assert ConsumerSettings(out_of_range="latest") == ConsumerSettings(out_of_range=OutOfRange.latest)
    assert GroupSettings(protocol="consumer", no_offset="earliest") == GroupSettings(
        GroupProtocol.consumer, no_offset=NoOffset.earliest
    )
    assert ProducerSettings(acks="all") == ProducerSettings(acks=-1) == ProducerSettings()
    assert ProducerSettings(acks="1").required_acks == 1  # type: ignore[arg-type]
    assert ProducerSettings(compression="zstd:3") == ProducerSettings(compression=Compression(Codec.zstd, 3))
    assert ProducerSettings(compression="lz4").compression == Compression(Codec.lz4)
    assert ProducerSettings(partitioner="crc32") == ProducerSettings(partitioner=consistent_crc32)
    assert TlsSettings(ca_file="/ca.pem") == TlsSettings(ca_file=Path("/ca.pem"))  # type: ignore[arg-type]
    assert Secret(file="/secret") == Secret(file=Path("/secret"))  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        TlsSettings().ca_file = Path("/ca.pem")  # type: ignore[misc]


@pytest.mark.parametrize("kind", [AsyncProducer, Consumer, ClusterAdmin, lambda client: ConsumerGroup(client, "group")])
def test_addresses_where_a_client_is_expected(kind: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"client: .* expected a Client, as in Client\("):
        kind(ANY_ADDRESS)


@pytest.mark.parametrize(
    "kind", [Client, SyncProducer, SyncConsumer, lambda bootstrap: SyncConsumerGroup(bootstrap, "group", ["topic"])]
)
def test_one_address_where_several_are_expected(kind: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match="bootstrap: expected a list of addresses"):
        kind("127.0.0.1:9")


@pytest.mark.parametrize(
    "kind",
    [
        Client,
        SyncProducer,
        SyncConsumer,
        lambda bootstrap, settings: SyncConsumerGroup(bootstrap, "group", ["topic"], settings),
        lambda bootstrap, settings: SyncConsumerGroup(bootstrap, "group", ["topic"], None, settings),
    ],
)
def test_settings_of_another_class(kind: Callable[[Any, Any], object]) -> None:
    with pytest.raises(ConfigurationError, match="settings: something of class dict; expected a"):
        kind(ANY_ADDRESS, {})


@pytest.mark.parametrize("group_id", ["", 5, None])
async def test_a_group_without_a_name(group_id: Any) -> None:
    async with Client(ANY_ADDRESS) as client:
        with pytest.raises(ConfigurationError, match=r"group_id: .* expected a name"):
            ConsumerGroup(client, group_id)
    with pytest.raises(ConfigurationError, match=r"group_id: .* expected a name"):
        SyncConsumerGroup(ANY_ADDRESS, group_id, ["topic"])


async def test_a_topic_or_partition_of_another_class_is_refused_at_once() -> None:
    async with Client(ANY_ADDRESS) as client, AsyncProducer(client) as producer:
        with pytest.raises(TypeError, match="topic: 5; expected a string"):
            producer.send(5, b"value")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="partition of topic: '1'; expected a whole number"):
            producer.send("topic", b"value", partition="1")  # type: ignore[arg-type]
        assert producer.outstanding == 0


@pytest.mark.parametrize("topic", ["", ".", "..", "two words", "a/b", "x" * 250, "\udcff", "topic\n"])
async def test_a_name_that_no_topic_can_have_is_refused_before_anybody_is_asked(topic: str) -> None:
    async with Client(ANY_ADDRESS) as client, AsyncProducer(client) as producer, Consumer(client) as consumer:
        for refused in (
            producer.send_and_wait(topic, b"value"),
            consumer.consume_partition(topic, 0, 0),
            client.leader(topic, 0),
        ):
            with pytest.raises(KafkaError, match=r"INVALID_TOPIC_EXCEPTION .* a topic's name is 1 to 249 of"):
                await asyncio.wait_for(refused, 5.0)
        assert producer.outstanding == 0


async def test_a_producer_whose_client_was_closed_does_not_wait_for_metadata() -> None:
    client = Client(ANY_ADDRESS)
    async with AsyncProducer(client) as producer:
        await client.close()
        with pytest.raises(Closed, match="the client is closed"):
            await asyncio.wait_for(producer.send_and_wait("topic", b"value"), 5.0)


async def test_one_name_where_several_are_expected_is_not_taken_letter_by_letter() -> None:
    # `delete_topics("abc")` would have deleted a, b and c; `subscribe("abc")` would have waited for them for ever.
    async with Client(ANY_ADDRESS) as client:
        admin = ClusterAdmin(client)
        for asked in (
            admin.delete_topics("abc"),
            admin.describe_topics("abc"),
            admin.delete_groups("abc"),
            admin.describe_groups("abc"),
            admin.describe_transactions("abc"),
            admin.describe_scram_users("abc"),
        ):
            with pytest.raises(ConfigurationError, match=r"'abc'; expected several, as in \['abc'\]"):
                await asyncio.wait_for(asked, 5.0)
        group = ConsumerGroup(client, "group")
        with pytest.raises(ConfigurationError, match="topics: 'abc'; expected several"):
            group.subscribe("abc")
        with pytest.raises(ConfigurationError, match="topics: 'abc'; expected several"):
            await asyncio.wait_for(group.consume("abc", ConsumerGroupHandler()), 5.0)
        consumer = Consumer(client)
        for call in (group.pause, group.resume, consumer.pause, consumer.resume):
            with pytest.raises(ConfigurationError, match=r"partitions: .* expected several"):
                call(TopicPartition("topic", 0))


def test_all_that_is_wrong_is_told_but_for_what_follows_from_it() -> None:
    checks = Checks()
    checks.require("good", "nothing else", holds=True)
    checks.require("size", "0 or more", holds=False)
    checks.require("most", "more than size", holds=False, beside=["size"])
    checks.require("least", "less than good", holds=False, beside=["good"])
    with checks.noting():
        raise WrongSetting("address", "HOST:PORT")
    with pytest.raises(WrongSetting) as caught:
        checks.finish()
    assert [wrong.key for wrong in (caught.value, *caught.value.also)] == ["size", "least", "address"]
    Checks().finish()


@pytest.mark.parametrize("start", ["oldest", 1.5, None, True])
async def test_a_start_that_is_none_does_not_mean_the_end(start: Any) -> None:
    # A word that is none was taken for the end of the log.
    async with Client(ANY_ADDRESS) as client, Consumer(client) as consumer:
        with pytest.raises(ConfigurationError, match=r'start of topic-0: .* expected "earliest", "latest", an offset'):
            await asyncio.wait_for(consumer.offsets({TopicPartition("topic", 0): start}), 5.0)


@pytest.mark.parametrize("given", ["1", True, None, -1, float("nan")])
def test_what_is_no_number_of_seconds_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^timeout: .*; expected seconds, 0 or more$"):
        require_seconds("timeout", given)


def test_what_is_no_mapping_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigurationError, match=r"^asked: 'g'; expected a mapping, as in an example$"):
        require_mapping("asked", "g", "an example")
