# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""How records are read, for every compiled module that does. Every read is checked against the end of its buffer."""

from libc.stdint cimport int64_t, uint64_t

ctypedef unsigned char byte_t

cdef extern from *:
    """
    #define INGESTD_ADD_OVERFLOWS(a, b, sum) __builtin_add_overflow(a, b, sum)
    """
    bint ADD_OVERFLOWS "INGESTD_ADD_OVERFLOWS"(int64_t, int64_t, int64_t *) noexcept nogil


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


cdef struct Fields:
    int64_t timestamp_delta
    int64_t offset_delta
    const byte_t *rest
    const byte_t *key
    int64_t key_size
    const byte_t *value
    int64_t value_size
    int64_t headers


cdef inline Fault read_fields(Reader *reader, const byte_t *end, Fields *fields) noexcept nogil:
    """A record up to its headers; the reader's end is then the record's. `end` is the end of all records.

    `rest`: what follows the offset delta.
    """
    cdef int64_t length
    cdef Fault fault
    fields.key = fields.value = NULL
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
    fault = read_varlong(reader, &fields.timestamp_delta)
    if fault != SOUND:
        return fault
    fault = read_varint(reader, &fields.offset_delta)
    if fault != SOUND:
        return fault
    fields.rest = reader.at
    fault = read_field(reader, &fields.key, &fields.key_size)
    if fault != SOUND:
        return fault
    fault = read_field(reader, &fields.value, &fields.value_size)
    if fault != SOUND:
        return fault
    fault = read_varint(reader, &fields.headers)
    if fault != SOUND:
        return fault
    if fields.headers < 0 or fields.headers > (reader.end - reader.at) // 2:
        return FAULT_HEADER_COUNT
    return SOUND


cdef inline Fault skip_headers(Reader *reader, int64_t count, int64_t *key_bytes, int64_t *value_bytes) noexcept nogil:
    """Check a record's headers up to its end, and add up what they hold."""
    cdef const byte_t *data = NULL
    cdef int64_t length
    cdef Fault fault
    while count > 0:
        fault = read_field(reader, &data, &length)
        if fault != SOUND:
            return fault
        if length < 0:
            return FAULT_HEADER_KEY
        key_bytes[0] += length
        fault = read_field(reader, &data, &length)
        if fault != SOUND:
            return fault
        if length > 0:
            value_bytes[0] += length
        count -= 1
    return SOUND if reader.at == reader.end else FAULT_RECORD_REST
