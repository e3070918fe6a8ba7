"""Records into batches one by one, in Python: the twin of `_intake_compiled`, for machines without a compiler.

Same classes, same results. A record's fields are described in `_encode_plain`. `loops` picks the twin.
"""

from __future__ import annotations

import threading
import time
from operator import index
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import CorruptBatch
from ingestd.records._decode_plain import Reader
from ingestd.records._encode_plain import encode_record, murmur2, nullable, varint
from ingestd.records.refusals import SENT, wrong_done, wrong_headers, wrong_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from typing_extensions import Buffer

    from ingestd.records.columns import BinaryColumn, Columns

    Done: TypeAlias = Callable[[Any], None]
    HeaderPairs: TypeAlias = Sequence[tuple[str | bytes, Buffer | None]]
    Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

__all__ = [
    "Allowance",
    "ColumnScatter",
    "RecordBuffer",
    "RecordCursor",
    "RecordIntake",
    "SendResults",
    "TopicIntake",
    "partition_column",
    "tell_results",
]

NAME: Final[str] = "plain"

_SMALLEST_INT64: Final = -(2**63)
_LARGEST_INT64: Final = 2**63 - 1
_NO_HEADERS: Final = b"\x00"
_NO_LIMIT: Final = 2**31 - 1
_MOST_PARTITIONS: Final = 2**31 - 1
_INT32: Final = Struct("=i")


class RecordBuffer:
    """Records of one batch under construction: up to `limit` bytes of them, and up to `most` of them."""

    def __init__(self, limit: int, most: int = _NO_LIMIT) -> None:
        self.limit = limit
        self.most = most
        self._buffer = bytearray()
        self.records = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.dones: list[Done | None] = []
        """The `done` of each record, in order; None for a record without one. It may end before the records do."""

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        return len(self._buffer)

    @property
    def full(self) -> bool:
        """Whether no other record can be added."""
        return len(self._buffer) >= self.limit or self.records >= self.most

    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: HeaderPairs,
        timestamp_ms: int,
        done: Done | None = None,
    ) -> int:
        """Add a record. Returns the bytes of all records so far.

        Returns -1, and adds nothing, if there are records and this one would make them more than `limit` bytes, or more
        than `most`. Raises `ValueError` for a record of 2 GiB or more, `OverflowError` for a timestamp beyond 64 bits,
        `TypeError` for a key or value that is not bytes.
        """
        record = self._encode(key, value, _headers(headers), timestamp_ms)
        if self.records and (len(self._buffer) + len(record) > self.limit or self.records >= self.most):
            return -1
        self._put(record, timestamp_ms, done)
        return len(self._buffer)

    def _encode(self, key: Buffer | None, value: Buffer | None, headers: bytes, timestamp_ms: int) -> bytes:
        if not _SMALLEST_INT64 <= timestamp_ms <= _LARGEST_INT64:
            raise OverflowError(f"timestamp {timestamp_ms} is beyond 64 bits")
        base = self.base_timestamp if self.records else timestamp_ms
        timestamp_delta = timestamp_ms - base
        if not _SMALLEST_INT64 <= timestamp_delta <= _LARGEST_INT64:
            raise ValueError(f"timestamp {timestamp_ms} is more than 64 bits from {base}")
        return encode_record(
            timestamp_delta,
            self.records,
            None if key is None else memoryview(key).tobytes(),
            None if value is None else memoryview(value).tobytes(),
            headers,
        )

    def copy(self, rest: bytes, timestamp_ms: int) -> bool:
        """Add a record of another batch; `rest`: its key, value and headers. False: it must go to the next batch."""
        delta = timestamp_ms - self.base_timestamp if self.records else 0
        if not _SMALLEST_INT64 <= delta <= _LARGEST_INT64:
            return False
        body = b"".join((_NO_HEADERS, varint(delta), varint(self.records), rest))
        if len(body) > _NO_LIMIT:
            raise ValueError(f"a record of {len(body)} bytes")
        record = varint(len(body)) + body
        if self.records and (len(self._buffer) + len(record) > self.limit or self.records >= self.most):
            return False
        self._put(record, timestamp_ms, None)
        return True

    def _put(self, record: bytes, timestamp_ms: int, done: Done | None) -> None:
        self._buffer += record
        if not self.records:
            self.base_timestamp = self.max_timestamp = timestamp_ms
        self.max_timestamp = max(timestamp_ms, self.max_timestamp)
        if done is not None:
            self.dones.extend([None] * (self.records - len(self.dones)))
            self.dones.append(done)
        self.records += 1

    def view(self) -> memoryview:
        """The records so far. The view is valid until the next `append` or `clear`, and must be released before."""
        return memoryview(self._buffer).toreadonly()

    def clear(self) -> None:
        """Remove all records."""
        self._buffer.clear()
        self.records = 0
        self.base_timestamp = self.max_timestamp = -1
        self.dones = []


class RecordCursor:
    """The records of one batch, decompressed, on their way into other batches. Key, value and headers stay as they are.

    count, last_offset_delta, base_offset, base_timestamp: as in the batch's header. `append_timestamp`, if given, is
    every record's timestamp. Only records with offsets from `first` up to, not including, `end` are copied; and if
    `kept` is given, which has a byte for each record, only those whose byte is not 0. Raises `CorruptBatch` for offsets
    beyond 64 bits.
    """

    def __init__(
        self,
        records: Buffer,
        count: int,
        last_offset_delta: int,
        base_offset: int,
        base_timestamp: int,
        append_timestamp: int | None,
        first: int,
        end: int,
        kept: bytes | None = None,
    ) -> None:
        if base_offset < 0 or base_offset > _LARGEST_INT64 - last_offset_delta:
            raise CorruptBatch(f"base offset {base_offset} with last offset delta {last_offset_delta}")
        if kept is not None and len(kept) != count:
            raise ValueError(f"a choice among {len(kept)} records where there are {count}")
        self.left = count
        """The records that are neither copied nor passed over yet."""
        self._count = count
        self._reader = Reader(memoryview(records).tobytes())
        self._header = last_offset_delta, base_offset, base_timestamp, append_timestamp
        self._range = range(first, end)
        self._kept = kept

    def copy_into(self, buffer: RecordBuffer) -> list[tuple[int, int]]:
        """Copy records until there are no more, or `buffer` has no room for the next one: then `left` is not 0.

        Returns their offsets, as runs of (first offset, records), in order. Raises `CorruptBatch` if lengths or counts
        are wrong: then `buffer` has some of the records.
        """
        last_offset_delta, base_offset, base_timestamp, append_timestamp = self._header
        reader = self._reader
        runs: list[tuple[int, int]] = []
        while self.left > 0:
            begin = reader.at
            reader.begin()
            timestamp = reader.timestamp(base_timestamp, append_timestamp)
            offset = base_offset + reader.offset_delta(last_offset_delta)
            rest = reader.data[reader.at : reader.end]
            reader.nullable_bytes(), reader.nullable_bytes(), reader.headers()
            reader.finish()
            if offset in self._range and (self._kept is None or self._kept[self._count - self.left]):
                if not buffer.copy(rest, timestamp):
                    reader.at = begin
                    break
                if runs and offset == sum(runs[-1]):
                    runs[-1] = (runs[-1][0], runs[-1][1] + 1)
                else:
                    runs.append((offset, 1))
            self.left -= 1
        if not self.left:
            reader.finish_all(self._count)
        return runs


class ColumnScatter:
    """Records in columns, on their way into the batches of their partitions. `partitions`: an int32 for each record.

    Raises `ValueError` for columns that are too short, or that point outside of their data. The offsets of `columns`
    do not count: a record gets its offset when it is appended to a log.
    """

    def __init__(self, columns: Columns, partitions: Buffer) -> None:
        count = self.count = columns.count
        self.next = 0
        """The first record that was not appended yet."""
        self._keys, self._values = values_of(columns.keys, count), values_of(columns.values, count)
        self._timestamps = memoryview(columns.timestamps).cast("B").cast("q")
        self._partitions = memoryview(partitions).cast("B").cast("i")
        if len(self._timestamps) < count or len(self._partitions) < count:
            raise ValueError(f"fewer than {count} timestamps or partitions")
        headers = columns.headers
        self._entries = memoryview(headers.offsets).cast("B").cast("i") if headers.count else None
        if self._entries is not None:
            if len(self._entries) < count + 1:
                raise ValueError(f"a column with fewer than {count} lists of headers")
            if any(not 0 <= self._entries[n] <= self._entries[n + 1] <= headers.count for n in range(count)):
                raise ValueError("headers are not within their column")
            self._header_keys = values_of(headers.keys, headers.count)
            self._header_values = values_of(headers.values, headers.count)
        for number in range(count):
            self._keys(number), self._values(number)

    def append_to(self, buffers: Sequence[RecordBuffer]) -> int:
        """Append records, each to the buffer of its partition, until there are no more, or a buffer has no room.

        `buffers` is a list. Returns the full buffer's partition, or -1 at the end. Raises `ValueError` for a partition
        without a buffer, for a header without a key, and what `RecordBuffer.append` raises.
        """
        while self.next < self.count:
            number = self.next
            partition = self._partitions[number]
            if not 0 <= partition < len(buffers):
                raise ValueError(f"record {number}: partition {partition}; expected 0 to {len(buffers) - 1}")
            size = buffers[partition].append(
                self._keys(number), self._values(number), self._headers(number), self._timestamps[number]
            )
            if size < 0:
                return partition
            self.next += 1
        return -1

    def _headers(self, number: int) -> list[tuple[bytes, bytes | None]]:
        if self._entries is None:
            return []
        found = []
        for entry in range(self._entries[number], self._entries[number + 1]):
            key = self._header_keys(entry)
            if key is None:
                raise ValueError(f"record {number}: a header without a key; expected one")
            found.append((key, self._header_values(entry)))
        return found


class Allowance:
    """How many bytes may be held, and how many are."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.shut = False
        """Whether nothing is accepted, even if bytes are left."""


class TopicIntake:
    """The open batch for the next record of a topic, as far as it is known before the record comes."""

    def __init__(self) -> None:
        self.sticky: RecordBuffer | None = None
        """The batch for records without key and partition."""
        self.partitions: list[RecordBuffer | None] = []
        """The batches for records that name their partition. Empty if the topic's partitions are not known."""
        self.murmur2 = False
        """Whether murmur2 of a record's key chooses one of all `partitions`, as in Java's producer."""
        self.index: Callable[[bytes, int], int] | None = None
        """Another function that chooses, from the key and the number of partitions. An empty key goes the long way."""


class SendResults:
    """Messages that `RecordIntake.send_each` sends together, and the partition and offset of each once it has ended.

    A message has the arguments of `RecordIntake.send`: topic, value, key, partition, headers, timestamp in ms. `ended`
    is called once, when every message has ended. It is never called if there are no messages. `now`: the timestamp (ms)
    of messages without one.
    """

    def __init__(self, messages: list[Any], ended: Callable[[], object], now: int) -> None:
        self.messages = messages
        self.now = now
        self.given = 0
        """How many were accepted or refused: the index of the next one."""
        self.failures: list[tuple[int, Any]] = []
        """Index and error of each message that failed, in the order of failing."""
        self.partitions = [-1] * len(messages)
        """Each message's partition; -1 while it has not ended, and if it failed."""
        self.offsets = [-1] * len(messages)
        """Each message's offset; -1 also if the broker did not say."""
        self._appended_at = [-1] * len(messages)
        self._ended = ended
        self._left = len(messages)

    @property
    def timestamps(self) -> list[int]:
        """Each message's timestamp in ms: the log's where the topic stamps records itself, else its own."""
        return [
            appended_at if appended_at >= 0 else self.now if message[5] is None else message[5]
            for message, appended_at in zip(self.messages, self._appended_at, strict=True)
        ]

    def refuse(self, error: Any) -> None:
        """The next message was not accepted: it has failed with `error`. Raises `IndexError` if there is none."""
        if self.given >= len(self.messages):
            raise IndexError("every message was given")
        self.given += 1
        self._fail(self.given - 1, error)

    def _fail(self, index: int, error: Any) -> None:
        self.failures.append((index, error))
        self._end_one()

    def _put(self, index: int, partition: int, offset: int, appended_at: int) -> None:
        self.partitions[index] = partition
        self.offsets[index] = offset
        self._appended_at[index] = appended_at
        self._end_one()

    def _end_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._ended()


class _SendResult:
    """One message of `SendResults`: the `done` of its record. Cheaper than a closure."""

    __slots__ = ("index", "results")

    def __init__(self, results: SendResults) -> None:
        self.results = results
        self.index = results.given

    def __call__(self, delivery: Any) -> None:
        if delivery.error is None:
            appended_at = delivery.log_append_time_ms
            self.results._put(self.index, delivery.partition, delivery.base_offset, appended_at)  # noqa: SLF001 - as in the twin
        else:
            self.results._fail(self.index, delivery.error)  # noqa: SLF001


def tell_results(dones: list[Done | None], partition: int, base_offset: int, appended_at: int) -> bool:
    """Tell a batch's records their offsets, if all their `done`s are of `SendResults`. Otherwise only return False.

    `base_offset` is that of the first record; -1 if the broker did not say. `appended_at` (ms) is the log's timestamp
    if the topic stamps records itself, else -1.
    """
    if not all(done is None or type(done) is _SendResult for done in dones):
        return False
    for number, done in enumerate(dones):
        if isinstance(done, _SendResult):
            offset = base_offset + number if base_offset >= 0 else -1
            done.results._put(done.index, partition, offset, appended_at)  # noqa: SLF001
    return True


class RecordIntake:
    """The short way of a record into an open batch. `_take`, which a subclass implements, is the long way.

    A record goes the short way if its open batch is known, if that batch has records and stays open with this one, if
    key and value are bytes, and while the allowance has bytes left and is not shut. So the first record of a batch and
    the last go the long way. Between them no Python code runs for a record, except a hash of its key other than
    murmur2. The long way must do the same with a record as the short way. A call from another thread than `_thread`
    goes the long way, which refuses it.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._thread = threading.get_ident()
        self._intakes: dict[str, TopicIntake] = {}

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        done: Done | None = None,
    ) -> None:
        """Accept one record. A plain call, which gives None: the record is on its way when it returns.

        topic: a string. value, key: bytes, or None; a None value deletes its key from a compacted topic.
        partition: its number; None: the partitioner chooses, by the key where there is one.
        headers: pairs of a string and bytes, as in [("source", b"web")].
        timestamp_ms: milliseconds since 1970; None: now.
        done: called once with the record's `Delivery`, on the event loop; it must neither block nor raise. Without it,
        `flush` and `close` raise what fails.

        Raises `BufferFull` (wait with `room`), `Closed`, `KafkaError` (an invalid partition, a topic given up for now,
        or what ended the producer), `ValueError` for a record of 2 GiB and more, `OverflowError` for a timestamp beyond
        64 bits, `TypeError` for what is not bytes or can not be called, `WrongLoop` in another thread. Then the record
        was not accepted, and `done` is not called.
        """
        if done is not None and not callable(done):
            raise wrong_done(done)
        if type(value) in _BYTES and type(key) in _BYTES:
            # First everything that may run a caller's code (headers, numbers of other classes), then the batch.
            field = _headers(headers)
            now = time.time_ns() // 1_000_000 if timestamp_ms is None else _milliseconds(timestamp_ms)
            buffer = self._open_batch(topic, key, partition)
            if buffer is not None:
                record = buffer._encode(key, value, field, now)  # noqa: SLF001 - one class in two, as in the twin
                if buffer.size + len(record) < buffer.limit and buffer.records + 1 < buffer.most:
                    buffer._put(record, now, done)  # noqa: SLF001
                    self._allowance.used += len(record)
                    return SENT
        self._take(topic, value, key, partition, headers, timestamp_ms, done)
        return SENT

    def send_each(self, results: SendResults) -> None:
        """Accept the messages of `results`, beginning with the first that was not accepted or refused before.

        Raises what `send` raises for the message that is next then, and `TypeError` or `ValueError` for a message that
        is not six values. The messages before it were accepted.
        """
        while results.given < len(results.messages):
            topic, value, key, partition, headers, timestamp_ms = results.messages[results.given]
            self.send(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers,
                timestamp_ms=results.now if timestamp_ms is None else timestamp_ms,
                done=_SendResult(results),
            )
            results.given += 1

    def _open_batch(self, topic: str, key: bytes | None, partition: int | None) -> RecordBuffer | None:
        intake = self._intakes.get(topic)
        if intake is None or self._allowance.shut or self._allowance.used >= self._allowance.limit:
            return None
        if self._thread != threading.get_ident():
            return None
        if partition is None and key is None:
            buffer = intake.sticky
        else:
            partitions = intake.partitions
            chosen = _chosen(intake, key) if partition is None else partition
            buffer = partitions[chosen] if type(chosen) is int and 0 <= chosen < len(partitions) else None
        return buffer if buffer is not None and buffer.records else None

    def _take(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
        done: Done | None,
    ) -> None:
        """Accept or refuse a record: the long way of `send`."""
        raise NotImplementedError


_BYTES: Final = (bytes, type(None))


def _chosen(intake: TopicIntake, key: bytes | None) -> int | None:
    if not key or not intake.partitions:
        return None
    if intake.murmur2:
        return (murmur2(key) & 0x7FFFFFFF) % len(intake.partitions)
    return None if intake.index is None else intake.index(key, len(intake.partitions))


def _milliseconds(timestamp_ms: int) -> int:
    try:
        return index(timestamp_ms)
    except TypeError:
        raise wrong_timestamp(timestamp_ms) from None


def _headers(headers: HeaderPairs) -> bytes:
    if not headers:
        return _NO_HEADERS
    try:
        return _encoded_headers(list(headers))
    except (TypeError, ValueError):
        raise wrong_headers(headers) from None


def _encoded_headers(pairs: HeaderPairs) -> bytes:
    encoded = bytearray(varint(len(pairs)))
    for name, value in pairs:
        encoded += nullable(name.encode() if isinstance(name, str) else memoryview(name).tobytes())
        encoded += nullable(None if value is None else memoryview(value).tobytes())
    return bytes(encoded)


def partition_column(column: BinaryColumn, count: int, partitions: int, keyless: int) -> bytearray:
    """The partition of each key of a column of `count`, as `partition_keys` gives it; `keyless` for null.

    Raises `ValueError` for a key outside of the column, and for less than one partition.
    """
    if not 0 < partitions <= _MOST_PARTITIONS:
        raise ValueError(f"{partitions} partitions: expected at least 1")
    keys = values_of(column, count)
    chosen = bytearray()
    for number in range(count):
        key = keys(number)
        chosen += _INT32.pack(keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions)
    return chosen


def values_of(column: BinaryColumn, count: int) -> Callable[[int], bytes | None]:
    """What gives value i of a column of `count`. Raises `ValueError` if there are fewer, or one is outside of it."""
    data = memoryview(column.data).tobytes()
    offsets = memoryview(column.offsets).cast("B").cast("i")
    validity = None if column.validity is None else memoryview(column.validity).cast("B")
    if count < 0 or len(offsets) < count + 1 or (validity is not None and len(validity) * 8 < count):
        raise ValueError(f"a column with fewer than {count} values")

    def value(number: int) -> bytes | None:
        if validity is not None and not validity[number >> 3] >> (number & 7) & 1:
            return None
        start, end = offsets[number], offsets[number + 1]
        if not 0 <= start <= end <= len(data):
            raise ValueError(f"value {number} is not within its column")
        return data[start:end]

    return value
