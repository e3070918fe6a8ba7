"""Filtering: which records are copied."""

import pytest

from ingestd.mirror.filtering import RecordFilter
from ingestd.records.decode import Record, TimestampType


def record(key=None, **headers):
    pairs = tuple((name, value) for name, value in headers.items())
    return Record(0, 1, TimestampType.create_time, key, b"value", pairs)


def takes(one, *, keys=(), exclude_keys=(), headers=None, exclude_headers=None):
    return RecordFilter(keys, exclude_keys, headers or {}, exclude_headers or {}).takes(one)


@pytest.mark.parametrize(
    ("key", "keys", "exclude_keys", "taken"),
    [
        (b"order-1", ["order-.*"], [], True),
        (b"an order-1", ["order-.*"], [], False),
        (b"b", ["a", "b"], [], True),
        (b"bc", ["a|b", "c"], [], False),
        (None, [".*"], [], False),
        (b"", [".*"], [], True),
        (b"order-1", [], ["order-.*"], False),
        (None, [], [".*"], True),
        (b"order-1", ["order-.*"], [".*-1"], False),
        ("käse".encode(), ["k.se"], [], True),
        (b"k\xffse", ["k.se"], [], True),
    ],
)
def test_keys(key, keys, exclude_keys, taken):
    assert takes(record(key), keys=keys, exclude_keys=exclude_keys) is taken


@pytest.mark.parametrize(
    ("given", "headers", "exclude_headers", "taken"),
    [
        ({"region": b"eu"}, {"region": "eu|us"}, {}, True),
        ({"region": b"eu-1"}, {"region": "eu|us"}, {}, False),
        ({}, {"region": ".*"}, {}, False),
        ({"region": None}, {"region": ".*"}, {}, False),
        ({"region": b"eu", "kind": b"a"}, {"region": "eu", "kind": "b"}, {}, False),
        ({"test": b"true"}, {}, {"test": ".*"}, False),
        ({"other": b"true"}, {}, {"test": ".*"}, True),
        ({"region": b"eu", "test": b"1"}, {"region": "eu"}, {"test": "1"}, False),
    ],
)
def test_headers(given, headers, exclude_headers, taken):
    assert takes(record(b"k", **given), headers=headers, exclude_headers=exclude_headers) is taken


def test_no_record_stalls_a_filter():
    # Python's `re` tries each way to cut the letters: 2 ** 200.
    long = b"a" * 200 + b"!"
    assert not takes(record(long), keys=["(a+)+"])
    assert takes(record(b"k", name=long), exclude_headers={"name": "(a+)+"})


def test_patterns_of_one_list_know_nothing_of_each_other():
    # They were joined: flags were refused then, and a name could not come twice, by the worker, after a good check.
    patterns = ["(?i)order", "(?P<one>a)", "(?P<one>b)"]
    assert [takes(record(key), keys=patterns) for key in (b"ORDER", b"a", b"b", b"A")] == [True, True, True, False]


def test_of_headers_with_one_name_one_that_matches_is_enough():
    twice = Record(0, 1, TimestampType.create_time, None, None, (("region", b"asia"), ("region", b"eu")))
    assert takes(twice, headers={"region": "eu"})
    assert not takes(twice, exclude_headers={"region": "eu"})


def test_a_byte_for_each_record():
    found = RecordFilter(["a"], [], {}, {}).kept([record(b"a"), record(b"b"), record(b"a")])
    assert found == b"\x01\x00\x01"
