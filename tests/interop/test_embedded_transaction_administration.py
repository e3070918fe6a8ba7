"""Requests of administrators about transactions (KIP-664): the embedded broker answers as a real Kafka does."""

from __future__ import annotations

import dataclasses
import time
import warnings
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka import Producer as Librdkafka
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from embedded.batches import numbered_batch
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity
from embedded.transactional import LibrdkafkaProducer
from harness.kafka_python import left_sockets

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import skip_response_header
from ingestd.wire.produce import produce_request, read_produce_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.cluster import KafkaCluster
    from harness.go_peers import GoPeer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    from kafka import KafkaAdminClient

SECONDS = 20
LONG = timedelta(minutes=15)
"""A transaction's time, the most that Kafka allows: a busy machine needs more than one minute for all that is asked."""
COMING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
}
"""What a node says that has not heard of a new topic yet, or is not done with the transaction before."""
NOW_MS = 1_000_000_000_000
"""Timestamps before this are those of the batches here. Those after it are clocks."""


class Producer:
    """A transactional producer of bare requests. `old` ends transactions without a new epoch, as before KIP-890."""

    def __init__(self, client: RawClient, transactional_id: str, *, old: bool = False) -> None:
        self._client = client
        self.id = transactional_id
        self._old = old
        self._sequences: dict[tuple[str, int], int] = {}
        self.producer_id, self.epoch = -1, -1
        self.initialize()

    def initialize(self) -> None:
        until(
            lambda: self._client.ask(
                entity(Api.find_coordinator, 4, "FindCoordinatorRequest", key_type=1, coordinator_keys=(self.id,))
            ).coordinators[0]
        )
        answer = until(
            lambda: self._client.ask(
                entity(
                    Api.init_producer_id, 5, "InitProducerIdRequest",
                    transactional_id=self.id, transaction_timeout=LONG,
                )
            )
        )  # fmt: skip
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def write(self, topic: str, number: int) -> ErrorCode:
        if self._old:
            until(lambda: _Added(self._client.ask(self._adding(topic, number))))
        version = 11 if self._old else 12
        sequence = self._sequences.get((topic, number), 0)
        batch = numbered_batch([b"x"], self.producer_id, self.epoch, sequence, transactional=True)
        self._sequences[topic, number] = sequence + 1
        body = produce_request(version, -1, 1000, self.id, [(topic, None, [(number, batch)])])
        end = time.monotonic() + SECONDS
        while True:
            self._client.send(Api.produce, version, body)
            answer = self._client.receive()
            assert answer is not None
            (told,) = read_produce_response(version, skip_response_header(Api.produce, version, answer))
            if told.error not in {ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas}:
                return told.error
            assert time.monotonic() < end, told.error

    def _adding(self, topic: str, number: int) -> Any:
        api = Api.add_partitions_to_txn
        topics = (entity(api, 3, "AddPartitionsToTxnTopic", name=topic, partitions=(number,)),)
        return entity(
            api, 3, "AddPartitionsToTxnRequest",
            v3_and_below_transactional_id=self.id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=topics,
        )  # fmt: skip

    def end(self, *, commits: bool) -> ErrorCode:
        version = 4 if self._old else 5
        answer = until(
            lambda: self._client.ask(
                entity(
                    Api.end_txn, version, "EndTxnRequest",
                    transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch,
                    committed=commits,
                )
            )
        )  # fmt: skip
        if not self._old and not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        self.until_complete()
        return ErrorCode(answer.error_code)

    def until_complete(self) -> None:
        """Kafka answers before the markers are written."""
        end = time.monotonic() + SECONDS
        while "Prepare" in self._client.ask(described(self.id)).transaction_states[0].transaction_state:
            assert time.monotonic() < end
            time.sleep(0.02)


class _Added:
    """The error of AddPartitionsToTxn, for `until`."""

    def __init__(self, answer: Any) -> None:
        self.error_code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def until(ask: Any) -> Any:
    """The answer that says no more that something is still coming."""
    end = time.monotonic() + SECONDS
    while True:
        answer = ask()
        if answer.error_code not in COMING:
            return answer
        assert time.monotonic() < end, answer
        time.sleep(0.02)


def described(*transactional_ids: str) -> Any:
    return entity(Api.describe_transactions, 0, "DescribeTransactionsRequest", transactional_ids=transactional_ids)


class _Loaded:
    """The first error of what DescribeTransactions says of each id, then of ListTransactions, for `until`."""

    def __init__(self, client: RawClient, transactional_ids: Sequence[str]) -> None:
        told = [one.error_code for one in client.ask(described(*transactional_ids)).transaction_states]
        told.append(client.ask(listed()).error_code)
        self.error_code = next((error for error in told if error in COMING), ErrorCode.none)


def listed(
    version: int = 0,
    states: tuple[str, ...] = (),
    producers: tuple[int, ...] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> Any:
    fields: dict[str, Any] = {"state_filters": states, "producer_id_filters": producers}
    if longer_than_ms is not None:
        fields["duration_filter"] = longer_than_ms
    if pattern is not None:
        fields["transactional_id_pattern"] = pattern
    return entity(Api.list_transactions, version, "ListTransactionsRequest", **fields)


def writing(*partitions: tuple[str, tuple[int, ...]]) -> Any:
    api = Api.describe_producers
    topics = tuple(entity(api, 0, "TopicRequest", name=name, partition_indexes=numbers) for name, numbers in partitions)
    return entity(api, 0, "DescribeProducersRequest", topics=topics)


def marker(
    version: int,
    producer: tuple[int, int],
    *partitions: tuple[str, tuple[int, ...]],
    coordinator_epoch: int,
    commits: bool = False,
    raises_epoch: bool = False,
) -> Any:
    api = Api.write_txn_markers
    topics = tuple(
        entity(api, version, "WritableTxnMarkerTopic", name=name, partition_indexes=numbers)
        for name, numbers in partitions
    )
    fields = {"transaction_version": 2 if raises_epoch else 0} if version >= 2 else {}
    return entity(
        api, version, "WritableTxnMarker", producer_id=producer[0], producer_epoch=producer[1],
        transaction_result=commits, topics=topics, coordinator_epoch=coordinator_epoch, **fields,
    )  # fmt: skip


def marked(version: int, *markers: Any) -> Any:
    return entity(Api.write_txn_markers, version, "WriteTxnMarkersRequest", markers=markers)


class Conversation:
    """The same questions to each broker, and what it said, without ids and clocks."""

    def __init__(self, servers: str, topic: str) -> None:
        self._port = int(servers.rpartition(":")[2])
        self._servers = servers
        self.topic = topic
        self.said: list[tuple[str, Any]] = []
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        new = NewTopic(self.topic, 3, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])[self.topic].result(SECONDS)
        self.client = RawClient(self._port)
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.__exit__(*exc)

    def producer(self, name: str, *, old: bool = False) -> Producer:
        made = Producer(self.client, f"{self.topic}-{name}", old=old)
        self._names[made.producer_id] = name
        return made

    def ask(self, request: Any) -> Any:
        answer = self.client.ask(request)
        if request.__api_key__ == Api.list_transactions:
            # A real Kafka also has the transactional ids of other tests.
            mine = tuple(one for one in answer.transaction_states if one.transactional_id.startswith(self.topic))
            answer = dataclasses.replace(answer, transaction_states=mine)
        self.said.append((f"{type(request).__name__} {self._alike(request)}", self._alike(answer)))
        return answer

    def note(self, what: str, outcome: object) -> None:
        self.said.append((what, outcome))

    def _alike(self, value: Any, name: str = "") -> Any:
        if isinstance(value, tuple):
            return tuple(sorted((self._alike(one, name) for one in value), key=repr))
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return tuple((one, self._alike(getattr(value, one), one)) for one in names if one not in DIFFERENT)
        if isinstance(value, datetime) or (name == "last_timestamp" and value > NOW_MS):
            return "some time"
        if name in {"producer_id", "producer_id_filters"}:
            return self._names.get(value, value)
        if name == "coordinator_epoch" and value >= 0:
            return "some epoch"
        return value


DIFFERENT = {"throttle_time", "error_message"}
"""Texts for people are our own."""


def talk(about: Conversation) -> None:
    topic, both = about.topic, (0, 1)
    everybody = [f"{topic}-{name}" for name in ("empty", "open", "committed", "aborted", "old")]
    about.producer("empty")
    # Each id has its partition of the transaction log. Where it was just made, they are loaded one after the other.
    until(lambda: _Loaded(about.client, [*everybody, f"{topic}-nobody"]))
    about.ask(described(*everybody, "", f"{topic}-nobody"))
    committed, aborted, opened = (about.producer(name) for name in ("committed", "aborted", "open"))
    old = about.producer("old", old=True)
    for producer in (committed, aborted, old):
        for number in both:
            assert producer.write(topic, number) is ErrorCode.none
        about.note("end", producer.end(commits=producer is not aborted))
    for number in both:
        assert opened.write(topic, number) is ErrorCode.none
    assert opened.write(topic, 0) is ErrorCode.none
    assert old.write(topic, 1) is ErrorCode.none
    about.ask(described(*everybody))
    for name in ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence", "ongoing", "no"):
        about.ask(listed(states=(name,)))
    about.ask(listed(states=("Empty", "Ongoing", "no", "no")))
    for version in range(3):
        about.ask(listed(version))
        about.ask(listed(version, producers=(opened.producer_id, 1 << 40)))
        about.ask(listed(version, ("Ongoing",), (committed.producer_id,)))
    for longer_than_ms in (-5, 0, 3_600_000):
        about.ask(listed(1, longer_than_ms=longer_than_ms))
    for pattern in (".*-open", "open", "", f"{topic}-(open|old)", "(", r"(?=x)", r"\p{Greek}+"):
        about.ask(listed(2, pattern=pattern))
    about.ask(listed(2, ("no",), pattern="("))
    about.ask(writing((topic, (0, 1, 2, 3)), ("nowhere", (0,)), ("in valid", (0, 1)), ("..", ()), ("", (0,))))
    about.ask(writing())
    # Markers.
    (told,) = about.client.ask(writing((topic, (0,)))).topics[0].partitions
    epochs = {one.producer_id: one.coordinator_epoch for one in told.active_producers}
    epoch = max(epochs.values())
    now, before, nobody = (opened.producer_id, opened.epoch), (aborted.producer_id, aborted.epoch - 1), (1 << 41, 0)
    about.ask(marked(1))
    about.ask(marked(1, marker(1, now, coordinator_epoch=epoch)))
    about.ask(marked(1, marker(1, now, ("nowhere", (0, 1)), (topic, (7,)), coordinator_epoch=epoch)))
    for version in (1, 2):
        about.ask(marked(version, marker(version, before, (topic, (0,)), coordinator_epoch=epoch)))
        about.ask(marked(version, marker(version, (opened.producer_id, -1), (topic, (0, 9)), coordinator_epoch=epoch)))
        about.ask(marked(version, marker(version, (-1, 0), (topic, (0,)), coordinator_epoch=epoch)))
        about.ask(marked(version, marker(version, nobody, (topic, (2,)), coordinator_epoch=epoch + 1)))
        about.ask(marked(version, marker(version, nobody, (topic, (2,)), coordinator_epoch=epoch)))
    about.ask(writing((topic, (0, 1, 2))))
    about.ask(marked(2, marker(2, now, (topic, (0,)), coordinator_epoch=epoch, raises_epoch=True)))
    about.ask(writing((topic, (0,))))
    about.ask(
        marked(
            2,
            marker(2, now, (topic, (0,)), ("nowhere", (0,)), coordinator_epoch=epoch),
            marker(2, now, (topic, (1,)), coordinator_epoch=epoch, commits=True),
            marker(2, nobody, (topic, (2,)), coordinator_epoch=epoch + 2, raises_epoch=True),
        )
    )
    about.ask(writing((topic, both)))
    about.ask(marked(2, marker(2, now, (topic, (0,)), coordinator_epoch=epoch, raises_epoch=True)))
    about.ask(described(opened.id))
    about.note("write", opened.write(topic, 0))
    about.ask(writing((topic, (0,))))
    after = (opened.producer_id, opened.epoch + 1)
    about.ask(marked(2, marker(2, after, (topic, (0,)), coordinator_epoch=epoch, raises_epoch=True)))
    about.ask(writing((topic, (0,))))
    about.note("write", opened.write(topic, 0))
    about.note("end", opened.end(commits=True))
    about.ask(described(opened.id))
    about.ask(writing((topic, both)))
    about.note("write", old.write(topic, 0))
    old.initialize()
    about.ask(described(old.id))
    about.ask(writing((topic, both)))


def test_the_embedded_broker_answers_about_transactions_as_kafka_does(
    kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str
) -> None:
    said = []
    for broker in (kafka, embedded):
        with Conversation(broker.servers, new_topic) as conversation:
            talk(conversation)
        said.append(conversation.said)
    for theirs, ours in zip(*said, strict=True):
        if theirs != ours:
            print("THEIRS", theirs, "\nOURS  ", ours, "\n")
    assert [pair for pair in zip(*said, strict=True) if pair[0] != pair[1]] == []
    assert len(said[0]) > 50


def created(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})])[topic].result(SECONDS)


def stable_end(servers: str, topic: str) -> int:
    """How far readers of committed records get."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    where = TopicPartition(topic, 0)
    listed = admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(listed[where].result(SECONDS).offset)


def rows(text: str) -> list[dict[str, str]]:
    """The table that a tool prints. None if it prints nothing."""
    heading, *lines = [line.split("\t") for line in text.splitlines() if "\t" in line] or [[]]
    return [{name.strip(): cell.strip() for name, cell in zip(heading, line, strict=True)} for line in lines]


def test_kafkas_tool_lists_describes_and_aborts_a_transaction(
    embedded: BrokerProcess, new_topic: str, java_tool: Callable[..., str]
) -> None:
    created(embedded.servers, new_topic)
    settings = {"bootstrap.servers": embedded.servers, "transactional.id": new_topic, "log_level": 0}
    producer = Librdkafka(settings)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(new_topic, b"open")
    assert producer.flush(SECONDS) == 0

    def tool(*arguments: str) -> list[dict[str, str]]:
        return rows(java_tool("TransactionsCommand", "--bootstrap-server", embedded.servers, *arguments))

    (listed_one,) = tool("list", "--transactional-id-pattern", f"{new_topic[:-1]}.")
    assert (listed_one["TransactionalId"], listed_one["TransactionState"]) == (new_topic, "Ongoing")
    (told,) = tool("describe", "--transactional-id", new_topic)
    assert told["ProducerId"] == listed_one["ProducerId"]
    assert (told["TransactionState"], told["TopicPartitions"]) == ("Ongoing", f"{new_topic}-0")
    where = ("--topic", new_topic, "--partition", "0")
    (writer,) = tool("describe-producers", *where)
    assert (writer["ProducerId"], writer["CurrentTransactionStartOffset"]) == (told["ProducerId"], "0")
    assert stable_end(embedded.servers, new_topic) == 0
    tool("abort", *where, "--start-offset", "0")
    (writer,) = tool("describe-producers", *where)
    assert writer["CurrentTransactionStartOffset"] == "None"
    assert stable_end(embedded.servers, new_topic) == 2
    producer.abort_transaction(SECONDS)


def test_kafkas_tool_finds_a_hanging_transaction_and_ends_it(
    broker_process: Callable[..., BrokerProcess], new_topic: str, java_tool: Callable[..., str]
) -> None:
    """A batch of a transaction that no coordinator knows, as a broker before KIP-890 took it."""
    broker = broker_process()
    created(broker.servers, new_topic)
    broker.kill()
    segment = broker.data / f"{new_topic}-0" / f"{0:020d}.log"
    segment.write_bytes(numbered_batch([b"x"], 7, 0, 0, transactional=True))
    broker.start()
    assert stable_end(broker.servers, new_topic) == 0

    def tool(*arguments: str) -> list[dict[str, str]]:
        return rows(java_tool("TransactionsCommand", "--bootstrap-server", broker.servers, *arguments))

    (hanging,) = tool("find-hanging", "--broker-id", "1")
    assert (hanging["Topic"], hanging["ProducerId"], hanging["StartOffset"]) == (new_topic, "7", "0")
    tool("abort", "--topic", new_topic, "--partition", "0", "--start-offset", hanging["StartOffset"])
    assert stable_end(broker.servers, new_topic) == 2
    assert tool("find-hanging", "--broker-id", "1") == []


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Three nodes: an administrator must ask the coordinator and the leader, and all for a list."""
    with BrokerProcess(tmp_path_factory.mktemp("three"), "--nodes", "3") as broker:
        yield broker


async def test_offsets_of_a_transaction_that_an_administrator_aborts_never_count(
    three: BrokerProcess, new_topic: str
) -> None:
    created(three.servers, new_topic)
    producer = LibrdkafkaProducer(three.servers, new_topic)
    producer.begin()
    producer.add_offset(new_topic, new_topic, 7)
    reader = Consumer({"bootstrap.servers": three.servers, "group.id": new_topic, "log_level": 0})
    with pytest.raises(KafkaException):  # the offset is not stable
        reader.committed([TopicPartition(new_topic, 0)], 0.5)
    async with Client([three.servers]) as client:
        admin = ClusterAdmin(client)
        (transaction,) = await admin.describe_transactions([new_topic])
        (where,) = transaction.partitions
        assert where.topic == "__consumer_offsets"
        (told,) = await admin.describe_producers([where])
        await admin.abort_transaction(*where, told.producers[0])
    (found,) = reader.committed([TopicPartition(new_topic, 0)], SECONDS)
    assert found.offset == OFFSET_INVALID
    reader.close()


@pytest.mark.peers
def test_franz_gos_administrator_follows_a_transaction_and_aborts_it(
    three: BrokerProcess, new_topic: str, go_peers: dict[str, GoPeer]
) -> None:
    created(three.servers, new_topic)
    franz, servers = go_peers["franz"], three.servers
    producer = Librdkafka({"bootstrap.servers": servers, "transactional.id": new_topic, "log_level": 0})
    producer.init_transactions(SECONDS)
    empty = franz.transactions(servers, new_topic, new_topic)
    assert (empty["listed"], empty["state"], empty["start_ms"]) == ("Empty", "Empty", -1)
    assert (empty["partitions"], empty["writers"], empty["timeout_ms"]) == ([], [], 60_000)
    producer.begin_transaction()
    producer.produce(new_topic, b"open")
    assert producer.flush(SECONDS) == 0
    opened = franz.transactions(servers, new_topic, new_topic)
    assert (opened["listed"], opened["state"], opened["partitions"]) == ("Ongoing", "Ongoing", [0])
    assert abs(opened["start_ms"] - time.time() * 1000) < 60_000
    ids = {"producer_id": empty["producer_id"], "epoch": empty["epoch"]}
    assert opened["writers"] == [{**ids, "sequence": 0, "start": 0}]
    aborted = franz.transactions(servers, new_topic, new_topic, "-abort")
    assert (aborted["state"], aborted["writers"]) == ("Ongoing", [{**ids, "sequence": 0, "start": -1}])
    assert stable_end(servers, new_topic) == 2
    producer.abort_transaction(SECONDS)
    ended = franz.transactions(servers, new_topic, new_topic)
    assert (ended["listed"], ended["state"], ended["partitions"]) == ("CompleteAbort", "CompleteAbort", [])


async def test_our_administrator_and_kafka_pythons_follow_a_transaction_and_ours_aborts_it(
    three: BrokerProcess, new_topic: str
) -> None:
    created(three.servers, new_topic)
    producer = Librdkafka({"bootstrap.servers": three.servers, "transactional.id": new_topic, "log_level": 0})
    producer.init_transactions(SECONDS)
    theirs = KafkaAdminClient(bootstrap_servers=three.servers)
    async with Client([three.servers]) as client:
        ours = ClusterAdmin(client)
        for state in ("Empty", "Ongoing", "CompleteCommit"):
            if state == "Ongoing":
                producer.begin_transaction()
                producer.produce(new_topic, b"open")
                assert producer.flush(SECONDS) == 0
                (of_partition,) = await ours.describe_producers([(new_topic, 0)])
                await ours.abort_transaction(new_topic, 0, of_partition.producers[0])
                assert stable_end(three.servers, new_topic) == 2
            if state == "CompleteCommit":
                producer.commit_transaction(SECONDS)
            (described_one,) = await ours.describe_transactions([new_topic])
            told = theirs.describe_transactions([new_topic])[new_topic]
            assert (described_one.state, told.state) == (state, state)
            assert (described_one.producer_id, described_one.producer_epoch) == (told.producer_id, told.producer_epoch)
            listing = await ours.list_transactions(states=[state], pattern=f"{new_topic[:-1]}.")
            assert [one.transactional_id for one in listing.items] == [new_topic]
    with left_sockets():
        theirs.close()
        del theirs
