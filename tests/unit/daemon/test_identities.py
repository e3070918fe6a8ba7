"""Producer ids for workers: a refusal that asking again can not change reaches the producer as what it is."""

import asyncio
from types import SimpleNamespace

import pytest

from ingestd.daemon import supervised_cluster
from ingestd.daemon.configuration import ClusterSettings, DaemonSettings
from ingestd.daemon.control import IdentityWanted
from ingestd.daemon.supervised_cluster import SupervisedCluster
from ingestd.daemon.worker import Worker
from ingestd.errors import ConnectionLost, ErrorCode, KafkaError, UnsupportedVersion, is_retriable


@pytest.mark.parametrize(
    ("refusal", "again"),
    [
        (KafkaError(ErrorCode.cluster_authorization_failed, "InitProducerId"), False),
        (KafkaError(ErrorCode.coordinator_load_in_progress, "InitProducerId"), True),
        (UnsupportedVersion("init_producer_id: this broker does not have it"), False),
        (ConnectionLost("no broker"), True),
        (OSError("no route"), True),
    ],
)
async def test_a_refusal_is_asked_again_only_where_that_can_help(monkeypatch, refusal, again):
    class Refusing:
        def __init__(self, client):
            pass

        async def acquire(self, previous):
            raise refusal

    monkeypatch.setattr(supervised_cluster, "FetchedIdentities", Refusing)
    session = SupervisedCluster(ClusterSettings("c", bootstrap=("h:1",)), {}, DaemonSettings(), lambda _: None, bool)
    session.client = SimpleNamespace()
    said = []
    await session._identify(IdentityWanted(1, "c"), said.append)
    worker = SimpleNamespace(_tickets={1: asyncio.get_running_loop().create_future()})
    worker._answer = lambda ticket, answer: Worker._answer(worker, ticket, answer)
    Worker._received(worker, said[0])
    error = worker._tickets[1].exception()
    assert is_retriable(error) is again
    assert str(refusal) in str(error)
