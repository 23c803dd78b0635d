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


cdef int add_hash(bytearray hashes, uint32_t value, int64_t offset, int64_t timestamp) except -1:
    cdef int64_t entry[3]
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(hashes)
    entry[0] = index_code(value)
    entry[1] = offset
    entry[2] = timestamp
    PyByteArray_Resize(hashes, size + sizeof(entry))
    memcpy(PyByteArray_AS_STRING(hashes) + size, entry, sizeof(entry))
    return 0


cdef int add_hashes(
    bytearray hashes, uint32_t topic_hash, const char* unique_key, int unique_key_bytes, const char* keys,
    int keys_bytes, int64_t offset, int64_t timestamp,
) except -1:
    """Add the index entries of a record, packed as `store.index.HASHED_KEY`: of its unique key, and of its keys, which
    blanks separate.

    `topic_hash` is that of the topic and `#`.
    """
    cdef int start = 0, end
    if unique_key_bytes:
        add_hash(hashes, hash_on(topic_hash, unique_key, unique_key_bytes), offset, timestamp)
    while start < keys_bytes:
        end = start
        while end < keys_bytes and keys[end] != 32:
            end += 1
        if end > start:
            add_hash(hashes, hash_on(topic_hash, keys + start, end - start), offset, timestamp)
        start = end + 1
    return 0
