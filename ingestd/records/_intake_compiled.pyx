# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records into batches one by one, in C: the twin of `_intake_plain`, whose docstrings are the contract of both."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from cpython.pythread cimport PyThread_get_thread_ident
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from ingestd.errors import CorruptBatch
from ingestd.records._decode_compiled import FAULTS
from ingestd.records.refusals import SENT as PLAIN_SENT, wrong_done, wrong_headers, wrong_timestamp

from ingestd.records._fields cimport byte_t, murmur2_of, put_varint, varint_bytes, zigzag
from ingestd.records._reading cimport ADD_OVERFLOWS, SOUND, Fault, Fields, Reader, read_fields, skip_headers

__all__ = ["Allowance", "ColumnScatter", "SendResults", "RecordBuffer", "RecordCursor", "RecordIntake", "TopicIntake", "partition_column", "tell_results"]

NAME = "compiled"

cdef object SENT = PLAIN_SENT

cdef extern from *:
    """
    #define INGESTD_SUBTRACT_OVERFLOWS(a, b, difference) __builtin_sub_overflow(a, b, difference)
    """
    bint SUBTRACT_OVERFLOWS "INGESTD_SUBTRACT_OVERFLOWS"(int64_t, int64_t, int64_t *) noexcept nogil

cdef enum:
    LONGEST_VARLONG = 10
    MOST_KEPT = 4
    SMALLEST_KEPT = 64 * 1024
    LARGEST_KEPT = 4 * 1024 * 1024


# Memory of batches that were built, for those that begin. Batch after batch is filled while the same memory is in the
# cache, and a producer of thousands of partitions holds memory for the batches that it has, not for each partition.
cdef struct Slab:
    byte_t *data
    Py_ssize_t room

cdef Slab[MOST_KEPT] kept
cdef int kept_count = 0


# The size of a null key or value is -1. The last three fields are computed from the others and from the batch.
cdef struct Record:
    const byte_t *key
    Py_ssize_t key_size
    const byte_t *value
    Py_ssize_t value_size
    const byte_t *headers
    Py_ssize_t headers_size
    int64_t timestamp
    int64_t timestamp_delta
    uint64_t body
    Py_ssize_t size


cdef class RecordBuffer:
    """Records of one batch under construction. See `_intake_plain`."""

    cdef readonly int64_t limit
    cdef readonly int64_t most
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t records
    cdef readonly list dones
    cdef byte_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef int views

    def __cinit__(self, int64_t limit, int64_t most=INT32_MAX):
        self.limit = limit
        self.most = most
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.dones = []

    def __dealloc__(self):
        self.give_back()

    @property
    def size(self):
        """Bytes of the records so far."""
        return self.used

    @property
    def full(self):
        """Whether no other record can be added."""
        return self.used >= self.limit or self.records >= self.most

    def append(self, key, value, headers, int64_t timestamp_ms, done=None):
        """Add a record. See `_intake_plain`."""
        cdef Py_buffer key_view, value_view
        cdef Record record
        cdef bint key_held = False, value_held = False
        cdef bytes field = header_bytes(headers) if headers else None
        set_headers(&record, field)
        record.timestamp = timestamp_ms
        try:
            if not set_bytes(value, &record.value, &record.value_size):
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                value_held = True
                record.value = <const byte_t *> value_view.buf
                record.value_size = value_view.len
            if not set_bytes(key, &record.key, &record.key_size):
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                key_held = True
                record.key = <const byte_t *> key_view.buf
                record.key_size = key_view.len
            self.measure(&record)
            if self.records and (self.used + record.size > self.limit or self.records >= self.most):
                return -1
            self.put(&record, done)
            return self.used
        finally:
            if value_held:
                PyBuffer_Release(&value_view)
            if key_held:
                PyBuffer_Release(&key_view)

    cdef int measure(self, Record *record) except -1:
        """Measure the record as the next one of this batch."""
        record.timestamp_delta = 0
        if self.records and SUBTRACT_OVERFLOWS(record.timestamp, self.base_timestamp, &record.timestamp_delta):
            raise ValueError(f"timestamp {record.timestamp} is more than 64 bits from {self.base_timestamp}")
        record.body = (
            1 + varint_bytes(zigzag(record.timestamp_delta)) + varint_bytes(zigzag(self.records))
            + varint_bytes(zigzag(record.key_size)) + <uint64_t> (record.key_size if record.key_size > 0 else 0)
            + varint_bytes(zigzag(record.value_size)) + <uint64_t> (record.value_size if record.value_size > 0 else 0)
            + <uint64_t> record.headers_size
        )
        if record.body > INT32_MAX:
            raise ValueError(f"a record of {record.body} bytes")
        record.size = varint_bytes(record.body << 1) + <Py_ssize_t> record.body
        return 0

    cdef int put(self, Record *record, done) except -1:
        """Add a record that was measured."""
        cdef byte_t *at
        if self.views:
            raise BufferError("records are being looked at")
        if record.size > self.room - self.used:
            self.grow(self.used + record.size)
        if done is not None:
            while PyList_GET_SIZE(self.dones) < self.records:
                self.dones.append(None)
            self.dones.append(done)
        at = put_varint(self.data + self.used, record.body << 1)
        at[0] = 0
        at = put_varint(at + 1, zigzag(record.timestamp_delta))
        at = put_varint(at, zigzag(self.records))
        at = put_varint(at, zigzag(record.key_size))
        if record.key_size > 0:
            memcpy(at, record.key, record.key_size)
            at += record.key_size
        at = put_varint(at, zigzag(record.value_size))
        if record.value_size > 0:
            memcpy(at, record.value, record.value_size)
            at += record.value_size
        memcpy(at, record.headers, record.headers_size)
        if not self.records:
            self.base_timestamp = self.max_timestamp = record.timestamp
        elif record.timestamp > self.max_timestamp:
            self.max_timestamp = record.timestamp
        self.used += record.size
        self.records += 1
        return 0

    cdef bint copy(self, Fields *fields, Py_ssize_t rest_size, int64_t timestamp) except -1:
        """Add a record of another batch, whose key, value and headers are `rest`. False: it must go to the next batch."""
        cdef int64_t timestamp_delta = 0
        cdef uint64_t body
        cdef Py_ssize_t size
        cdef byte_t *at
        if self.records and SUBTRACT_OVERFLOWS(timestamp, self.base_timestamp, &timestamp_delta):
            return False
        body = (
            1 + varint_bytes(zigzag(timestamp_delta)) + varint_bytes(zigzag(self.records)) + <uint64_t> rest_size
        )
        if body > INT32_MAX:
            raise ValueError(f"a record of {body} bytes")
        size = varint_bytes(body << 1) + <Py_ssize_t> body
        if self.records and (self.used + size > self.limit or self.records >= self.most):
            return False
        if size > self.room - self.used:
            self.grow(self.used + size)
        at = put_varint(self.data + self.used, body << 1)
        at[0] = 0
        at = put_varint(at + 1, zigzag(timestamp_delta))
        at = put_varint(at, zigzag(self.records))
        memcpy(at, fields.rest, rest_size)
        if not self.records:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.used += size
        self.records += 1
        return True

    cdef int grow(self, Py_ssize_t needed) except -1:
        global kept_count
        cdef Py_ssize_t room
        cdef byte_t *data
        if self.data == NULL and kept_count:
            kept_count -= 1
            self.data = kept[kept_count].data
            self.room = kept[kept_count].room
            if self.room >= needed:
                return 0
        room = max(needed, min(2 * self.room, self.limit), 1024)
        data = <byte_t *> realloc(self.data, room)
        if data == NULL:
            raise MemoryError
        self.data = data
        self.room = room
        return 0

    cdef void give_back(self) noexcept:
        global kept_count
        if SMALLEST_KEPT <= self.room <= LARGEST_KEPT and kept_count < MOST_KEPT:
            kept[kept_count].data = self.data
            kept[kept_count].room = self.room
            kept_count += 1
        else:
            free(self.data)
        self.data = NULL
        self.room = 0

    def view(self):
        """The records so far. See `_intake_plain`."""
        return memoryview(self)

    def clear(self):
        """Remove all records."""
        if self.views:
            raise BufferError("records are being looked at")
        self.give_back()
        self.used = 0
        self.records = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.dones = []

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data if self.data != NULL else <byte_t *> b"", self.used, True, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.views -= 1


cdef class RecordCursor:
    """The records of one batch on their way into others. See `_intake_plain`."""

    cdef readonly int64_t left
    cdef Py_buffer source
    cdef bint held
    cdef Reader reader
    cdef int64_t count
    cdef int64_t last_offset_delta
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t append_timestamp
    cdef bint stamped
    cdef int64_t first
    cdef int64_t end
    cdef bytes kept

    def __cinit__(
        self, records, int64_t count, int64_t last_offset_delta, int64_t base_offset, int64_t base_timestamp,
        append_timestamp, int64_t first, int64_t end, bytes kept=None,
    ):
        cdef int64_t last_offset
        if base_offset < 0 or ADD_OVERFLOWS(base_offset, last_offset_delta, &last_offset):
            raise CorruptBatch(f"base offset {base_offset} with last offset delta {last_offset_delta}")
        if kept is not None and PyBytes_GET_SIZE(kept) != count:
            raise ValueError(f"a choice among {len(kept)} records where there are {count}")
        PyObject_GetBuffer(records, &self.source, PyBUF_SIMPLE)
        self.held = True
        self.reader.at = <const byte_t *> self.source.buf
        self.left = self.count = count
        self.last_offset_delta = last_offset_delta
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.stamped = append_timestamp is not None
        self.append_timestamp = append_timestamp if append_timestamp is not None else 0
        self.first = first
        self.end = end
        self.kept = kept

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.source)

    def copy_into(self, RecordBuffer buffer not None):
        """Copy records until there are no more, or no room. See `_intake_plain`."""
        cdef const byte_t *end = <const byte_t *> self.source.buf + self.source.len
        cdef const byte_t *begin
        cdef const byte_t *kept = <const byte_t *> PyBytes_AS_STRING(self.kept) if self.kept is not None else NULL
        cdef Fields fields
        cdef Fault fault
        cdef list runs = []
        cdef int64_t offset, timestamp, run = 0, run_records = 0, unused = 0
        if buffer.views:
            raise BufferError("records are being looked at")
        while self.left > 0:
            begin = self.reader.at
            fault = read_fields(&self.reader, end, &fields)
            if fault == SOUND:
                fault = skip_headers(&self.reader, fields.headers, &unused, &unused)
            if fault != SOUND:
                raise CorruptBatch(f"record {self.count - self.left} of {self.count}: " + FAULTS[<int> fault])
            if self.stamped:
                timestamp = self.append_timestamp
            elif ADD_OVERFLOWS(self.base_timestamp, fields.timestamp_delta, &timestamp):
                raise CorruptBatch(f"record {self.count - self.left} of {self.count}: its timestamp is beyond 64 bits")
            if fields.offset_delta < 0 or fields.offset_delta > self.last_offset_delta:
                raise CorruptBatch(f"record {self.count - self.left} of {self.count}: its offset is not within the batch")
            offset = self.base_offset + fields.offset_delta
            if self.first <= offset < self.end and (kept == NULL or kept[self.count - self.left]):
                if not buffer.copy(&fields, self.reader.at - fields.rest, timestamp):
                    self.reader.at = begin
                    break
                if run_records and offset == run + run_records:
                    run_records += 1
                else:
                    if run_records:
                        runs.append((run, run_records))
                    run = offset
                    run_records = 1
            self.left -= 1
        if run_records:
            runs.append((run, run_records))
        if not self.left and self.reader.at != end:
            raise CorruptBatch(f"bytes follow the last of {self.count} records")
        return runs


# A column of bytes, as Arrow has it. `validity` is null where no value is.
cdef class Column:
    cdef Py_buffer ends
    cdef Py_buffer bytes
    cdef Py_buffer valid
    cdef int held
    cdef const int32_t *offsets
    cdef const byte_t *data
    cdef const byte_t *validity
    cdef Py_ssize_t count

    def __cinit__(self, column, Py_ssize_t count):
        cdef Py_ssize_t number
        PyObject_GetBuffer(column.offsets, &self.ends, PyBUF_SIMPLE)
        self.held = 1
        PyObject_GetBuffer(column.data, &self.bytes, PyBUF_SIMPLE)
        self.held = 2
        if column.validity is not None:
            PyObject_GetBuffer(column.validity, &self.valid, PyBUF_SIMPLE)
            self.held = 3
            self.validity = <const byte_t *> self.valid.buf
            if self.valid.len * 8 < count:
                raise ValueError(f"a column with fewer than {count} values")
        if count < 0 or self.ends.len < <Py_ssize_t> sizeof(int32_t) * (count + 1):
            raise ValueError(f"a column with fewer than {count} values")
        self.offsets = <const int32_t *> self.ends.buf
        self.data = <const byte_t *> self.bytes.buf
        self.count = count
        for number in range(count):
            if self.offsets[number] < 0 or self.offsets[number + 1] < self.offsets[number]:
                raise ValueError(f"value {number} is not within its column")
        if self.offsets[count] > self.bytes.len:
            raise ValueError(f"value {count - 1} is not within its column")

    def __dealloc__(self):
        if self.held > 0:
            PyBuffer_Release(&self.ends)
        if self.held > 1:
            PyBuffer_Release(&self.bytes)
        if self.held > 2:
            PyBuffer_Release(&self.valid)

    cdef inline void point(self, Py_ssize_t number, const byte_t **start, Py_ssize_t *size) noexcept nogil:
        if self.validity != NULL and not self.validity[number >> 3] >> (number & 7) & 1:
            start[0] = NULL
            size[0] = -1
        else:
            start[0] = self.data + self.offsets[number]
            size[0] = self.offsets[number + 1] - self.offsets[number]


cdef class ColumnScatter:
    """Records in columns, on their way into the batches of their partitions. See `_intake_plain`."""

    cdef readonly int64_t next
    cdef readonly int64_t count
    cdef Column keys
    cdef Column values
    cdef Column header_keys
    cdef Column header_values
    cdef Py_buffer stamps
    cdef Py_buffer chosen
    cdef Py_buffer lists
    cdef int held
    cdef const int32_t *entries
    cdef byte_t *scratch
    cdef Py_ssize_t room

    def __cinit__(self, columns, partitions):
        cdef Py_ssize_t number, count = columns.count
        self.count = count
        self.keys = Column(columns.keys, count)
        self.values = Column(columns.values, count)
        PyObject_GetBuffer(columns.timestamps, &self.stamps, PyBUF_SIMPLE)
        self.held = 1
        PyObject_GetBuffer(partitions, &self.chosen, PyBUF_SIMPLE)
        self.held = 2
        if self.stamps.len < count * <Py_ssize_t> sizeof(int64_t) or self.chosen.len < count * <Py_ssize_t> sizeof(int32_t):
            raise ValueError(f"fewer than {count} timestamps or partitions")
        if columns.headers.count:
            self.header_keys = Column(columns.headers.keys, columns.headers.count)
            self.header_values = Column(columns.headers.values, columns.headers.count)
            PyObject_GetBuffer(columns.headers.offsets, &self.lists, PyBUF_SIMPLE)
            self.held = 3
            if self.lists.len < <Py_ssize_t> sizeof(int32_t) * (count + 1):
                raise ValueError(f"a column with fewer than {count} lists of headers")
            self.entries = <const int32_t *> self.lists.buf
            for number in range(count):
                if self.entries[number] < 0 or self.entries[number + 1] < self.entries[number]:
                    raise ValueError(f"headers {number} are not within their column")
            if self.entries[count] > columns.headers.count:
                raise ValueError(f"headers {count - 1} are not within their column")

    def __dealloc__(self):
        if self.held > 0:
            PyBuffer_Release(&self.stamps)
        if self.held > 1:
            PyBuffer_Release(&self.chosen)
        if self.held > 2:
            PyBuffer_Release(&self.lists)
        free(self.scratch)

    def append_to(self, list buffers not None):
        """Append records until there are no more, or a buffer is full. See `_intake_plain`."""
        cdef const int64_t *stamps = <const int64_t *> self.stamps.buf
        cdef const int32_t *chosen = <const int32_t *> self.chosen.buf
        cdef Py_ssize_t count = PyList_GET_SIZE(buffers)
        cdef int32_t partition
        cdef RecordBuffer buffer
        cdef Record record
        while self.next < self.count:
            partition = chosen[self.next]
            if partition < 0 or partition >= count:
                raise ValueError(f"record {self.next}: partition {partition}; expected 0 to {count - 1}")
            buffer = <RecordBuffer?> buffers[partition]
            self.keys.point(self.next, &record.key, &record.key_size)
            self.values.point(self.next, &record.value, &record.value_size)
            self.put_headers(&record)
            record.timestamp = stamps[self.next]
            buffer.measure(&record)
            if buffer.records and (buffer.used + record.size > buffer.limit or buffer.records >= buffer.most):
                return partition
            buffer.put(&record, None)
            self.next += 1
        return -1

    cdef int put_headers(self, Record *record) except -1:
        """Write the headers of the next record, as a record has them."""
        cdef Py_ssize_t number, size, needed = LONGEST_VARLONG
        cdef const byte_t *start
        cdef byte_t *at
        cdef int32_t first, last
        if self.entries == NULL or self.entries[self.next] == self.entries[self.next + 1]:
            record.headers = <const byte_t *> b"\x00"
            record.headers_size = 1
            return 0
        first = self.entries[self.next]
        last = self.entries[self.next + 1]
        for number in range(first, last):
            self.header_keys.point(number, &start, &size)
            if size < 0:
                raise ValueError(f"record {self.next}: a header without a key; expected one")
            needed += size
            self.header_values.point(number, &start, &size)
            needed += 2 * LONGEST_VARLONG + max(size, 0)
        if needed > self.room:
            at = <byte_t *> realloc(self.scratch, needed)
            if at == NULL:
                raise MemoryError
            self.scratch = at
            self.room = needed
        at = put_varint(self.scratch, zigzag(last - first))
        for number in range(first, last):
            self.header_keys.point(number, &start, &size)
            at = put_varint(at, zigzag(size))
            memcpy(at, start, size)
            at += size
            self.header_values.point(number, &start, &size)
            at = put_varint(at, zigzag(size))
            if size > 0:
                memcpy(at, start, size)
                at += size
        record.headers = self.scratch
        record.headers_size = at - self.scratch
        return 0


cdef inline bint set_bytes(data, const byte_t **start, Py_ssize_t *size) noexcept:
    """Point at bytes, or at null for None; False for anything else."""
    if type(data) is bytes:
        start[0] = <const byte_t *> PyBytes_AS_STRING(data)
        size[0] = PyBytes_GET_SIZE(data)
        return True
    start[0] = NULL
    size[0] = -1
    return data is None


cdef inline void set_headers(Record *record, bytes field) noexcept:
    if field is None:
        record.headers = <const byte_t *> b"\x00"
        record.headers_size = 1
    else:
        record.headers = <const byte_t *> PyBytes_AS_STRING(field)
        record.headers_size = PyBytes_GET_SIZE(field)


cdef bytes header_bytes(headers):
    """Headers as in a record: their number, then each key and value."""
    try:
        return encoded_headers(list(headers))
    except (TypeError, ValueError):
        raise wrong_headers(headers) from None


cdef bytes encoded_headers(list pairs):
    cdef list fields = []
    cdef byte_t number[LONGEST_VARLONG]
    cdef byte_t *end = put_varint(number, zigzag(len(pairs)))
    fields.append(PyBytes_FromStringAndSize(<char *> number, end - number))
    for name, value in pairs:
        fields.append(header_field(name.encode() if isinstance(name, str) else name))
        fields.append(b"\x01" if value is None else header_field(value))
    return b"".join(fields)


cdef int64_t milliseconds(timestamp_ms) except? -1:
    try:
        return PyNumber_Index(timestamp_ms)
    except TypeError:
        raise wrong_timestamp(timestamp_ms) from None


cdef bytes header_field(data):
    """Bytes, after their length."""
    cdef bytes whole = data if type(data) is bytes else bytes(memoryview(data))
    cdef Py_ssize_t size = PyBytes_GET_SIZE(whole)
    cdef bytes field = PyBytes_FromStringAndSize(NULL, varint_bytes(zigzag(size)) + size)
    memcpy(put_varint(<byte_t *> PyBytes_AS_STRING(field), zigzag(size)), PyBytes_AS_STRING(whole), size)
    return field


cdef class Allowance:
    """How many bytes may be held, and how many are. See `_intake_plain`."""

    cdef public int64_t limit
    cdef public int64_t used
    cdef public bint shut

    def __cinit__(self, int64_t limit):
        self.limit = limit


cdef class TopicIntake:
    """The open batch for the next record of a topic. See `_intake_plain`."""

    cdef public RecordBuffer sticky
    cdef public list partitions
    cdef public bint murmur2
    cdef public object index

    def __cinit__(self):
        self.partitions = []


cdef struct Where:
    int64_t partition
    int64_t offset
    int64_t appended_at


cdef class SendResults:
    """Messages that are sent together, and where each is once it has ended. See `_intake_plain`."""

    cdef readonly list messages
    cdef readonly Py_ssize_t given
    cdef readonly list failures
    cdef readonly object now
    cdef object ended
    cdef Where *found
    cdef Py_ssize_t left

    def __cinit__(self, list messages not None, ended, now):
        cdef Py_ssize_t index, count = PyList_GET_SIZE(messages)
        self.messages = messages
        self.ended = ended
        self.now = now
        self.failures = []
        self.left = count
        self.found = <Where *> malloc(max(1, count) * sizeof(Where))
        if self.found == NULL:
            raise MemoryError
        for index in range(count):
            self.found[index].partition = self.found[index].offset = self.found[index].appended_at = -1

    def __dealloc__(self):
        free(self.found)

    @property
    def partitions(self):
        """Each message's partition. See `_intake_plain`."""
        return [self.found[index].partition for index in range(PyList_GET_SIZE(self.messages))]

    @property
    def offsets(self):
        """Each message's offset. See `_intake_plain`."""
        return [self.found[index].offset for index in range(PyList_GET_SIZE(self.messages))]

    @property
    def timestamps(self):
        """Each message's timestamp. See `_intake_plain`."""
        cdef Py_ssize_t index
        cdef list stamps = []
        for index in range(PyList_GET_SIZE(self.messages)):
            stamp = self.found[index].appended_at if self.found[index].appended_at >= 0 else self.messages[index][5]
            stamps.append(self.now if stamp is None else stamp)
        return stamps

    def refuse(self, error):
        """The next message was not accepted. See `_intake_plain`."""
        if self.given >= PyList_GET_SIZE(self.messages):
            raise IndexError("every message was given")
        self.given += 1
        self.fail(self.given - 1, error)

    cdef int fail(self, Py_ssize_t index, error) except -1:
        self.failures.append((index, error))
        return self.end_one()

    cdef int put(self, Py_ssize_t index, int64_t partition, int64_t offset, int64_t appended_at) except -1:
        self.found[index].partition = partition
        self.found[index].offset = offset
        self.found[index].appended_at = appended_at
        return self.end_one()

    cdef int end_one(self) except -1:
        self.left -= 1
        if not self.left:
            self.ended()
        return 0


@cython.final
@cython.no_gc  # one for each record under way, let go when the record ends: the collector need not look at them
@cython.freelist(1024)
cdef class SendResult:
    """One message of `SendResults`: what is told of its end. See `_intake_plain`."""

    cdef SendResults results
    cdef Py_ssize_t index

    def __call__(self, delivery):
        if delivery.error is None:
            self.results.put(self.index, delivery.partition, delivery.base_offset, delivery.log_append_time_ms)
        else:
            self.results.fail(self.index, delivery.error)


cdef inline SendResult result_of(SendResults results):
    cdef SendResult result = SendResult.__new__(SendResult)
    result.results = results
    result.index = results.given
    return result


def tell_results(list dones not None, int64_t partition, int64_t base_offset, int64_t appended_at):
    """Tell a batch's records where they are, if all who are to be told are `SendResults`. See `_intake_plain`."""
    cdef SendResult result
    cdef Py_ssize_t number
    for number in range(PyList_GET_SIZE(dones)):
        done = <object> PyList_GET_ITEM(dones, number)
        if done is not None and type(done) is not SendResult:
            return False
    number = 0
    while number < PyList_GET_SIZE(dones):  # `ended` is a caller's code
        done = <object> PyList_GET_ITEM(dones, number)
        if type(done) is SendResult:
            result = <SendResult> done
            result.results.put(result.index, partition, base_offset + number if base_offset >= 0 else -1, appended_at)
        number += 1
    return True


cdef class RecordIntake:
    """The short way of a record into a batch that is open. See `_intake_plain`."""

    cdef readonly Allowance _allowance
    cdef readonly dict _intakes
    cdef public unsigned long _thread
    cdef object last_topic
    cdef TopicIntake last_intake

    def __init__(self, Allowance allowance not None):
        self._allowance = allowance
        self._thread = PyThread_get_thread_ident()
        self._intakes = {}

    def send(self, topic, value, *, key=None, partition=None, headers=(), timestamp_ms=None, done=None):
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
        self.accept(topic, value, key, partition, headers, timestamp_ms, done)
        return SENT

    def send_each(self, SendResults results not None):
        """Accept the messages of `results`. See `_intake_plain`."""
        cdef list messages = results.messages
        while results.given < PyList_GET_SIZE(messages):
            topic, value, key, partition, headers, timestamp_ms = <object> PyList_GET_ITEM(messages, results.given)
            if timestamp_ms is None:
                timestamp_ms = results.now
            self.accept(topic, value, key, partition, headers, timestamp_ms, result_of(results))
            results.given += 1

    cdef int accept(self, topic, value, key, partition, headers, timestamp_ms, done) except -1:
        cdef RecordBuffer buffer
        cdef Record record
        cdef bytes field = None
        cdef timespec now
        if set_bytes(value, &record.value, &record.value_size) and set_bytes(key, &record.key, &record.key_size):
            # First everything that may run a caller's code (headers, numbers of other classes), then the batch.
            if headers:
                field = header_bytes(headers)
            set_headers(&record, field)
            if timestamp_ms is None:
                clock_gettime(CLOCK_REALTIME, &now)
                record.timestamp = <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1000000
            else:
                record.timestamp = timestamp_ms if type(timestamp_ms) is int else milliseconds(timestamp_ms)
            buffer = self.open_batch(topic, key, partition, &record)
            if buffer is not None:
                buffer.measure(&record)
                if buffer.used + record.size < buffer.limit and buffer.records + 1 < buffer.most:
                    buffer.put(&record, done)
                    self._allowance.used += record.size
                    return 0
        self._take(topic, value, key, partition, headers, timestamp_ms, done)
        return 0

    cdef RecordBuffer open_batch(self, topic, key, partition, Record *record):
        cdef TopicIntake intake = self.intake_of(topic)
        cdef RecordBuffer buffer
        cdef list partitions
        cdef Py_ssize_t count, index = -1
        if intake is None or self._allowance.shut or self._allowance.used >= self._allowance.limit:
            return None
        if self._thread != PyThread_get_thread_ident():
            return None
        if partition is None and key is None:
            buffer = intake.sticky
        else:
            partitions = intake.partitions
            count = PyList_GET_SIZE(partitions)
            if partition is None and record.key_size > 0 and count:
                if intake.murmur2:
                    index = (murmur2_of(record.key, record.key_size) & 0x7FFFFFFF) % count
                elif intake.index is not None:
                    partition = intake.index(key, count)
            if type(partition) is int and 0 <= partition < count:
                index = partition
            if index < 0 or index >= PyList_GET_SIZE(partitions):
                return None
            item = <object> PyList_GET_ITEM(partitions, index)
            buffer = None if item is None else <RecordBuffer?> item
        return buffer if buffer is not None and buffer.records else None

    cdef TopicIntake intake_of(self, topic):
        cdef PyObject *found
        if topic is self.last_topic:
            return self.last_intake
        found = PyDict_GetItemWithError(self._intakes, topic)
        if found == NULL:
            return None
        self.last_topic = topic
        self.last_intake = <TopicIntake?> <object> found
        return self.last_intake

    def _take(self, topic, value, key, partition, headers, timestamp_ms, done):
        """Accept or refuse a record: the long way of `send`. See `_intake_plain`."""
        raise NotImplementedError


def partition_column(column, Py_ssize_t count, int64_t partitions, int32_t keyless):
    """The partition of each key of a column. See `_intake_plain`."""
    cdef const byte_t *key
    cdef Py_ssize_t number, size
    cdef int32_t *chosen
    cdef Column keys
    if not 0 < partitions <= INT32_MAX:
        raise ValueError(f"{partitions} partitions: expected at least 1")
    keys = Column(column, count)
    result = PyByteArray_FromStringAndSize(NULL, count * <Py_ssize_t> sizeof(int32_t))
    chosen = <int32_t *> PyByteArray_AS_STRING(result)
    with nogil:
        for number in range(count):
            keys.point(number, &key, &size)
            chosen[number] = keyless if key == NULL else <int32_t> (
                <int64_t> (murmur2_of(key, size) & 0x7FFFFFFF) % partitions
            )
    return result
