from itertools import pairwise

from ingestd.consumer.decoding import columns_of, records_of
from ingestd.consumer.fetched import cut
from ingestd.consumer.settings import Isolation, TopicPartition

WHERE = TopicPartition("t", 0)
COMMITTED, UNCOMMITTED = Isolation.read_committed, Isolation.read_uncommitted


def values(fetched):
    return [record.value for batch in fetched.batches for record in records_of(batch, WHERE, check_crc=True)]


def take(data, *, position=0, end=None, isolation=UNCOMMITTED, aborted=()):
    records = memoryview(data)
    return cut(records, len(records), position=position, end=end, isolation=isolation, aborted=aborted)


def test_records_before_the_asked_offset_in_the_first_batch_are_dropped(make_batch):
    fetched = take(make_batch(10, [b"a", b"b", b"c"]), position=11)
    assert values(fetched) == [b"b", b"c"]
    assert fetched.next_offset == 13


def test_records_from_the_end_on_are_dropped_and_later_batches_not_handed_out(make_batch):
    data = make_batch(0, [b"a", b"b", b"c"]) + make_batch(3, [b"d"])
    fetched = take(data, end=2)
    assert values(fetched) == [b"a", b"b"]
    assert len(fetched.batches) == 1


def test_a_torn_last_batch_is_left_for_the_next_fetch(make_batch):
    whole, torn = make_batch(0, [b"a"]), make_batch(1, [b"b"])
    fetched = take(whole + torn[:-1])
    assert values(fetched) == [b"a"]
    assert fetched.next_offset == 1


def test_control_batches_are_skipped_and_still_move_the_position(make_batch, make_marker):
    data = make_batch(0, [b"a"], producer_id=9, transactional=True) + make_marker(1, 9, commit=True)
    for isolation in Isolation:
        fetched = take(data, isolation=isolation)
        assert values(fetched) == [b"a"]
        assert fetched.next_offset == 2


def test_aborted_records_are_seen_uncommitted_and_hidden_committed(make_batch, make_marker):
    data = make_batch(0, [b"a"], producer_id=9, transactional=True) + make_marker(1, 9, commit=False)
    assert values(take(data, isolation=UNCOMMITTED, aborted=[(9, 0)])) == [b"a"]
    assert values(take(data, isolation=COMMITTED, aborted=[(9, 0)])) == []


def test_a_producer_is_seen_again_after_its_abort_marker(make_batch, make_marker):
    data = (
        make_batch(0, [b"aborted"], producer_id=9, transactional=True)
        + make_marker(1, 9, commit=False)
        + make_batch(2, [b"kept"], producer_id=9, transactional=True)
        + make_marker(3, 9, commit=True)
    )
    assert values(take(data, isolation=COMMITTED, aborted=[(9, 0)])) == [b"kept"]


def test_two_aborted_transactions_of_one_producer_are_both_hidden(make_batch, make_marker):
    data = b"".join(
        (
            make_batch(0, [b"x"], producer_id=9, transactional=True),
            make_marker(1, 9, commit=False),
            make_batch(2, [b"kept"], producer_id=9, transactional=True),
            make_marker(3, 9, commit=True),
            make_batch(4, [b"y"], producer_id=9, transactional=True),
            make_marker(5, 9, commit=False),
        )
    )
    assert values(take(data, isolation=COMMITTED, aborted=[(9, 4), (9, 0)])) == [b"kept"]


def test_only_the_aborted_producers_transactional_batches_are_hidden(make_batch, make_marker):
    data = b"".join(
        (
            make_batch(0, [b"x"], producer_id=9, transactional=True),
            make_batch(1, [b"other"], producer_id=8, transactional=True),
            make_batch(2, [b"plain"]),
            make_batch(3, [b"idempotent"], producer_id=9),
            make_marker(4, 8, commit=True),
            make_marker(5, 9, commit=False),
        )
    )
    assert values(take(data, isolation=COMMITTED, aborted=[(9, 0)])) == [b"other", b"plain", b"idempotent"]


def test_an_abort_that_began_before_the_answer_hides_its_batches(make_batch, make_marker):
    data = make_batch(50, [b"x"], producer_id=9, transactional=True) + make_marker(51, 9, commit=False)
    assert values(take(data, position=50, isolation=COMMITTED, aborted=[(9, 7)])) == []


def test_a_small_part_of_a_large_answer_does_not_keep_it_in_memory(make_batch):
    answer = bytearray(make_batch(0, [b"a"]) + bytes(10_000))
    records = memoryview(answer)[:-10_000]
    fetched = cut(records, len(answer), position=0, end=None, isolation=UNCOMMITTED, aborted=())
    records.release()
    answer.clear()  # raises BufferError while any view is left
    assert values(fetched) == [b"a"]


def test_columns_of_a_batch_cut_on_both_sides_hold_what_the_records_hold(make_batch):
    content = [b"%d" % number if number % 3 else None for number in range(40)]
    keys = [b"k%d" % number if number % 5 else None for number in range(40)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        data = make_batch(100, content, keys=keys, codec=codec)
        for first, end in ((100, None), (109, None), (100, 117), (113, 130), (139, 140), (113, 113)):
            (batch,) = take(data, position=first, end=end).batches
            columns = columns_of(batch, check_crc=True)
            offsets = memoryview(columns.offsets).cast("B").cast("q").tolist()
            records = records_of(batch, WHERE, check_crc=True)
            assert offsets == [record.offset for record in records]
            assert _binary(columns.values, columns.count) == [record.value for record in records]
            assert _binary(columns.keys, columns.count) == [record.key for record in records]
            lists = memoryview(columns.headers.offsets).cast("B").cast("i").tolist()
            header_values = _binary(columns.headers.values, columns.headers.count)
            assert [tuple(header_values[a:b]) for a, b in pairwise(lists)] == [
                tuple(value for _, value in record.headers) for record in records
            ]


def _binary(column, count):
    offsets = memoryview(column.offsets).cast("B").cast("i").tolist()
    data = bytes(column.data)
    found = []
    nulls = 0
    for index in range(count):
        valid = column.validity is None or memoryview(column.validity).cast("B")[index >> 3] >> (index & 7) & 1
        nulls += not valid
        found.append(data[offsets[index] : offsets[index + 1]] if valid else None)
    assert nulls == column.nulls
    return found
