# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What records are made of, for every compiled module that writes them: varints, and the hash that Java gives a key."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

ctypedef unsigned char byte_t


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline Py_ssize_t varint_bytes(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


cdef inline byte_t *put_varint(byte_t *at, uint64_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <byte_t> (value & 0x7F | 0x80)
        value >>= 7
        at += 1
    at[0] = <byte_t> value
    return at + 1


cdef inline uint32_t murmur2_of(const byte_t *key, Py_ssize_t size) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t value = 0x9747B28CU ^ <uint32_t> size
    cdef uint32_t word
    cdef int shift = 0
    while size >= 4:
        word = (
            <uint32_t> key[0] | <uint32_t> key[1] << 8 | <uint32_t> key[2] << 16 | <uint32_t> key[3] << 24
        ) * multiplier
        word = (word ^ word >> 24) * multiplier
        value = value * multiplier ^ word
        key += 4
        size -= 4
    if size > 0:
        word = 0
        while size > 0:
            word |= <uint32_t> key[0] << shift
            shift += 8
            key += 1
            size -= 1
        value = (value ^ word) * multiplier
    value = (value ^ value >> 13) * multiplier
    return value ^ value >> 15
