"""Our clients against franz-go's fake cluster, told to answer with errors before and after it has appended.

Each time: every record accepted ends once; what was acknowledged is in the log once and in order, what failed is not.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from harness.kfake import Kfake
from harness.numbered import NumberedRecords, consumed

from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.go_peers import GoPeer

pytestmark = pytest.mark.peers

TOPIC = "events"


one_partition = pytest.mark.parametrize("partitions", [1])
"""For tests in which the producer recovers with a new epoch: see `Kfake`."""


@pytest.fixture
def partitions() -> int:
    return 4


@pytest.fixture
def fake(go_peers: dict[str, GoPeer], partitions: int) -> Iterator[Kfake]:
    with Kfake(go_peers["kfake"].binary, topic=TOPIC, partitions=partitions) as running:
        yield running


@pytest.fixture
def records(partitions: int) -> NumberedRecords:
    return NumberedRecords(TOPIC, partitions)


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_arrives_and_comes_back(fake: Kfake, records: NumberedRecords, codec: Codec) -> None:
    await records.send(fake.bootstrap, compression=Compression(codec))
    assert records.errors == []
    await records.check_by_librdkafka(fake.servers)
    records.check(await consumed(fake.bootstrap, TOPIC, 4))


REFUSED = [
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.kafka_storage_error,
]
APPENDED = [ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append]
"""They say that something went wrong behind the append."""
RETRIED = REFUSED + APPENDED
LOST = [ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id]


@pytest.mark.parametrize("error", [*RETRIED, ErrorCode.corrupt_message])
@pytest.mark.parametrize("cut", [0, 2])
async def test_what_the_cluster_refuses_for_now_arrives_once_and_in_order(
    fake: Kfake, records: NumberedRecords, error: ErrorCode, cut: int
) -> None:
    def trouble(turn: int) -> None:
        # A batch that is found corrupt five times fails for good.
        fake.fail(Api.produce, error, 1 if error is ErrorCode.corrupt_message else 3)
        fake.disconnect(Api.produce, cut)

    await records.send(fake.bootstrap, each_hundred=trouble)
    assert records.errors == []
    await records.check_by_librdkafka(fake.servers)


@one_partition
@pytest.mark.parametrize("error", LOST)
async def test_a_leader_that_says_it_lost_records_gets_the_rest_under_a_new_epoch(
    fake: Kfake, records: NumberedRecords, error: ErrorCode
) -> None:
    await records.send(fake.bootstrap, each_hundred=lambda _: fake.fail(Api.produce, error, 2))
    assert records.errors == []
    await records.check_by_librdkafka(fake.servers)


@pytest.mark.parametrize(("partitions", "errors"), [(4, RETRIED), (1, REFUSED + LOST)], ids=["many", "one"])
@pytest.mark.parametrize("seed", range(4))
async def test_errors_at_random_with_five_requests_in_flight_cost_no_record_and_double_none(
    fake: Kfake, records: NumberedRecords, partitions: int, errors: list[ErrorCode], seed: int
) -> None:
    # A leader that says a batch is out of order, and has it, is a liar: that is not tried together.
    source = random.Random(seed)

    def trouble(turn: int) -> None:
        for _ in range(6):
            what = source.randrange(4)
            if what == 0:
                fake.disconnect(Api.produce, source.randrange(1, 3))
            elif what == 1:
                fake.lead(source.randrange(partitions), source.randrange(3))
            else:
                fake.fail(Api.produce, source.choice(errors), source.randrange(1, 3))

    await records.send(fake.bootstrap, each_hundred=trouble)
    assert records.errors == []
    await records.check_by_librdkafka(fake.servers)


@one_partition
@pytest.mark.parametrize("error", [ErrorCode.invalid_record, ErrorCode.topic_authorization_failed])
async def test_what_the_cluster_refuses_for_good_fails_loudly_and_alone(
    fake: Kfake, records: NumberedRecords, error: ErrorCode
) -> None:
    await records.send(fake.bootstrap, each_hundred=lambda turn: fake.fail(Api.produce, error) if turn == 1 else None)
    assert 1 <= len(records.errors) < len(records.ends) / 2
    assert {each.code for each in records.errors if isinstance(each, KafkaError)} == {error}
    await records.check_by_librdkafka(fake.servers)


async def test_leaders_that_move_while_records_are_sent_are_followed(fake: Kfake, records: NumberedRecords) -> None:
    def move(turn: int) -> None:
        for partition in range(4):
            fake.lead(partition, (partition + turn) % 3)

    await records.send(fake.bootstrap, each_hundred=move)
    assert records.errors == []
    await records.check_by_librdkafka(fake.servers)


async def test_nodes_that_leave_and_join_cost_nothing(fake: Kfake, records: NumberedRecords) -> None:
    def change(turn: int) -> None:
        if turn % 2:
            fake.add(10 + turn)
        else:
            fake.remove(turn)

    await records.send(fake.bootstrap, each_hundred=change)
    assert records.errors == []
    await records.check_by_librdkafka(fake.servers)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_not_available,
    ],
)
async def test_reading_goes_on_behind_every_passing_error(
    fake: Kfake, records: NumberedRecords, error: ErrorCode
) -> None:
    await records.send(fake.bootstrap)

    def trouble() -> None:
        fake.fail(Api.fetch, error, 3)
        fake.disconnect(Api.fetch, 2)
        fake.disconnect(Api.list_offsets)

    records.check(await consumed(fake.bootstrap, TOPIC, 4, trouble=trouble))
