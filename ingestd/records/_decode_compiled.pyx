# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot loops of decoding in C: the twin of `_decode_plain`, whose docstrings are the contract of both.

Nothing here trusts a length: every read is checked against the end of its buffer, every write against the room
computed for it. Buffers may be shared with other processes, so a byte that is read again is checked again.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from ingestd.errors import CorruptBatch

from ingestd.records._reading cimport (
    ADD_OVERFLOWS, FAULT_CHANGED, FAULT_FIELD_LENGTH, FAULT_HEADER_COUNT, FAULT_HEADER_KEY, FAULT_OFFSET,
    FAULT_RECORD_LENGTH, FAULT_RECORD_REST, FAULT_REST, FAULT_TIMESTAMP, FAULT_TORN, FAULT_VARINT, SOUND, Fault, Fields,
    Reader, byte_t, read_field, read_fields, skip_headers,
)

__all__ = ["Record", "RecordStream", "make_records", "parse_records"]

NAME = "compiled"

cdef enum:
    SMALLEST_RECORD = 7


# Records to columns

FAULTS = {
    <int> FAULT_TORN: "it ends within a field",
    <int> FAULT_VARINT: "a variable-length integer has too many bits",
    <int> FAULT_RECORD_LENGTH: "it is longer than what is left of the batch",
    <int> FAULT_OFFSET: "its offset is not within the batch",
    <int> FAULT_TIMESTAMP: "its timestamp is beyond 64 bits",
    <int> FAULT_FIELD_LENGTH: "a field is longer than what is left of the record",
    <int> FAULT_HEADER_COUNT: "it has more headers than fit into it",
    <int> FAULT_HEADER_KEY: "a header has no key",
    <int> FAULT_RECORD_REST: "bytes follow its headers",
    <int> FAULT_REST: "bytes follow it, the last one",
    <int> FAULT_CHANGED: "its headers changed while they were read",
}


cdef struct Binary:
    int32_t *offsets
    byte_t *data
    byte_t *validity
    int64_t room
    int64_t used
    int64_t nulls


cdef inline bint add(Binary *column, int64_t index, const byte_t *data, int64_t size) noexcept nogil:
    """Add value `index`. False when there is no room for it."""
    if size > 0:
        if size > column.room - column.used:
            return False
        memcpy(column.data + column.used, data, size)
        column.used += size
    elif size < 0:
        column.nulls += 1
        column.validity[index >> 3] &= <byte_t> ~(1 << (index & 7))
    column.offsets[index + 1] = <int32_t> column.used
    return True


cdef struct Parse:
    Reader reader
    int64_t count
    int64_t last_offset_delta
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_timestamp
    bint stamped
    int64_t done
    int64_t *offsets
    int64_t *timestamps
    Binary keys
    Binary values
    int32_t *header_ends
    int64_t headers
    int64_t header_key_bytes
    int64_t header_value_bytes


cdef Fault parse(Parse *run) noexcept nogil:
    """Parse everything except the headers' content, and add up the sizes of that."""
    cdef const byte_t *end = run.reader.end
    cdef Fields fields
    cdef Fault fault
    run.header_ends[0] = 0
    while run.done < run.count:
        fault = read_fields(&run.reader, end, &fields)
        if fault != SOUND:
            return fault
        if run.stamped:
            run.timestamps[run.done] = run.append_timestamp
        elif ADD_OVERFLOWS(run.base_timestamp, fields.timestamp_delta, &run.timestamps[run.done]):
            return FAULT_TIMESTAMP
        if fields.offset_delta < 0 or fields.offset_delta > run.last_offset_delta:
            return FAULT_OFFSET
        run.offsets[run.done] = run.base_offset + fields.offset_delta
        if not add(&run.keys, run.done, fields.key, fields.key_size):
            return FAULT_FIELD_LENGTH
        if not add(&run.values, run.done, fields.value, fields.value_size):
            return FAULT_FIELD_LENGTH
        run.headers += fields.headers
        fault = skip_headers(&run.reader, fields.headers, &run.header_key_bytes, &run.header_value_bytes)
        if fault != SOUND:
            return fault
        run.header_ends[run.done + 1] = <int32_t> run.headers
        run.done += 1
    return SOUND if run.reader.at == end else FAULT_REST


cdef Fault parse_headers(Reader *reader, int64_t count, int64_t room, Binary *keys, Binary *values) noexcept nogil:
    """Parse the headers' content of records that `parse` has checked. Checks again, because the bytes may be shared."""
    cdef const byte_t *end = reader.end
    cdef const byte_t *data = NULL
    cdef int64_t length, done = 0
    cdef Fields fields
    while count > 0:
        if read_fields(reader, end, &fields) != SOUND or fields.headers > room - done:
            return FAULT_CHANGED
        while fields.headers > 0:
            if read_field(reader, &data, &length) != SOUND or length < 0 or not add(keys, done, data, length):
                return FAULT_CHANGED
            if read_field(reader, &data, &length) != SOUND or not add(values, done, data, length):
                return FAULT_CHANGED
            done += 1
            fields.headers -= 1
        if reader.at != reader.end:
            return FAULT_CHANGED
        count -= 1
    return SOUND if done == room else FAULT_CHANGED


cdef class Column:
    """The buffers of a binary column while it is filled."""

    cdef object offsets
    cdef object data
    cdef object validity
    cdef Binary binary
    cdef Py_buffer view
    cdef bint lent

    def __cinit__(self, int64_t count, int64_t room, out=None):
        cdef int64_t bits = (count + 7) >> 3
        self.offsets = PyByteArray_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
        self.lent = out is not None
        if self.lent:
            self.data = out
            PyObject_GetBuffer(out, &self.view, PyBUF_WRITABLE)
            self.binary.data = <byte_t *> self.view.buf
            if self.view.len < room:
                PyBuffer_Release(&self.view)
                self.lent = False
                raise ValueError(f"room for {len(out)} bytes where {room} may be needed")
        else:
            self.data = PyByteArray_FromStringAndSize(NULL, room)
            self.binary.data = <byte_t *> PyByteArray_AS_STRING(self.data)
        self.validity = PyByteArray_FromStringAndSize(NULL, bits)
        self.binary.offsets = <int32_t *> PyByteArray_AS_STRING(self.offsets)
        self.binary.validity = <byte_t *> PyByteArray_AS_STRING(self.validity)
        self.binary.room = room
        self.binary.used = 0
        self.binary.nulls = 0
        self.binary.offsets[0] = 0
        if bits:
            memset(self.binary.validity, 0xFF, bits)
            if count & 7:
                self.binary.validity[bits - 1] = <byte_t> ((1 << (count & 7)) - 1)

    def __dealloc__(self):
        if self.lent:
            PyBuffer_Release(&self.view)

    cdef tuple buffers(self):
        if self.lent:
            return self.offsets, self.data[:self.binary.used], self.validity, self.binary.nulls
        PyByteArray_Resize(self.data, self.binary.used)
        return self.offsets, self.data, self.validity, self.binary.nulls


cdef int check_batch(Py_ssize_t size, int64_t count, int64_t last_offset_delta, int64_t base_offset) except -1:
    cdef int64_t last_offset
    if count < 0 or count > size // SMALLEST_RECORD:
        raise CorruptBatch(f"{count} records in {size} bytes")
    if size > INT32_MAX:
        raise CorruptBatch(f"{size} bytes of records are more than a column holds")
    if base_offset < 0 or ADD_OVERFLOWS(base_offset, last_offset_delta, &last_offset):
        raise CorruptBatch(f"base offset {base_offset} with last offset delta {last_offset_delta}")
    return 0


def parse_records(
    records, int64_t count, int64_t last_offset_delta, int64_t base_offset, int64_t base_timestamp, append_timestamp,
    out=None,
):
    """Parse the records of a batch into the buffers of Arrow columns. See `_decode_plain`."""
    cdef Py_buffer source
    cdef Parse run
    cdef Reader again
    cdef Fault fault
    cdef Column keys, values, header_keys, header_values
    PyObject_GetBuffer(records, &source, PyBUF_SIMPLE)
    try:
        check_batch(source.len, count, last_offset_delta, base_offset)
        offsets = PyByteArray_FromStringAndSize(NULL, count * sizeof(int64_t))
        timestamps = PyByteArray_FromStringAndSize(NULL, count * sizeof(int64_t))
        header_ends = PyByteArray_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
        keys = Column(count, source.len)
        values = Column(count, source.len, out)
        run.reader.at = <const byte_t *> source.buf
        run.reader.end = run.reader.at + source.len
        run.count = count
        run.last_offset_delta = last_offset_delta
        run.base_offset = base_offset
        run.base_timestamp = base_timestamp
        run.stamped = append_timestamp is not None
        run.append_timestamp = append_timestamp if append_timestamp is not None else 0
        run.done = 0
        run.offsets = <int64_t *> PyByteArray_AS_STRING(offsets)
        run.timestamps = <int64_t *> PyByteArray_AS_STRING(timestamps)
        run.keys = keys.binary
        run.values = values.binary
        run.header_ends = <int32_t *> PyByteArray_AS_STRING(header_ends)
        run.headers = run.header_key_bytes = run.header_value_bytes = 0
        with nogil:
            fault = parse(&run)
        keys.binary = run.keys
        values.binary = run.values
        if fault == SOUND:
            header_keys = Column(run.headers, run.header_key_bytes)
            header_values = Column(run.headers, run.header_value_bytes)
            if run.headers:
                again.at = <const byte_t *> source.buf
                again.end = again.at + source.len
                with nogil:
                    fault = parse_headers(&again, count, run.headers, &header_keys.binary, &header_values.binary)
    finally:
        PyBuffer_Release(&source)
    if fault != SOUND:
        raise CorruptBatch(f"record {run.done} of {count}: " + FAULTS[<int> fault])
    return (
        offsets,
        timestamps,
        keys.buffers(),
        values.buffers(),
        (header_ends, header_keys.buffers(), header_values.buffers()),
    )


# Records as objects

cdef extern from "Python.h":
    ctypedef struct PyObject
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
    void PyErr_SetString(PyObject *kind, const char *message) noexcept
    PyObject *PyExc_RuntimeError

cdef extern from *:
    """
    static void ingestd_set_send(PyObject *type, sendfunc send) {
        ((PyTypeObject *) type)->tp_as_async->am_send = send;
    }
    """
    ctypedef PySendResult (*sendfunc)(PyObject *, PyObject *, PyObject **) noexcept
    void set_send "ingestd_set_send"(object kind, sendfunc send) noexcept


@cython.final
@cython.no_gc
cdef class Record:
    """One record as a consumer sees it. See `_decode_plain`.

    The garbage collector does not know it, or it would look at millions of them. Nothing in it can be part of a cycle.
    """

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers
    cdef tuple origin

    def __init__(
        self, int64_t offset, int64_t timestamp_ms, timestamp_type, bytes key, bytes value, headers=(), *, str topic="",
        int partition=-1, int leader_epoch=-1,
    ):
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = tuple((str(name), None if data is None else bytes(data)) for name, data in headers)
        self.origin = (topic, partition, leader_epoch, timestamp_type)

    @property
    def topic(self):
        """The topic's name; empty if the record was not consumed from one."""
        return self.origin[0]

    @property
    def partition(self):
        """The partition's number; -1 if the record was not consumed from one."""
        return self.origin[1]

    @property
    def leader_epoch(self):
        """The epoch of the leader that appended the record; -1 if it is not known (KIP-101)."""
        return self.origin[2]

    @property
    def timestamp_type(self):
        """Whether the timestamp is the producer's, or the time of the append."""
        return self.origin[3]

    cdef tuple fields(self):
        topic, partition, leader_epoch, timestamp_type = self.origin
        return (
            self.offset, self.timestamp_ms, timestamp_type, self.key, self.value, self.headers, topic, partition,
            leader_epoch,
        )

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self.fields() == (<Record> other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __repr__(self):
        return RECORD_FORMAT.format(*self.fields())

    def __reduce__(self):
        return restored_record, self.fields()


RECORD_FORMAT = (
    "Record(offset={!r}, timestamp_ms={!r}, timestamp_type={!r}, key={!r}, value={!r}, headers={!r}, topic={!r}, "
    "partition={!r}, leader_epoch={!r})"
)


def restored_record(
    offset, timestamp_ms, timestamp_type, key, value, headers, topic, partition, leader_epoch
):
    """A record from its pickled fields."""
    return Record(
        offset, timestamp_ms, timestamp_type, key, value, headers, topic=topic, partition=partition,
        leader_epoch=leader_epoch,
    )


cdef tuple read_headers(Reader *reader, int64_t count):
    """A record's headers, which `skip_headers` has checked. None if they changed since."""
    cdef const byte_t *data = NULL
    cdef int64_t length
    cdef list pairs = []
    while count > 0:
        if read_field(reader, &data, &length) != SOUND or length < 0:
            return None
        name = PyUnicode_DecodeUTF8(<const char *> data, length, "replace")
        if read_field(reader, &data, &length) != SOUND:
            return None
        pairs.append((name, PyBytes_FromStringAndSize(<const char *> data, length) if length >= 0 else None))
        count -= 1
    return tuple(pairs)


def make_records(
    records, int64_t count, int64_t last_offset_delta, int64_t base_offset, int64_t base_timestamp, append_timestamp,
    tuple origin, int64_t first, int64_t end,
):
    """The records of a batch as objects. See `_decode_plain`."""
    cdef Py_buffer source
    cdef Reader reader, again
    cdef const byte_t *last
    cdef Fields fields
    cdef Fault fault
    cdef int64_t offset, timestamp, header_bytes = 0, done = 0
    cdef bint stamped = append_timestamp is not None
    cdef int64_t stamp = append_timestamp if append_timestamp is not None else 0
    cdef list made = []
    cdef tuple headers
    cdef Record record
    PyObject_GetBuffer(records, &source, PyBUF_SIMPLE)
    try:
        check_batch(source.len, count, last_offset_delta, base_offset)
        reader.at = <const byte_t *> source.buf
        last = reader.at + source.len
        fault = SOUND
        while done < count:
            fault = read_fields(&reader, last, &fields)
            if fault != SOUND:
                break
            timestamp = stamp
            if not stamped and ADD_OVERFLOWS(base_timestamp, fields.timestamp_delta, &timestamp):
                fault = FAULT_TIMESTAMP
                break
            if fields.offset_delta < 0 or fields.offset_delta > last_offset_delta:
                fault = FAULT_OFFSET
                break
            headers = ()
            again = reader
            fault = skip_headers(&reader, fields.headers, &header_bytes, &header_bytes)
            if fault != SOUND:
                break
            offset = base_offset + fields.offset_delta
            done += 1
            if offset < first or offset >= end:
                continue
            if fields.headers:
                headers = read_headers(&again, fields.headers)
                if headers is None:
                    fault = FAULT_CHANGED
                    break
            record = Record.__new__(Record)
            record.offset = offset
            record.timestamp_ms = timestamp
            if fields.key_size >= 0:
                record.key = PyBytes_FromStringAndSize(<const char *> fields.key, fields.key_size)
            if fields.value_size >= 0:
                record.value = PyBytes_FromStringAndSize(<const char *> fields.value, fields.value_size)
            record.headers = headers
            record.origin = origin
            made.append(record)
        if fault == SOUND and reader.at != last:
            fault = FAULT_REST
    finally:
        PyBuffer_Release(&source)
    if fault != SOUND:
        raise CorruptBatch(f"record {done} of {count}: " + FAULTS[<int> fault])
    return made


@cython.final
cdef class Next:
    """The awaitable that `RecordStream.__anext__` gives while a record is at hand. It never waits.

    `am_send` hands the record to the interpreter's `async for` without raising StopIteration for each.
    """

    cdef RecordStream stream

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.stream.at >= self.stream.count:
            raise RuntimeError("the record was taken by somebody else")
        raise StopIteration(self.stream.take())


cdef PySendResult send_next(PyObject *awaited, PyObject *sent, PyObject **result) noexcept:
    cdef RecordStream stream = (<Next> awaited).stream
    if stream.at >= stream.count:
        PyErr_SetString(PyExc_RuntimeError, "the record was taken by somebody else")
        result[0] = NULL
        return PYGEN_ERROR
    record = stream.take()
    Py_INCREF(record)
    result[0] = <PyObject *> record
    return PYGEN_RETURN


set_send(Next, send_next)


@cython.final
cdef class RecordStream:
    """Async iterator over records that come in lists. See `_decode_plain`."""

    cdef readonly int64_t next_offset
    cdef object more
    cdef list records
    cdef Py_ssize_t at
    cdef Py_ssize_t count
    cdef Next ready

    def __init__(self, more):
        self.more = more
        self.next_offset = -1
        self.records = []
        self.ready = Next.__new__(Next)
        self.ready.stream = self

    @property
    def left(self):
        """The number of records at hand."""
        return self.count - self.at

    cdef Record take(self):
        cdef Record record = <Record> self.records[self.at]
        self.at += 1
        self.next_offset = record.offset + 1
        return record

    def __aiter__(self):
        return self

    def __anext__(self):
        if self.at < self.count:
            return self.ready
        return self.wait()

    async def wait(self):
        """The next record, once there is one."""
        cdef list records
        self.clear()
        while self.at >= self.count:
            records = await self.more()
            if records is None:
                raise StopAsyncIteration
            if self.at < self.count:
                raise RuntimeError("the records were waited for by two tasks at once")
            self.records = records
            self.at = 0
            self.count = len(records)
        return self.take()

    def rest(self):
        """Take all records at hand. See `_decode_plain`."""
        cdef list rest = self.records[self.at:] if self.at else self.records
        if rest:
            self.next_offset = (<Record> rest[len(rest) - 1]).offset + 1
        self.clear()
        return rest

    def clear(self):
        """Drop the records at hand."""
        self.records = []
        self.at = 0
        self.count = 0
