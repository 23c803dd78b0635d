# Big-endian numbers of 4 and 8 bytes, at any address.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    static inline uint64_t swapped64(uint64_t v) { return __builtin_bswap64(v); }
    static inline uint32_t swapped32(uint32_t v) { return __builtin_bswap32(v); }
    """
    uint64_t swapped64(uint64_t) nogil
    uint32_t swapped32(uint32_t) nogil


cdef inline void put32(uint8_t* at, uint32_t value) noexcept nogil:
    value = swapped32(value)
    memcpy(at, &value, 4)


cdef inline void put64(uint8_t* at, uint64_t value) noexcept nogil:
    value = swapped64(value)
    memcpy(at, &value, 8)


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return swapped32(value)


cdef inline int64_t get64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return <int64_t>swapped64(value)
