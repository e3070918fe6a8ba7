# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot loops of encoding in C: the twin of `_encode_plain`, whose docstrings are the contract of both.

Nothing here trusts a length: every read is checked against the end of its buffer, every write against the room
computed for it. Buffers may be shared with other processes, so a byte that is read again is checked again.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memset

from ingestd.records._fields cimport byte_t, murmur2_of, put_varint, varint_bytes, zigzag

__all__ = [
    "BUDGET_SPENT",
    "FINISHED",
    "SLOT_FULL",
    "allocate",
    "encode_lines",
    "line_ends",
    "murmur2",
    "partition_keys",
    "scatter_lines",
]

NAME = "compiled"

FINISHED = 0
SLOT_FULL = 1
BUDGET_SPENT = 2

cdef enum:
    DELIMITER = 10


# Lines to records

cdef inline Py_ssize_t line_end(const byte_t *raw, Py_ssize_t size, Py_ssize_t start) noexcept nogil:
    cdef const byte_t *found = <const byte_t *> memchr(raw + start, DELIMITER, size - start)
    return found - raw if found != NULL else size


cdef inline uint64_t body_bytes(int64_t offset_delta, Py_ssize_t key_field, Py_ssize_t value) noexcept nogil:
    """Bytes after the length field of a record with timestamp delta 0 and no headers."""
    return (
        3 + varint_bytes(zigzag(offset_delta)) + <uint64_t> key_field + varint_bytes(zigzag(value)) + <uint64_t> value
    )


cdef inline byte_t *put_before_key(byte_t *at, uint64_t body, int64_t offset_delta) noexcept nogil:
    at = put_varint(at, body << 1)
    at[0] = 0
    at[1] = 0
    return put_varint(at + 2, zigzag(offset_delta))


cdef inline byte_t *put_value(byte_t *at, const byte_t *value, Py_ssize_t size) noexcept nogil:
    at = put_varint(at, zigzag(size))
    memcpy(at, value, size)
    at[size] = 0
    return at + size + 1


cdef bytes key_field(key):
    """A key as in a record: its length, then its bytes."""
    cdef bytes data
    cdef bytes field
    cdef byte_t *at
    if key is None:
        return b"\x01"
    data = bytes(key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    field = PyBytes_FromStringAndSize(NULL, varint_bytes(zigzag(size)) + size)
    at = put_varint(<byte_t *> PyBytes_AS_STRING(field), zigzag(size))
    memcpy(at, PyBytes_AS_STRING(data), size)
    return field


cdef int encode(
    const byte_t *raw, Py_ssize_t size, Py_ssize_t *start, byte_t *out, Py_ssize_t room, Py_ssize_t limit,
    const byte_t *key, Py_ssize_t key_size, Py_ssize_t *written, int64_t *records,
) noexcept nogil:
    """The loop of `encode_lines`. Returns 0, or -1 for a line of 2 GiB."""
    cdef Py_ssize_t at = start[0]
    cdef Py_ssize_t end, record
    cdef uint64_t body
    cdef byte_t *target = out
    cdef Py_ssize_t first_room = room
    if limit < room:
        room = limit
    while at < size:
        end = line_end(raw, size, at)
        body = body_bytes(records[0], key_size, end - at)
        if body > INT32_MAX:
            return -1
        record = varint_bytes(body << 1) + <Py_ssize_t> body
        if record > (room if records[0] else first_room) - (target - out):
            break
        target = put_before_key(target, body, records[0])
        memcpy(target, key, key_size)
        target = put_value(target + key_size, raw + at, end - at)
        records[0] += 1
        at = end + 1
    start[0] = at if at < size else size
    written[0] = target - out
    return 0


def allocate(Py_ssize_t size):
    """A bytearray whose content is undefined."""
    return PyByteArray_FromStringAndSize(NULL, size)


def line_ends(raw):
    """The end of each line of `raw`, as int32. See `_encode_plain`."""
    cdef Py_buffer source
    cdef Py_ssize_t at = 0, lines = 0, end
    cdef int32_t *target
    PyObject_GetBuffer(raw, &source, PyBUF_SIMPLE)
    try:
        if source.len > INT32_MAX:
            raise ValueError(f"{source.len} bytes of lines")
        while at < source.len:
            at = line_end(<const byte_t *> source.buf, source.len, at) + 1
            lines += 1
        ends = PyByteArray_FromStringAndSize(NULL, lines * sizeof(int32_t))
        target = <int32_t *> PyByteArray_AS_STRING(ends)
        at = 0
        for index in range(lines):
            end = line_end(<const byte_t *> source.buf, source.len, at) if at < source.len else source.len
            target[index] = <int32_t> end
            at = end + 1
        return ends
    finally:
        PyBuffer_Release(&source)


def encode_lines(raw, Py_ssize_t start, out, Py_ssize_t limit, key):
    """Write lines as records for one partition. See `_encode_plain`."""
    cdef Py_buffer source, target
    cdef Py_ssize_t written = 0
    cdef int64_t records = 0
    cdef int failed
    cdef bytes field = key_field(key)
    cdef const byte_t *key_bytes = <const byte_t *> PyBytes_AS_STRING(field)
    cdef Py_ssize_t key_size = PyBytes_GET_SIZE(field)
    PyObject_GetBuffer(raw, &source, PyBUF_SIMPLE)
    try:
        check_start(start, source.len)
        PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
        try:
            with nogil:
                failed = encode(
                    <const byte_t *> source.buf, source.len, &start, <byte_t *> target.buf, target.len, limit,
                    key_bytes, key_size, &written, &records,
                )
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
    if failed:
        raise ValueError("a record of 2 GiB or more")
    return start, written, records


cdef int check_start(Py_ssize_t start, Py_ssize_t size) except -1:
    if not 0 <= start <= size:
        raise ValueError(f"start {start} in {size} bytes")
    return 0


# Lines to records of many partitions

cdef enum Stop:
    STOP_FINISHED = 0
    STOP_SLOT_FULL = 1
    STOP_BUDGET_SPENT = 2
    STOP_NO_PARTITION = 3
    STOP_NO_SLOT = 4
    STOP_BAD_SLOT = 5
    STOP_BAD_KEY = 6
    STOP_TOO_LONG = 7

cdef struct Scatter:
    const byte_t *raw
    Py_ssize_t size
    Py_ssize_t start
    Py_ssize_t line
    const int32_t *chosen
    const int32_t *keys
    Py_ssize_t lines
    byte_t *scratch
    Py_ssize_t slot_bytes
    Py_ssize_t slots
    int64_t *written
    int32_t *records
    int64_t budget
    int64_t overhead


cdef Stop scatter(Scatter *run) noexcept nogil:
    """The loop of `scatter_lines`."""
    cdef Py_ssize_t end, record, key_start, key_size, field
    cdef int64_t held, cost
    cdef int32_t slot, count
    cdef uint64_t body
    cdef byte_t *at
    while run.start < run.size:
        if run.line >= run.lines:
            return STOP_NO_PARTITION
        slot = run.chosen[run.line]
        if slot < 0 or slot >= run.slots:
            return STOP_NO_SLOT
        end = line_end(run.raw, run.size, run.start)
        key_start = -1
        key_size = 0
        field = 1
        if run.keys != NULL:
            key_start = run.keys[2 * run.line]
            if key_start >= 0:
                key_size = run.keys[2 * run.line + 1] - key_start
                if key_size < 0 or key_size > run.size - key_start:
                    return STOP_BAD_KEY
                field = varint_bytes(zigzag(key_size)) + key_size
        held = run.written[slot]
        count = run.records[slot]
        if held < 0 or held > run.slot_bytes or count < 0:
            return STOP_BAD_SLOT
        body = body_bytes(count, field, end - run.start)
        if body > INT32_MAX:
            return STOP_TOO_LONG
        record = varint_bytes(body << 1) + <Py_ssize_t> body
        if record > run.slot_bytes - held:
            return STOP_SLOT_FULL
        cost = record if count else record + run.overhead
        if cost > run.budget:
            return STOP_BUDGET_SPENT
        at = put_before_key(run.scratch + slot * run.slot_bytes + held, body, count)
        if key_start >= 0:
            at = put_varint(at, zigzag(key_size))
            memcpy(at, run.raw + key_start, key_size)
            at += key_size
        else:
            at[0] = 1
            at += 1
        put_value(at, run.raw + run.start, end - run.start)
        run.written[slot] = held + record
        run.records[slot] = count + 1
        run.budget -= cost
        run.line += 1
        run.start = end + 1 if end < run.size else run.size
    return STOP_FINISHED


def scatter_lines(
    raw, Py_ssize_t start, Py_ssize_t line, partitions, keys, scratch, Py_ssize_t slot_bytes, written, records,
    int64_t budget, int64_t overhead,
):
    """Write each line as a record into the slot of its partition. See `_encode_plain`."""
    cdef Py_buffer source, chosen, spans, target, sizes, counts
    cdef Scatter run
    cdef Stop stop
    memset(&spans, 0, sizeof(spans))
    PyObject_GetBuffer(raw, &source, PyBUF_SIMPLE)
    try:
        check_start(start, source.len)
        if line < 0:
            raise ValueError(f"line {line}")
        PyObject_GetBuffer(partitions, &chosen, PyBUF_SIMPLE)
        try:
            if keys is not None:
                PyObject_GetBuffer(keys, &spans, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(scratch, &target, PyBUF_WRITABLE)
                try:
                    PyObject_GetBuffer(written, &sizes, PyBUF_WRITABLE)
                    try:
                        PyObject_GetBuffer(records, &counts, PyBUF_WRITABLE)
                        try:
                            run.raw = <const byte_t *> source.buf
                            run.size = source.len
                            run.start = start
                            run.line = line
                            run.chosen = <const int32_t *> chosen.buf
                            run.keys = <const int32_t *> spans.buf
                            run.lines = chosen.len // <Py_ssize_t> sizeof(int32_t)
                            if keys is not None:
                                run.lines = min(run.lines, spans.len // <Py_ssize_t> (2 * sizeof(int32_t)))
                            run.scratch = <byte_t *> target.buf
                            run.slot_bytes = slot_bytes
                            run.slots = target.len // slot_bytes if slot_bytes > 0 else 0
                            run.slots = min(run.slots, sizes.len // <Py_ssize_t> sizeof(int64_t))
                            run.slots = min(run.slots, counts.len // <Py_ssize_t> sizeof(int32_t))
                            run.written = <int64_t *> sizes.buf
                            run.records = <int32_t *> counts.buf
                            run.budget = budget
                            run.overhead = overhead
                            with nogil:
                                stop = scatter(&run)
                        finally:
                            PyBuffer_Release(&counts)
                    finally:
                        PyBuffer_Release(&sizes)
                finally:
                    PyBuffer_Release(&target)
            finally:
                if keys is not None:
                    PyBuffer_Release(&spans)
        finally:
            PyBuffer_Release(&chosen)
    finally:
        PyBuffer_Release(&source)
    if stop > STOP_BUDGET_SPENT:
        raise ValueError(f"line {run.line}: " + SCATTER_FAULTS[<int> stop])
    return run.start, run.line, <int> stop


SCATTER_FAULTS = {
    <int> STOP_NO_PARTITION: "no partition or no key span is given for it",
    <int> STOP_NO_SLOT: "its partition has no slot",
    <int> STOP_BAD_SLOT: "its slot holds more than it can",
    <int> STOP_BAD_KEY: "its key is not within the lines",
    <int> STOP_TOO_LONG: "a record of 2 GiB or more",
}


# Keys to partitions

def murmur2(key):
    """Kafka's 32-bit murmur2 of a key. See `_encode_plain`."""
    cdef Py_buffer view
    cdef uint32_t value
    if type(key) is bytes:
        return murmur2_of(<const byte_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    value = murmur2_of(<const byte_t *> view.buf, view.len)
    PyBuffer_Release(&view)
    return value


def partition_keys(raw, keys, int64_t partitions, int32_t keyless):
    """The partition of each key. See `_encode_plain`."""
    cdef Py_buffer source, spans
    cdef const int32_t *span
    cdef int32_t *chosen
    cdef Py_ssize_t number, count, fault = -1
    if not 0 < partitions <= INT32_MAX:
        raise ValueError(f"{partitions} partitions: expected at least 1")
    PyObject_GetBuffer(raw, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(keys, &spans, PyBUF_SIMPLE)
        try:
            count = spans.len // <Py_ssize_t> (2 * sizeof(int32_t))
            result = PyByteArray_FromStringAndSize(NULL, count * sizeof(int32_t))
            chosen = <int32_t *> PyByteArray_AS_STRING(result)
            span = <const int32_t *> spans.buf
            with nogil:
                for number in range(count):
                    if span[0] < 0:
                        chosen[number] = keyless
                    elif span[1] < span[0] or span[1] > source.len:
                        fault = number
                        break
                    else:
                        chosen[number] = <int32_t> (
                            <int64_t> (
                                murmur2_of(<const byte_t *> source.buf + span[0], span[1] - span[0]) & 0x7FFFFFFF
                            ) % partitions
                        )
                    span += 2
        finally:
            PyBuffer_Release(&spans)
    finally:
        PyBuffer_Release(&source)
    if fault >= 0:
        raise ValueError(f"line {fault}: its key is not within the lines")
    return result
