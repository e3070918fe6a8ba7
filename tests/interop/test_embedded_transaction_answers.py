"""Random requests of transactional producers: the embedded broker answers as a real Kafka does, also where it refuses.

What differs, and is not drawn here:

- A group has offsets of an aborted transaction alone. Kafka remembers the empty group for a while, we do not. So it has
  another reason to refuse a member that there never was.
- A producer is refused a batch, and goes on with the next one, or with other versions of Produce. Kafka remembers the
  lowest sequence that was refused (KIP-890), we one that it should try again.
- A client asks in versions of KIP-890 where `transaction.version` is below 2. Kafka does not check that, and then waits
  for markers that are never written.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from embedded.batches import numbered_batch
from embedded.process import BrokerProcess
from embedded.raw import RawClient
from harness.cluster import KafkaCluster, java_tool

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import skip_response_header
from ingestd.wire.produce import produce_request, read_produce_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 20
NONE = -1
UNKNOWN = 1 << 45
STEPS = 60
BUMPING = {Api.produce: 12, Api.txn_offset_commit: 5, Api.end_txn: 5}
"""The first versions with KIP-890, which a client uses where `transaction.version` is 2."""
COMING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
}
"""What a node says that is not done with the transaction before, or has not heard of a new topic yet."""


def of(api: Api, version: int, kind: str, /, **values: Any) -> Any:
    """A part of a request, with those of `values` that this version has."""
    entity = getattr(import_module(f"kio.schema.{api.name}.v{version}.request"), kind)
    known = {field.name for field in fields(entity)}
    return entity(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True)
class Ids:
    """A producer id with its epoch, as a request has it."""

    producer_id: int = NONE
    producer_epoch: int = NONE

    @property
    def fields(self) -> dict[str, int]:
        return {"producer_id": self.producer_id, "producer_epoch": self.producer_epoch}


class Walk:
    """Two transactional ids, one group and a topic of two partitions. What is done depends on the seed alone.

    `level` is the `transaction.version`: below 2, clients ask in no version that belongs to 2 (KIP-890).

    `said` has what was done, and what the broker answered, with names for producer ids.
    """

    def __init__(self, client: RawClient, servers: str, name: str, seed: int, level: int) -> None:
        self.said: list[tuple[str, Any]] = []
        self._client = client
        self._rng = random.Random(seed)
        self._topic = name
        self._ids = [f"{name}-0", f"{name}-1"]
        self._group = f"{name}-group"
        self._level = level
        self._produce_version = self._version(Api.produce, 9, 10, 11, 12)
        self._now = dict.fromkeys(self._ids, Ids())
        self._before = dict.fromkeys(self._ids, Ids())
        self._names = {NONE: "none", UNKNOWN: "unknown"}
        self._sequences: dict[tuple[Ids, int], int] = {}
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "-1"})])[name].result(SECONDS)
        for kind, keys in ((0, (self._group,)), (1, tuple(self._ids))):
            find = of(Api.find_coordinator, 4, "FindCoordinatorRequest", key_type=kind, coordinator_keys=keys)
            self._ask(find, lambda answer: answer.coordinators[0].error_code)

    def run(self) -> list[tuple[str, Any]]:
        steps: list[Callable[[str], None]] = [
            self._initialize, self._add, self._add_as_broker, self._add_offsets, self._commit_offset, self._write,
            self._end,
        ]  # fmt: skip
        for _ in range(STEPS):
            (step,) = self._rng.choices(steps, [2, 2, 1, 1, 2, 5, 3])
            step(self._rng.choice(self._ids))
            for transactional_id in self._ids:
                self._note_state(transactional_id)
        self._note_producers()
        return self.said

    def _ask(self, request: Any, code: Callable[[Any], ErrorCode]) -> Any:
        return self._until(lambda: self._client.ask(request), code)

    def _until(self, ask: Callable[[], Any], code: Callable[[Any], ErrorCode]) -> Any:
        end = time.monotonic() + SECONDS
        while code(answer := ask()) in COMING:
            assert time.monotonic() < end, answer
            time.sleep(0.01)
        return answer

    def _note(self, what: str, *outcome: object) -> None:
        self.said.append((what.replace(self._topic, "T"), outcome))

    def _name(self, producer_id: int) -> str:
        return self._names.setdefault(producer_id, f"p{len(self._names)}")

    def _version(self, api: Api, *versions: int) -> int:
        return self._rng.choice([one for one in versions if self._level == 2 or one < BUMPING[api]])

    def _drawn(self, transactional_id: str) -> tuple[str, Ids]:
        """Mostly the present ids."""
        now = self._now[transactional_id]
        kinds = {
            "now": now,
            "before": self._before[transactional_id],
            "newer": Ids(now.producer_id, now.producer_epoch + 1),
            "unknown": Ids(UNKNOWN, 0),
        }
        (kind,) = self._rng.choices(list(kinds), [16, 3, 1, 1])
        return kind, kinds[kind]

    def _got(self, transactional_id: str, answer: Any) -> None:
        got = Ids(answer.producer_id, answer.producer_epoch)
        if got not in {Ids(), self._now[transactional_id]}:
            self._before[transactional_id], self._now[transactional_id] = self._now[transactional_id], got

    # Steps.

    def _initialize(self, transactional_id: str) -> None:
        version = self._rng.choice([1, 2, 3, 4, 5])
        kind, ids = self._drawn(transactional_id)
        if version < 3 or self._rng.random() < 0.4:
            kind, ids = "none", Ids()
        (timeout,) = self._rng.choices([60, 0, 10_000], [12, 1, 1])
        request = of(
            Api.init_producer_id, version, "InitProducerIdRequest", **ids.fields,
            transactional_id=transactional_id, transaction_timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        answer = self._ask(request, lambda answer: answer.error_code)
        self._got(transactional_id, answer)
        told = answer.error_code, self._name(answer.producer_id), answer.producer_epoch
        self._note(f"initialize {transactional_id} v{version} {kind} {timeout} s", *told)

    def _add(self, transactional_id: str) -> None:
        api, version = Api.add_partitions_to_txn, self._rng.choice([0, 1, 2, 3])
        kind, ids = self._drawn(transactional_id)
        wanted = {self._topic: tuple(self._rng.sample([0, 1], self._rng.choice([1, 2])))}
        if self._rng.random() < 0.15:
            wanted[self._rng.choice(["nowhere", "__consumer_offsets"])] = (0,)
        request = of(
            api, version, "AddPartitionsToTxnRequest",
            v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=ids.producer_id,
            v3_and_below_producer_epoch=ids.producer_epoch,
            v3_and_below_topics=tuple(
                of(api, version, "AddPartitionsToTxnTopic", name=name, partitions=numbers)
                for name, numbers in wanted.items()
            ),
        )  # fmt: skip
        answer = self._ask(request, lambda answer: _first(answer.results_by_topic_v3_and_below))
        told = [
            (topic.name.replace(self._topic, "T"), one.partition_index, one.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]
        self._note(f"add {transactional_id} v{version} {kind}", sorted(told))

    def _add_as_broker(self, transactional_id: str) -> None:
        api, version = Api.add_partitions_to_txn, self._rng.choice([4, 5])
        kind, ids = self._drawn(transactional_id)
        only_asks, number = self._rng.random() < 0.5 or self._level < 2, self._rng.randrange(2)
        topics = (of(api, version, "AddPartitionsToTxnTopic", name=self._topic, partitions=(number,)),)
        one = of(
            api, version, "AddPartitionsToTxnTransaction", **ids.fields,
            transactional_id=transactional_id, verify_only=only_asks, topics=topics,
        )  # fmt: skip
        request = of(api, version, "AddPartitionsToTxnRequest", transactions=(one,))

        def code(answer: Any) -> ErrorCode:
            return _first(answer.results_by_transaction[0].topic_results)

        answer = self._ask(request, code)
        what = "ask for" if only_asks else "add"
        self._note(f"{what} {number} {transactional_id} v{version} {kind}", answer.error_code, code(answer))

    def _add_offsets(self, transactional_id: str) -> None:
        version = self._rng.choice([0, 1, 2, 3, 4])
        kind, ids = self._drawn(transactional_id)
        request = of(
            Api.add_offsets_to_txn, version, "AddOffsetsToTxnRequest", **ids.fields,
            transactional_id=transactional_id, group_id=self._group,
        )  # fmt: skip
        answer = self._ask(request, lambda answer: answer.error_code)
        self._note(f"add offsets {transactional_id} v{version} {kind}", answer.error_code)

    def _commit_offset(self, transactional_id: str) -> None:
        api, version = Api.txn_offset_commit, self._version(Api.txn_offset_commit, 0, 2, 3, 4, 5)
        kind, ids = self._drawn(transactional_id)
        number = self._rng.choice([0, 0, 0, 7])
        member = "nobody" if version >= 3 and self._rng.random() < 0.1 else ""
        partition = of(
            api, version, "TxnOffsetCommitRequestPartition",
            partition_index=number, committed_offset=self._rng.randrange(100), committed_metadata="",
        )  # fmt: skip
        topics = (of(api, version, "TxnOffsetCommitRequestTopic", name=self._topic, partitions=(partition,)),)
        request = of(
            api, version, "TxnOffsetCommitRequest", **ids.fields,
            transactional_id=transactional_id, group_id=self._group, member_id=member, topics=topics,
        )  # fmt: skip
        answer = self._ask(request, lambda answer: answer.topics[0].partitions[0].error_code)
        error = answer.topics[0].partitions[0].error_code
        self._note(f"commit offset of {number} {transactional_id} v{version} {kind} {member}", error)

    def _write(self, transactional_id: str) -> None:
        version, number = self._produce_version, self._rng.randrange(2)
        kind, ids = self._drawn(transactional_id)
        (asked_as,) = self._rng.choices([transactional_id, self._ids[0], None, f"{self._topic}-2"], [14, 1, 1, 1])
        (skipped,) = self._rng.choices([0, -1, 1], [12, 1, 1 if version >= 12 else 0])
        if ids.producer_id == NONE or kind == "newer":
            return
        sequence = max(self._sequences.get((ids, number), 0) + skipped, 0)
        batch = numbered_batch([b"x"], ids.producer_id, ids.producer_epoch, sequence, transactional=True)
        body = produce_request(version, -1, 1000, asked_as, [(self._topic, None, [(number, batch)])])

        def ask() -> Any:
            self._client.send(Api.produce, version, body)
            answer = self._client.receive()
            assert answer is not None
            return read_produce_response(version, skip_response_header(Api.produce, version, answer))[0]

        told = self._until(ask, lambda told: told.error)
        if told.error is ErrorCode.none and skipped >= 0:
            self._sequences[ids, number] = sequence + 1
        what = f"write {number} {transactional_id} v{version} {kind} as {asked_as}, sequence {sequence}"
        self._note(what, told.error, told.base_offset)

    def _end(self, transactional_id: str) -> None:
        version = self._version(Api.end_txn, 0, 1, 2, 3, 4, 5, 5, 5)
        kind, ids = self._drawn(transactional_id)
        commits = self._rng.random() < 0.6
        request = of(
            Api.end_txn, version, "EndTxnRequest", **ids.fields,
            transactional_id=transactional_id, committed=commits,
        )  # fmt: skip
        answer = self._ask(request, lambda answer: answer.error_code)
        told = [answer.error_code]
        if version >= 5:
            self._got(transactional_id, answer)
            told += [self._name(answer.producer_id), answer.producer_epoch]
        self._note(f"{'commit' if commits else 'abort'} {transactional_id} v{version} {kind}", *told)

    # What there is.

    def _note_state(self, transactional_id: str) -> None:
        request = of(
            Api.describe_transactions, 0, "DescribeTransactionsRequest", transactional_ids=(transactional_id,)
        )  # fmt: skip

        def code(answer: Any) -> ErrorCode:
            (state,) = answer.transaction_states
            # Kafka writes the markers after it has answered.
            return ErrorCode.concurrent_transactions if "Prepare" in state.transaction_state else state.error_code

        (one,) = self._ask(request, code).transaction_states
        of_groups = any(topic.topic == "__consumer_offsets" for topic in one.topics)  # Kafka has fewer of them here
        partitions = [sorted(topic.partitions) for topic in one.topics if topic.topic == self._topic]
        producer = one.producer_id if one.error_code else self._name(one.producer_id)
        told = one.error_code, one.transaction_state, producer, one.producer_epoch
        self._note(f"state {transactional_id}", *told, partitions, of_groups)

    def _note_producers(self) -> None:
        api = Api.describe_producers
        topics = (of(api, 0, "TopicRequest", name=self._topic, partition_indexes=(0, 1)),)
        (told,) = self._client.ask(of(api, 0, "DescribeProducersRequest", topics=topics)).topics
        for partition in sorted(told.partitions, key=lambda one: one.partition_index):
            producers = [
                (self._name(one.producer_id), one.producer_epoch, one.last_sequence, one.current_txn_start_offset)
                for one in partition.active_producers
            ]
            self._note(f"producers of {partition.partition_index}", sorted(producers))


def _first(topics: Any) -> ErrorCode:
    code: ErrorCode = topics[0].results_by_partition[0].partition_error_code
    return code


@pytest.fixture(scope="module", params=[1, 0])
def older(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, KafkaCluster, BrokerProcess]]:
    """Both with an older `transaction.version`."""
    level = str(request.param)
    with (
        KafkaCluster(tmp_path_factory.mktemp("kafka") / "cluster") as kafka,
        BrokerProcess(tmp_path_factory.mktemp("embedded"), "--transaction-version", level) as broker,
    ):
        tool = ("FeatureCommand", "--bootstrap-server", kafka.servers, "downgrade")
        java_tool(*tool, "--feature", f"transaction.version={level}")
        yield request.param, kafka, broker


def compare(seed: int, level: int, *brokers: KafkaCluster | BrokerProcess) -> None:
    said = []
    for each in brokers:
        with RawClient(int(each.servers.rpartition(":")[2])) as client:
            said.append(Walk(client, each.servers, f"walk-{seed}", seed, level).run())
    theirs, ours = said
    different = next((at for at, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]), None)
    assert different is None, "\n".join(map(str, [*theirs[:different], "Kafka:", theirs[different], ours[different]]))


@pytest.mark.parametrize("seed", range(25))
def test_random_requests_of_producers_are_answered_as_kafka_answers_them(
    kafka: KafkaCluster, embedded: BrokerProcess, seed: int
) -> None:
    compare(seed, 2, kafka, embedded)


@pytest.mark.parametrize("seed", range(10))
def test_the_same_with_an_older_version_of_transactions(
    older: tuple[int, KafkaCluster, BrokerProcess], seed: int
) -> None:
    compare(seed, *older)
