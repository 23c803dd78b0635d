# Property strings: names in them, and the hashes of ASCII values, of which tags codes and index entries are made.


cdef inline bint begins(const char* at, int size, const char* name, int name_size) noexcept nogil:
    return size >= name_size and memcmp(at, name, name_size) == 0


cdef inline uint32_t hash_on(uint32_t value, const char* at, int size) noexcept nogil:
    cdef int n
    for n in range(size):
        value = value * 31 + <uint8_t>at[n]
    return value


cdef inline int64_t index_code(uint32_t value) noexcept nogil:
    """`Math.abs` of an int32, and 0 where that stays negative."""
    if value <= 0x7FFFFFFF:
        return value
    value = <uint32_t>0 - value
    return 0 if value > 0x7FFFFFFF else value
