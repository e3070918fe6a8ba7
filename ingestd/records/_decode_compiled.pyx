# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot loops of decoding in C: the twin of `_decode_plain`, whose docstrings are the contract of both.

Nothing here trusts a length: every read is checked against the end of its buffer, every write against the room
computed for it. Buffers may be shared with other processes, so a byte that is read again is checked again.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from ingestd.errors import CorruptBatch

__all__ = ["parse_records"]

NAME = "compiled"

ctypedef unsigned char byte_t

cdef extern from *:
    """
    #define INGESTD_ADD_OVERFLOWS(a, b, sum) __builtin_add_overflow(a, b, sum)
    """
    bint ADD_OVERFLOWS "INGESTD_ADD_OVERFLOWS"(int64_t, int64_t, int64_t *) noexcept nogil

cdef enum:
    SMALLEST_RECORD = 7


# Records to columns

cdef struct Reader:
    const byte_t *at
    const byte_t *end

cdef enum Fault:
    SOUND = 0
    FAULT_TORN = 1
    FAULT_VARINT = 2
    FAULT_RECORD_LENGTH = 3
    FAULT_OFFSET = 4
    FAULT_TIMESTAMP = 5
    FAULT_FIELD_LENGTH = 6
    FAULT_HEADER_COUNT = 7
    FAULT_HEADER_KEY = 8
    FAULT_RECORD_REST = 9
    FAULT_REST = 10
    FAULT_CHANGED = 11

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


cdef inline Fault read_varint(Reader *reader, int64_t *value) noexcept nogil:
    """A zigzag varint of 32 bits."""
    cdef uint64_t result
    cdef uint64_t byte
    cdef int shift = 7
    if reader.at >= reader.end:
        return FAULT_TORN
    result = reader.at[0]
    reader.at += 1
    if result > 0x7F:
        result &= 0x7F
        while True:
            if reader.at >= reader.end:
                return FAULT_TORN
            byte = reader.at[0]
            reader.at += 1
            result |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
            shift += 7
            if shift > 28:
                return FAULT_VARINT
        if result >> 32:
            return FAULT_VARINT
    value[0] = <int64_t> (result >> 1) ^ -<int64_t> (result & 1)
    return SOUND


cdef inline Fault read_varlong(Reader *reader, int64_t *value) noexcept nogil:
    """A zigzag varint of 64 bits."""
    cdef uint64_t result = 0
    cdef uint64_t byte
    cdef int shift = 0
    while True:
        if reader.at >= reader.end:
            return FAULT_TORN
        byte = reader.at[0]
        reader.at += 1
        if shift == 63 and byte > 1:
            return FAULT_VARINT
        result |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            break
        shift += 7
    value[0] = <int64_t> (result >> 1) ^ -<int64_t> (result & 1)
    return SOUND


cdef inline Fault read_field(Reader *reader, const byte_t **data, int64_t *size) noexcept nogil:
    """A nullable run of bytes; `size` is -1 for null."""
    cdef Fault fault = read_varint(reader, size)
    if fault != SOUND:
        return fault
    if size[0] < 0:
        return SOUND if size[0] == -1 else FAULT_FIELD_LENGTH
    if size[0] > reader.end - reader.at:
        return FAULT_FIELD_LENGTH
    data[0] = reader.at
    reader.at += size[0]
    return SOUND


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
    """Everything but the headers' content, whose sizes it adds up."""
    cdef const byte_t *end = run.reader.end
    cdef const byte_t *data = NULL
    cdef Reader *reader = &run.reader
    cdef int64_t length, number, headers
    cdef Fault fault
    run.header_ends[0] = 0
    while run.done < run.count:
        reader.end = end
        fault = read_varint(reader, &length)
        if fault != SOUND:
            return fault
        if length < 0 or length > end - reader.at:
            return FAULT_RECORD_LENGTH
        reader.end = reader.at + length
        if length == 0:
            return FAULT_TORN
        reader.at += 1
        fault = read_varlong(reader, &number)
        if fault != SOUND:
            return fault
        if run.stamped:
            run.timestamps[run.done] = run.append_timestamp
        elif ADD_OVERFLOWS(run.base_timestamp, number, &run.timestamps[run.done]):
            return FAULT_TIMESTAMP
        fault = read_varint(reader, &number)
        if fault != SOUND:
            return fault
        if number < 0 or number > run.last_offset_delta:
            return FAULT_OFFSET
        run.offsets[run.done] = run.base_offset + number
        fault = read_field(reader, &data, &length)
        if fault != SOUND:
            return fault
        if not add(&run.keys, run.done, data, length):
            return FAULT_FIELD_LENGTH
        fault = read_field(reader, &data, &length)
        if fault != SOUND:
            return fault
        if not add(&run.values, run.done, data, length):
            return FAULT_FIELD_LENGTH
        fault = read_varint(reader, &headers)
        if fault != SOUND:
            return fault
        if headers < 0 or headers > (reader.end - reader.at) // 2:
            return FAULT_HEADER_COUNT
        run.headers += headers
        while headers > 0:
            fault = read_field(reader, &data, &length)
            if fault != SOUND:
                return fault
            if length < 0:
                return FAULT_HEADER_KEY
            run.header_key_bytes += length
            fault = read_field(reader, &data, &length)
            if fault != SOUND:
                return fault
            if length > 0:
                run.header_value_bytes += length
            headers -= 1
        if reader.at != reader.end:
            return FAULT_RECORD_REST
        run.header_ends[run.done + 1] = <int32_t> run.headers
        run.done += 1
    if reader.at != end:
        return FAULT_REST
    return SOUND


cdef Fault parse_headers(Reader *reader, int64_t count, int64_t room, Binary *keys, Binary *values) noexcept nogil:
    """The headers' content, of records that `parse` found sound. Checks again: the bytes may be shared."""
    cdef const byte_t *end = reader.end
    cdef const byte_t *data = NULL
    cdef int64_t length, headers, done = 0
    while count > 0:
        reader.end = end
        if read_varint(reader, &length) != SOUND or length <= 0 or length > end - reader.at:
            return FAULT_CHANGED
        reader.end = reader.at + length
        reader.at += 1
        if (
            read_varlong(reader, &length) != SOUND
            or read_varint(reader, &length) != SOUND
            or read_field(reader, &data, &length) != SOUND
            or read_field(reader, &data, &length) != SOUND
            or read_varint(reader, &headers) != SOUND
        ):
            return FAULT_CHANGED
        if headers < 0 or headers > room - done:
            return FAULT_CHANGED
        while headers > 0:
            if read_field(reader, &data, &length) != SOUND or length < 0 or not add(keys, done, data, length):
                return FAULT_CHANGED
            if read_field(reader, &data, &length) != SOUND or not add(values, done, data, length):
                return FAULT_CHANGED
            done += 1
            headers -= 1
        count -= 1
    return SOUND if done == room else FAULT_CHANGED


cdef class Column:
    """The buffers of a binary column while it is filled."""

    cdef object offsets
    cdef object data
    cdef object validity
    cdef Binary binary

    def __cinit__(self, int64_t count, int64_t room):
        cdef int64_t bits = (count + 7) >> 3
        self.offsets = PyByteArray_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
        self.data = PyByteArray_FromStringAndSize(NULL, room)
        self.validity = PyByteArray_FromStringAndSize(NULL, bits)
        self.binary.offsets = <int32_t *> PyByteArray_AS_STRING(self.offsets)
        self.binary.data = <byte_t *> PyByteArray_AS_STRING(self.data)
        self.binary.validity = <byte_t *> PyByteArray_AS_STRING(self.validity)
        self.binary.room = room
        self.binary.used = 0
        self.binary.nulls = 0
        self.binary.offsets[0] = 0
        if bits:
            memset(self.binary.validity, 0xFF, bits)
            if count & 7:
                self.binary.validity[bits - 1] = <byte_t> ((1 << (count & 7)) - 1)

    cdef tuple buffers(self):
        PyByteArray_Resize(self.data, self.binary.used)
        return self.offsets, self.data, self.validity, self.binary.nulls


def parse_records(
    records, int64_t count, int64_t last_offset_delta, int64_t base_offset, int64_t base_timestamp, append_timestamp
):
    """Parse the records of a batch into the buffers of Arrow columns. See `_decode_plain`."""
    cdef Py_buffer source
    cdef Parse run
    cdef Reader again
    cdef Fault fault
    cdef int64_t last_offset
    cdef Column keys, values, header_keys, header_values
    PyObject_GetBuffer(records, &source, PyBUF_SIMPLE)
    try:
        if count < 0 or count > source.len // SMALLEST_RECORD:
            raise CorruptBatch(f"{count} records in {source.len} bytes")
        if source.len > INT32_MAX:
            raise CorruptBatch(f"{source.len} bytes of records are more than a column holds")
        if base_offset < 0 or ADD_OVERFLOWS(base_offset, last_offset_delta, &last_offset):
            raise CorruptBatch(f"base offset {base_offset} with last offset delta {last_offset_delta}")
        offsets = PyByteArray_FromStringAndSize(NULL, count * sizeof(int64_t))
        timestamps = PyByteArray_FromStringAndSize(NULL, count * sizeof(int64_t))
        header_ends = PyByteArray_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
        keys = Column(count, source.len)
        values = Column(count, source.len)
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
