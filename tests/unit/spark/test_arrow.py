from datetime import UTC, datetime

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from ingestd.errors import IngestdError
from ingestd.spark.arrow import arrow_schema, record_batches
from ingestd.spark.source import spark_schema


def rows(batches, **options):
    options = {"include_headers": False} | options
    found = list(record_batches(batches, "t", 3, **options))
    for batch in found:
        batch.validate(full=True)
    return found


@pytest.mark.parametrize("include_headers", [False, True])
@pytest.mark.parametrize("include_position", [False, True])
def test_the_schema_is_exactly_what_spark_makes_of_its_own(include_headers, include_position):
    columns = {"include_headers": include_headers, "include_position": include_position}
    assert arrow_schema(**columns).equals(to_arrow_schema(spark_schema(**columns), timezone="UTC"))


def test_a_row_says_where_it_comes_from_if_that_is_wanted(fetched):
    (batch,) = rows([fetched(40, [(None, b"v", [], 5)] * 2)], include_position=True)
    assert batch["position"].to_pylist() == [{"topic": "t", "partition": 3, "offset": at} for at in (40, 41)]


def test_a_record_is_a_row(fetched):
    records = [
        (b"k", b"v", [("h", b"1"), ("h", None)], 1_000),
        (None, None, [], 2_001),
        (b"", b"", [("ü", b"")], -1),
    ]
    (batch,) = rows([fetched(40, records)], include_headers=True)
    assert batch.schema.equals(arrow_schema(include_headers=True))
    assert batch.to_pylist() == [
        _row(b"k", b"v", 40, 1_000, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]),
        _row(None, None, 41, 2_001, None),
        _row(b"", b"", 42, -1, [{"key": "ü", "value": b""}]),
    ]


def _row(key, value, offset, timestamp_ms, headers):
    return {
        "key": key,
        "value": value,
        "topic": "t",
        "partition": 3,
        "offset": offset,
        "timestamp": datetime.fromtimestamp(timestamp_ms / 1000, UTC),
        "timestampType": 0,
        "headers": headers,
    }


def test_small_batches_are_gathered_and_large_ones_cut(fetched):
    small = [fetched(7 * number, [(None, b"%d" % index, [], 5) for index in range(7)]) for number in range(3_000)]
    large = fetched(21_000, [(None, b"x", [("h", b"y")], 5)] * 45_001)
    found = rows([*small, large], include_headers=True)
    assert [batch.num_rows for batch in found] == [20_006, 22_998, 22_997]
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(66_001))
    assert found[0]["value"][8].as_py() == b"1"
    assert found[0]["headers"][0].as_py() is None
    assert found[2]["headers"][22_996].as_py() == [{"key": "h", "value": b"y"}]


def test_batches_cut_by_the_range_give_the_rows_within_it(fetched):
    records = [
        (b"k%d" % index if index % 2 else None, b"v%d" % index, [("h", b"%d" % index)], 5) for index in range(50)
    ]
    (batch,) = rows([fetched(0, records, position=11, end=33)], include_headers=True)
    assert batch["offset"].to_pylist() == list(range(11, 33))
    assert batch["key"].to_pylist() == [b"k%d" % index if index % 2 else None for index in range(11, 33)]
    assert batch["headers"][0].as_py() == [{"key": "h", "value": b"11"}]


def test_rows_of_large_values_do_not_wait_for_twenty_thousand(fetched):
    batches = [fetched(number, [(None, b"x" * 1_000_000, [], 5)]) for number in range(40)]
    found = rows(batches)
    assert sum(batch.num_rows for batch in found) == 40
    assert len(found) > 1


def test_rows_of_large_headers_do_not_wait_for_twenty_thousand_either(fetched):
    megabyte = [(None, b"v", [("h", bytes(1024 * 1024))], 5)]
    batches = [fetched(number, megabyte) for number in range(40)]
    assert [batch.num_rows for batch in rows(batches, include_headers=True)] == [16, 16, 8]
    assert [batch.num_rows for batch in rows(batches)] == [40]


def test_timestamp_types_stay_with_their_records(fetched):
    one = [(None, b"x", [], 5)]
    batches = [fetched(0, one), fetched(1, one, log_append_time=True), fetched(2, one, log_append_time=True)]
    found = rows(batches)
    assert [kind for batch in found for kind in batch["timestampType"].to_pylist()] == [0, 1, 1]
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == [0, 1, 2]


@pytest.mark.parametrize("timestamp", [2**62, (2**63 - 1) // 1_000 + 1, -(2**62)])
def test_a_timestamp_beyond_microseconds_is_named_with_its_record_and_what_to_do(fetched, timestamp):
    """It was a corrupt batch, somewhere behind an offset. The batch is sound."""
    records = [(None, b"x", [], 5), (None, b"x", [], (2**63 - 1) // 1_000), (None, b"x", [], timestamp)]
    with pytest.raises(IngestdError) as caught:
        rows([fetched(9, records)])
    assert type(caught.value) is IngestdError
    assert str(caught.value) == (
        f"ingestd source: the timestamp at offset 11 of t-3, {timestamp} ms, can not be told in "
        "microseconds, as Spark has it. To go on behind it, begin that partition at offset 12, with a new checkpoint "
        "(startingOffsets, or --from of a pipeline)"
    )


def test_no_records_are_no_batches():
    assert rows([]) == []
