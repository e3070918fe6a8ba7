"""Translations: what a host that takes a partition over makes of what is stored."""

import pytest

from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.mirror import translations
from ingestd.mirror.positions import MirrorPosition
from ingestd.mirror.route import MirrorRoute
from ingestd.mirror.stretches import Stretch, encoded
from ingestd.mirror.translations import StoredChunk, Taken, Translations, restored

ONE, TO = TopicPartition("orders", 0), TopicPartition("east.orders", 0)
IDS = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"


def taken(offset, target_offset, *, fresh=False, ids=IDS):
    return Taken(ONE, MirrorPosition(offset, 1, target_offset), *ids, fresh)


def chunk(number, *stretches, known_from=0, ids=IDS):
    return StoredChunk(ONE, number, *ids, known_from, encoded(stretches))


def test_a_new_partition_begins_where_the_mirror_does():
    made = restored(taken(40, 0, fresh=True), [], 1)
    assert [made.translate(offset) for offset in (0, 40, 50)] == [0, 0, 0]


def test_of_what_is_on_the_target_already_no_offset_is_known():
    """On the way back: the records before the start came from the target, and the group may not have read them."""
    made = restored(taken(40, 7, fresh=True), [], 1)
    assert [made.translate(offset) for offset in (39, 40, 50)] == [None, 7, 7]


def test_the_last_stretch_ends_where_the_position_says():
    made = restored(taken(60, 55), [chunk(1, Stretch(0, 0, 10), Stretch(11, 10, 3))], 2)
    assert list(made) == [Stretch(0, 0, 10), Stretch(11, 10, 45)]


def test_what_is_acknowledged_behind_the_position_is_left_out():
    made = restored(taken(60, 90), [chunk(1, Stretch(0, 0, 10))], 2)
    assert list(made) == [Stretch(0, 0, 60)]


def test_a_position_before_what_is_stored_takes_nothing_away():
    made = restored(taken(5, 5), [chunk(1, Stretch(0, 0, 10), Stretch(11, 10, 3))], 2)
    assert list(made) == [Stretch(0, 0, 10), Stretch(11, 10, 3)]


def test_of_a_mirror_that_ran_without_it_nothing_is_known_before_its_position():
    made = restored(taken(500, 480), [], 1)
    assert [made.translate(offset) for offset in (499, 500)] == [None, 480]


def test_of_a_partition_that_was_made_empty_all_is_known():
    made = restored(taken(500, 0), [], 1)
    assert made.translate(3) == 0


@pytest.mark.parametrize("ids", [(IDS[1], IDS[1]), (IDS[0], IDS[0])], ids=["source", "target"])
def test_what_is_stored_of_a_topic_before_it_was_made_again_says_nothing(ids):
    made = restored(taken(0, 0, fresh=True), [chunk(1, Stretch(0, 500, 10), ids=ids)], 2)
    assert list(made) == [Stretch(0, 0, 0)]
    assert made.changes() == [(2, encoded([Stretch(0, 0, 0)])), (1, None)]


def test_from_where_on_it_is_known_is_kept():
    made = restored(taken(60, 55), [chunk(1, Stretch(20, 15, 3), known_from=20)], 2)
    assert [made.translate(offset) for offset in (19, 20)] == [None, 15]


def test_a_chunk_is_read_as_it_was_written():
    book = translations._Book(ONE, restored(taken(9, 4), [], 1), *IDS)
    data = encoded([Stretch(0, 0, 10)])
    again = translations._chunk("t", ONE, 5, translations._value(book, data))
    assert again == StoredChunk(ONE, 5, *IDS, 9, data)
    assert translations._place("t", translations._key(ONE, 5)) == (ONE, 5)


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(40), b"\x01" + bytes(40) + b"\x80"])
def test_what_can_not_be_understood_is_named(value):
    with pytest.raises(IngestdError, match="chunk 5 of orders-0"):
        translations._chunk("t", ONE, 5, value)


@pytest.mark.parametrize("key", [None, b"", b"{}", b"[]"])
def test_a_key_of_somebody_else_is_named(key):
    with pytest.raises(IngestdError, match="expected one that a mirror writes"):
        translations._place("t", key)


class Producer:
    """Takes records, or refuses them."""

    def __init__(self):
        self.log, self.away = {}, False

    def send_future(self, topic, value, *, key, partition):
        import asyncio

        sent = asyncio.get_running_loop().create_future()
        if self.away:
            sent.set_exception(IngestdError("away"))
        else:
            self.log[key] = value
            sent.set_result(None)
        return sent


@pytest.fixture
def kept(monkeypatch):
    async def nothing(*_):
        for none in ():
            yield none

    monkeypatch.setattr(translations, "read_chunks", nothing)
    made = Translations(MirrorRoute("m", "east", "west", ("orders",), groups=("a",)), lambda: None)
    made._producer = Producer()
    return made


async def test_what_could_not_be_written_is_written_with_the_next_attempt(kept):
    await kept.take({TO: taken(0, 0, fresh=True)}, 5)
    kept.copied(TO, IDS[0], [Stretch(0, 0, 10)])
    kept._producer.away = True
    with pytest.raises(IngestdError, match="away"):
        await kept.write(5)
    kept.copied(TO, IDS[0], [Stretch(11, 10, 10)])
    kept._producer.away = False
    await kept.write(5)
    (value,) = kept._producer.log.values()
    assert translations._chunk("t", ONE, 1, value).data == encoded([Stretch(0, 0, 10), Stretch(11, 10, 10)])


async def test_what_went_to_another_host_is_not_written(kept):
    await kept.take({TO: taken(0, 0, fresh=True)}, 5)
    kept.copied(TO, IDS[0], [Stretch(0, 0, 10)])
    kept.drop([TO])
    kept.copied(TO, IDS[0], [Stretch(10, 10, 10)])
    await kept.write(5)
    assert kept._producer.log == {}
    assert kept.translate(TO, 5) is None


async def test_a_topic_that_is_made_again_while_the_mirror_runs_begins_a_new_account(kept):
    await kept.take({TO: taken(0, 0, fresh=True)}, 5)
    kept.copied(TO, IDS[0], [Stretch(500, 0, 10)])
    kept.copied(TO, IDS[1], [Stretch(700, 10, 5)])
    assert [kept.translate(TO, offset) for offset in (500, 702)] == [10, 12]
