"""Administration whose answers are lost on the way: what was done already is not an error the second time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from harness.cluster import KafkaCluster
from harness.news import partitions_of_new
from harness.proxy import Moment, Proxies

from ingestd.client.admin import ClusterAdmin, NewPartitions, NewScramCredential, NewTopic, ScramMechanism
from ingestd.client.client import Client
from ingestd.errors import ConnectionLost, ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("lost-answers") / "cluster", proxied=True) as cluster:
        yield cluster


@pytest.mark.parametrize("moment", Moment)
async def test_a_change_succeeds_wherever_the_connection_is_cut(proxied: KafkaCluster, moment: Moment) -> None:
    name, group, user = f"cut-{uuid4()}", f"cut-{uuid4()}", f"cut-{uuid4()}"
    async with Proxies(proxied) as proxies, Client(proxies.bootstrap) as client:
        admin = ClusterAdmin(client)
        proxies.cut(Api.create_topics, moment)
        (created,) = await admin.create_topics([NewTopic(name, 2, 1)])
        assert (created.error, created.partitions) == (None, 2)
        assert await partitions_of_new(client, name) == [0, 1]

        changes = {
            Api.create_partitions: lambda: admin.create_partitions([NewPartitions(name, 4)]),
            Api.delete_records: lambda: admin.delete_records({(name, 0): -1}),
            Api.offset_commit: lambda: admin.alter_group_offsets(group, {(name, 0): 0}),
            Api.offset_delete: lambda: admin.delete_group_offsets(group, [(name, 0)]),
            Api.delete_groups: lambda: admin.delete_groups([group]),
            Api.alter_user_scram_credentials: lambda: admin.delete_scram_users([(user, ScramMechanism.scram_sha_512)]),
            Api.delete_topics: lambda: admin.delete_topics([name]),
        }
        (made,) = await admin.upsert_scram_users([NewScramCredential(user, "secret")])
        assert made.error is None
        for api, change in changes.items():
            proxies.cut(api, moment)
            (outcome,) = await change()
            assert (api, outcome.error) == (api, None)
            assert proxies.cuts[api] == 1
            if api is Api.offset_delete:  # a group that has neither members nor offsets is gone by itself
                await admin.alter_group_offsets(group, {(name, 1): 0})

        for api, change in list(changes.items())[-3:]:
            (outcome,) = await change()  # what is not there in the first place is an error
            assert isinstance(outcome.error, KafkaError), api


async def test_a_topic_of_somebody_else_is_not_taken_for_ones_own(proxied: KafkaCluster) -> None:
    name = proxied.create_topic(partitions=3)
    async with Proxies(proxied) as proxies, Client(proxies.bootstrap) as client:
        proxies.cut(Api.create_topics, Moment.before_answer)
        (outcome,) = await ClusterAdmin(client).create_topics([NewTopic(name, 2, 1)])
    assert isinstance(outcome.error, KafkaError)
    assert outcome.error.code is ErrorCode.topic_already_exists


async def test_answers_that_never_come_are_an_error_at_the_deadline(proxied: KafkaCluster) -> None:
    async with Proxies(proxied) as proxies, Client(proxies.bootstrap) as client:
        proxies.cut(Api.create_topics, Moment.before_answer, times=1000)
        with pytest.raises(ConnectionLost):
            await ClusterAdmin(client).create_topics([NewTopic(f"cut-{uuid4()}", 1, 1)], timeout=5.0)
