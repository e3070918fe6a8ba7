"""Filtering: which records a mirror copies, by their keys and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.patterns import text_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ingestd.records.decode import Record

    Test = Callable[[Record], bool]

__all__ = ["RecordFilter"]


class RecordFilter:
    """Takes a record, or leaves it out. Patterns are regular expressions that match a whole key or a header's value.

    Keys and values are read as UTF-8; other bytes in them are U+FFFD.
    """

    def __init__(
        self,
        keys: Sequence[str],
        exclude_keys: Sequence[str],
        headers: Mapping[str, str],
        exclude_headers: Mapping[str, str],
    ) -> None:
        """`keys`: if there are any, one must match. `exclude_keys`: none may. `headers`: each must match.

        `exclude_headers`: none may. A record without a key matches no pattern of keys. Of headers with one name, one
        that matches is enough.
        """
        tests: list[Test] = []
        if keys:
            tests.append(_key_test(keys, wanted=True))
        if exclude_keys:
            tests.append(_key_test(exclude_keys, wanted=False))
        tests += [_header_test(name, pattern, wanted=True) for name, pattern in headers.items()]
        tests += [_header_test(name, pattern, wanted=False) for name, pattern in exclude_headers.items()]
        self._tests = tests

    def takes(self, record: Record) -> bool:
        """Whether the mirror copies this record."""
        return all(test(record) for test in self._tests)

    def kept(self, records: Sequence[Record]) -> bytes:
        """A byte for each record: 0 for one that is left out."""
        return bytes(map(self.takes, records))


def _key_test(patterns: Sequence[str], *, wanted: bool) -> Test:
    matches = text_matcher(patterns)

    def test(record: Record) -> bool:
        key = record.key
        return (key is not None and matches(str(key, "utf-8", "replace"))) is wanted

    return test


def _header_test(name: str, pattern: str, *, wanted: bool) -> Test:
    matches = text_matcher([pattern])

    def test(record: Record) -> bool:
        for known, value in record.headers:
            if known == name and value is not None and matches(str(value, "utf-8", "replace")):
                return wanted
        return not wanted

    return test
