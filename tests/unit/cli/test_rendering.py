"""Records as bytes: what each rendering writes of the same columns."""

from __future__ import annotations

import array
import json
import os

import pytest

from ingestd.cli.rendering import JsonRecords, Layout, RawValues, rendering_of, unescape, values_of
from ingestd.cli.unpacking import Unpacking
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn


def column(*values: bytes | None, before: bytes = b"") -> BinaryColumn:
    ends, data, validity = [len(before)], bytearray(before), 0
    for index, value in enumerate(values):
        data += value or b""
        ends.append(len(data))
        validity |= (value is not None) << index
    nulls = values.count(None)
    bitmap = validity.to_bytes((len(values) + 7) // 8, "little") if nulls else None
    return BinaryColumn(array.array("i", ends), bytes(data), bitmap, nulls)


COLUMNS = Columns(
    3,
    array.array("q", [7, 8, 9]),
    array.array("q", [1000, 1001, 1002]),
    column(b"k", None, b""),
    column(b"first", None, b"\xff%", before=b"sliced away"),
    HeaderColumn(array.array("i", [0, 2, 2, 2]), 2, column(b"a", b"b"), column(b"1", None)),
)


def test_values_are_cut_from_a_slice_and_nulls_kept() -> None:
    assert values_of(COLUMNS.values, 3) == [b"first", None, b"\xff%"]
    assert values_of(COLUMNS.values, 1) == [b"first"]
    assert values_of(COLUMNS.values, 0) == []


def test_raw_is_each_value_and_its_delimiter() -> None:
    assert RawValues().render("t", 0, COLUMNS, 3) == b"first\n\n\xff%\n"
    assert RawValues(b"\0").render("t", 0, COLUMNS, 1) == b"first\0"
    assert RawValues().render("t", 0, COLUMNS, 0) == b""


def test_json_is_one_object_a_line_and_bytes_that_are_no_text_in_base64() -> None:
    first, second, third = map(json.loads, JsonRecords().render("t", 2, COLUMNS, 3).splitlines())
    assert first == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1000,
        "key": "k",
        "value": "first",
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
    }
    assert (second["key"], second["value"]) == (None, None)
    assert (third["key"], third["value_base64"]) == ("", "/yU=")


def test_a_format_has_every_token() -> None:
    rendering = rendering_of(Layout(r"%t[%p]@%o %T %k(%K)=%s(%S) {%h} 100%%\t\x41\n"), as_json=False)
    first, second, third, _ = rendering.render("topic", 2, COLUMNS, 3).split(b"\n")
    assert first == b"topic[2]@7 1000 k(1)=first(5) {a=1,b=} 100%\tA"
    assert second == b"topic[2]@8 1001 (-1)=(-1) {} 100%\tA"
    assert third == b"topic[2]@9 1002 (0)=\xff%(2) {} 100%\tA"


def rendered(layout: Layout) -> bytes:
    return rendering_of(layout, as_json=False).render("t", 0, COLUMNS, 3)


def test_a_length_in_binary_is_minus_one_for_null() -> None:
    assert rendered(Layout("%R")) == b"\0\0\0\x05" + b"\xff\xff\xff\xff" + b"\0\0\0\x02"


def test_keys_are_written_before_values_where_told_and_nulls_by_name() -> None:
    assert rendered(Layout(key_delimiter=r"\t%")) == b"k\t%first\n\t%\n\t%\xff%\n"
    assert rendered(Layout(key_delimiter="|", delimiter=";", show_null=True)) == b"k|first;NULL|NULL;|\xff%;"
    assert rendered(Layout(show_null=True)) == b"first\nNULL\n\xff%\n"
    assert rendered(Layout("%k=%s,", show_null=True)) == b"k=first,NULL=NULL,=\xff%,"


def test_the_format_counts_before_delimiters() -> None:
    assert rendered(Layout("%o ", delimiter=";", key_delimiter="|")) == b"7 8 9 "


def test_binary_keys_and_values_are_unpacked_and_null_stays_null() -> None:
    length = Unpacking("b")
    assert rendered(Layout(value=length)) == b"102\n\n-1\n"
    with pytest.raises(IngestdError, match=r"^t-0, offset 9: its key does not fit --unpack: expected 1 bytes"):
        rendered(Layout("%k", key=length))
    first, *_ = JsonRecords(None, length).render("t", 0, COLUMNS, 1).splitlines()
    assert json.loads(first)["value"] == "102"


@pytest.mark.parametrize("text", ["%x", "%", "\\q", "\\"])
def test_an_unknown_token_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is unknown; expected %t, %p"):
        rendering_of(Layout(text), as_json=False)


def test_a_delimiter_is_typed_with_escapes() -> None:
    assert unescape(r"\n") == b"\n"
    assert unescape(r"%%\t\x1e|") == b"%%\t\x1e|"
    assert unescape("") == b""


def test_what_is_no_text_on_the_command_line_stays_the_bytes_that_it_is() -> None:
    # Python shows such bytes of an argument as lone surrogates.
    assert unescape(os.fsdecode(b"\xff|")) == b"\xff|"
