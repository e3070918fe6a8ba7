"""What a mirror's accounts must be allowed to, on a broker that refuses all else; and what is said without it."""

import asyncio
import json
import os
import signal

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness.daemon import ConfiguredDaemon
from harness.mirrors import copied_to_the_end, produce, records
from harness.secured import SecuredCluster

from ingestd.client.admin import Acl, AclFilter, AclOperation, AclResourceType, ClusterAdmin
from ingestd.client.client import Client

AT_SOURCE = {("topic", "read"), ("topic", "describe_configs"), ("producers", "read")}
ON_TARGET = {
    ("producers", "create"),
    ("producers", "write"),
    ("producers", "describe_configs"),
    ("topic", "create"),
    ("topic", "write"),
    ("topic", "read"),
    ("topic", "alter"),
    ("topic", "alter_configs"),
    ("group", "read"),
}
WITH_GROUPS_AT_SOURCE = AT_SOURCE | {("consumers", "describe")}
WITH_GROUPS_ON_TARGET = ON_TARGET | {
    ("consumers", "read"),
    ("offsets", "create"),
    ("offsets", "write"),
    ("offsets", "read"),
}
PASSWORD = "correct horse"


ACCOUNTS = [f"{name}{number}" for number in ("", *range(20)) for name in ("reader", "writer")]


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A broker that allows nothing but what an entry allows, with accounts `reader` and `writer`, and numbered ones."""
    settings = {"allow.everyone.if.no.acl.found": "false"}
    with SecuredCluster(tmp_path_factory.mktemp("strict") / "cluster", settings=settings) as cluster:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        wanted = [UserScramCredentialUpsertion(name, info, PASSWORD.encode()) for name in ACCOUNTS]
        for created in cluster.admin.alter_user_scram_credentials(wanted).values():
            created.result(timeout=60)
        yield cluster


def entries(name, at_source, on_target, number=""):
    """These rights for the topic `name` and its mirror, for `reader` and `writer` with this number."""
    return [
        Acl(*things[kind], f"User:{account}{number}", AclOperation[operation])
        for account, topic, rights in (("reader", name, at_source), ("writer", f"east{number}.{name}", on_target))
        for things in [
            {
                "topic": (AclResourceType.topic, topic),
                "producers": (AclResourceType.topic, "ingestd-mirrors.producers"),
                "offsets": (AclResourceType.topic, f"ingestd-mirror-{name}.offsets.internal"),
                "group": (AclResourceType.group, f"ingestd-mirror-{name}"),
                "consumers": (AclResourceType.group, f"consumers-{name}"),
            }
        ]
        for kind, operation in rights
    ]


def allow(cluster, rights, *, instead_of=()):
    """Make these entries, in place of those of some accounts."""

    async def change():
        async with Client(cluster.bootstrap) as client:
            admin = ClusterAdmin(client)
            if instead_of:
                await admin.delete_acls([AclFilter(principal=f"User:{account}") for account in instead_of])
            assert [one.error for one in await admin.create_acls(rights)] == [None] * len(rights)

    asyncio.run(change())


def tables(cluster, name, number="", **keys):
    """The tables of a mirror of the topic `name`, and of its clusters with their accounts."""
    east, west = f"east{number}", f"west{number}"
    made = {f"mirrors.{name}": {"source": east, "target": west, "topics": [name], "refresh_interval": 0.5, **keys}}
    for side, account in ((east, f"reader{number}"), (west, f"writer{number}")):
        made[f"clusters.{side}"] = {"bootstrap": [cluster.listener("SASL_PLAINTEXT")]}
        made[f"clusters.{side}.sasl"] = {"mechanism": "SCRAM-SHA-256", "username": account}
        made[f"clusters.{side}.sasl.password"] = {"environment": "MIRROR_PASSWORD"}
    return made


@pytest.fixture(scope="module", autouse=True)
def password():
    """Daemons find it in their environment."""
    os.environ["MIRROR_PASSWORD"] = PASSWORD
    yield
    del os.environ["MIRROR_PASSWORD"]


def some_records(cluster, **config):
    """A new topic of two partitions, with records."""
    name = cluster.create_topic(partitions=2, **config)
    values = [b"%d" % number for number in range(100)]
    produce(cluster.servers, name, values, partitions=2, **{"enable.idempotence": True})
    return name


@pytest.fixture
def make(strict, tmp_path):
    """A daemon with a mirror of a new topic of two partitions, whose accounts may do what is given; and the topic."""
    made = []

    def start(at_source=AT_SOURCE, on_target=ON_TARGET, keys=None, **config):
        name = some_records(strict, **config)
        allow(strict, entries(name, at_source, on_target), instead_of=("reader", "writer"))
        made.append(ConfiguredDaemon(tmp_path / "daemon", tables(strict, name, **(keys or {}))))
        return made[-1], name

    yield start
    for daemon in made:
        daemon.kill()


def configure(cluster, topic, value):
    entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(30)


def test_with_these_rights_a_mirror_copies_grows_and_follows_and_goes_on_after_a_restart(strict, make):
    daemon, name = make(retention_ms="100000000")
    daemon.start_ready()
    copied_to_the_end(daemon, 2)
    (grown,) = strict.admin.create_partitions([NewPartitions(name, 3)]).values()
    grown.result(30)
    configure(strict, name, "200000000")
    daemon.until(lambda: "topic configuration followed" in daemon.log.read_text(), "the configuration is followed", 30)
    copied_to_the_end(daemon, 3)
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait(30)
    produce(strict.servers, name, [b"more"])
    daemon.start_ready()
    copied_to_the_end(daemon, 3)
    assert daemon.stop() == 0
    assert len(records(strict.servers, f"east.{name}")) == 51
    refusals = [line for line in daemon.log.read_text().splitlines() if "AUTHORIZATION" in line]
    assert refusals == []


def test_with_these_rights_offsets_of_groups_go_along(strict, make):
    keys = {"groups": ["consumers-.*"], "sync_groups_interval": 0.5}
    daemon, name = make(WITH_GROUPS_AT_SOURCE, WITH_GROUPS_ON_TARGET, keys)
    consumer = Consumer({"bootstrap.servers": strict.servers, "group.id": f"consumers-{name}"})
    consumer.commit(offsets=[TopicPartition(name, 0, 20)], asynchronous=False)
    daemon.start_ready()
    copied_to_the_end(daemon, 2)

    def committed():
        (there,) = consumer.committed([TopicPartition(f"east.{name}", 0)], 10)
        return there.offset == 20

    daemon.until(committed, "the offset is committed on the target", 30)
    consumer.close()
    assert daemon.stop() == 0
    assert [line for line in daemon.log.read_text().splitlines() if "AUTHORIZATION" in line] == []


REFUSED = "TOPIC_AUTHORIZATION_FAILED"

AT_SOURCE_MISSING = {
    ("topic", "read"): "matches no topic of the source yet, or none that this account may see",
    ("topic", "describe_configs"): f"its configuration at the source can not be read: {REFUSED}",
    ("producers", "read"): "ingestd-mirrors.producers, which has the producer ids of mirrors, can not be read",
}
ON_TARGET_MISSING = {
    ("topic", "create"): f"it can not be created on the target: {REFUSED}",
    ("topic", "write"): "can not be delivered to east",
    ("topic", "read"): f"{REFUSED}",
    ("topic", "alter_configs"): f"it can not be read: {REFUSED}",
    ("group", "read"): "GROUP_AUTHORIZATION_FAILED",
    ("producers", "write"): "it has no registered producer id",
    ("producers", "describe_configs"): "it has no registered producer id",
}
CHANGES_MISSING = {
    "alter": f"it can not get 2 partitions: {REFUSED}",
    "alter_configs": f"it can not be changed on the target: {REFUSED}",
}
SEES = "may see, not read"


class Refusing:
    """One daemon with a mirror for each right that is missing. Each has accounts of its own."""

    def __init__(self, cluster, directory):
        self.cluster = cluster
        self.names = {}
        self.copies = {}
        self._tables = {}
        self._entries = []
        for missing in AT_SOURCE_MISSING:
            self._add(("source", missing), AT_SOURCE - {missing}, ON_TARGET)
        self._add(SEES, AT_SOURCE - {("topic", "read")} | {("topic", "describe")}, ON_TARGET)
        for missing in ON_TARGET_MISSING:
            self._add(("target", missing), AT_SOURCE, ON_TARGET - {missing})
        for change in CHANGES_MISSING:
            rights = ON_TARGET - {("topic", change)} | {("topic", "describe_configs")}
            self._add(change, AT_SOURCE, rights, retention_ms="100000000")
        copy = self.copies["alter"]
        cluster.admin.create_topics([NewTopic(copy, 1)])[copy].result(30)
        allow(cluster, self._entries)
        self.daemon = ConfiguredDaemon(directory, self._tables)
        self.daemon.start()

    def _add(self, case, at_source, on_target, **config):
        number = len(self.names)
        name = self.names[case] = some_records(self.cluster, **config)
        self.copies[case] = f"east{number}.{name}"
        self._entries += entries(name, at_source, on_target, number)
        self._tables |= tables(self.cluster, name, number)

    def route(self, case):
        """What /status has of a case's mirror."""
        (route,) = [one for one in self.daemon.status()["routes"] if one["name"] == self.names[case]]
        return route

    def logged(self, case):
        """The log's lines of a case's mirror."""
        return [line for line in self.daemon.log.read_text().splitlines() if self.names[case] in line]

    def said(self, case):
        """What /status and the log say of a case's mirror."""
        route = self.route(case)
        taken = [one["reason"] for one in route["not_taken"]]
        return "\n".join([*taken, str(route["problem"]), str(route["stopped"]), *self.logged(case)])

    def says(self, case, message):
        """Wait until it says so."""
        self.daemon.until(lambda: message in self.said(case), message, 60)


@pytest.fixture(scope="module")
def refusing(strict, tmp_path_factory):
    """A daemon whose mirrors lack one right each; it runs."""
    made = Refusing(strict, tmp_path_factory.mktemp("refusing"))
    yield made
    assert made.daemon.stop() in (0, 1)


@pytest.mark.parametrize("missing", AT_SOURCE_MISSING, ids="-".join)
def test_without_one_right_at_the_source_the_mirror_says_which(refusing, missing):
    refusing.says(("source", missing), AT_SOURCE_MISSING[missing])


def test_an_account_that_may_see_the_topic_and_not_read_it_says_so(refusing):
    refusing.says(SEES, REFUSED)
    (first, *_) = [line for line in refusing.logged(SEES) if "source can not be read now" in line]
    name = refusing.names[SEES]
    assert json.loads(first)["source"] in (f"{name}-0", f"{name}-1")


@pytest.mark.parametrize("missing", ON_TARGET_MISSING, ids="-".join)
def test_without_one_right_on_the_target_the_mirror_says_which(refusing, missing):
    refusing.says(("target", missing), ON_TARGET_MISSING[missing])
    refusing.says(("target", missing), "AUTHORIZATION_FAILED")  # what Kafka calls it


def test_a_topic_that_is_there_and_may_not_grow_is_named(refusing):
    refusing.says("alter", CHANGES_MISSING["alter"])


def test_a_topic_whose_configuration_may_not_be_changed_is_named(refusing):
    def copied():
        sources = refusing.route("alter_configs")["sources"]
        return len(sources) == 2 and all(source["lag"] == 0 for source in sources)

    refusing.daemon.until(copied, "all is copied", 60)
    configure(refusing.cluster, refusing.names["alter_configs"], "200000000")
    refusing.says("alter_configs", CHANGES_MISSING["alter_configs"])
