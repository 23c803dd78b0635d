# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The records of pull answers, compiled: scanned once, and copied once, to buffers in Arrow's layout.

Offsets of texts and bodies are Arrow's, 32 bits each; null bits are set where a value is there. The layout of records is
that of `triomq_protocol.record.layout`; `LAYOUT` repeats it for the test that compares them.
"""

VERSION = 2625687943

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    static inline uint64_t swapped64(uint64_t v) { return __builtin_bswap64(v); }
    static inline uint32_t swapped32(uint32_t v) { return __builtin_bswap32(v); }
    """
    uint64_t swapped64(uint64_t) nogil
    uint32_t swapped32(uint32_t) nogil

cdef enum:
    SIZE_AT = 0
    MAGIC_AT = 4
    QUEUE_ID_AT = 12
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_TIMESTAMP_AT = 40
    STORE_TIMESTAMP_AT = 56
    RECONSUME_TIMES_AT = 72
    BODY_LENGTH_AT = 84
    BODY_AT = 88
    FIXED_BYTES = 91
    COMPRESSED = 0x1
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    IPV6_EXTRA_BYTES = 12
    ENTRIES_MOST = 64       # of one record: each name is compared with those before it
    NAME_END = 1
    VALUE_END = 2

cdef int32_t _MAGIC = -626843481

LAYOUT = {
    "MESSAGE_MAGIC": _MAGIC,
    "size": SIZE_AT,
    "magic": MAGIC_AT,
    "queue_id": QUEUE_ID_AT,
    "queue_offset": QUEUE_OFFSET_AT,
    "physical_offset": PHYSICAL_OFFSET_AT,
    "sys_flag": SYS_FLAG_AT,
    "born_timestamp": BORN_TIMESTAMP_AT,
    "store_timestamp": STORE_TIMESTAMP_AT,
    "reconsume_times": RECONSUME_TIMES_AT,
    "body_length": BODY_LENGTH_AT,
    "BODY_AT": BODY_AT,
    "FIXED_BYTES": FIXED_BYTES,
    "COMPRESSED": COMPRESSED,
    "BORN_HOST_V6": BORN_HOST_V6,
    "STORE_HOST_V6": STORE_HOST_V6,
    "IPV6_EXTRA_BYTES": IPV6_EXTRA_BYTES,
}

cdef struct Record:
    const uint8_t* at
    const uint8_t* middle       # its store timestamp
    const uint8_t* body
    const uint8_t* properties
    int32_t body_bytes
    int32_t properties_bytes

cdef struct Entry:
    const uint8_t* name
    const uint8_t* value
    int32_t name_bytes
    int32_t value_bytes


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return swapped32(value)


cdef inline uint64_t get64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return swapped64(value)


cdef int32_t read(const uint8_t* at, Py_ssize_t size, Record* found) noexcept nogil:
    """Find the parts of the record that begins there; returns its size, or 0 where no whole record is."""
    cdef int64_t record_bytes, body_at, properties_at
    cdef int32_t body_bytes
    cdef uint32_t flags
    if size < FIXED_BYTES:
        return 0
    record_bytes = <int32_t>get32(at + SIZE_AT)
    if record_bytes < FIXED_BYTES or record_bytes > size or <int32_t>get32(at + MAGIC_AT) != _MAGIC:
        return 0
    flags = get32(at + SYS_FLAG_AT)
    body_at = BODY_AT
    if flags & BORN_HOST_V6:
        body_at += IPV6_EXTRA_BYTES
    if flags & STORE_HOST_V6:
        body_at += IPV6_EXTRA_BYTES
    if body_at >= record_bytes:
        return 0
    body_bytes = <int32_t>get32(at + body_at - (BODY_AT - BODY_LENGTH_AT))
    # Behind the body: a byte with the topic's length, the topic, two bytes with that of the properties.
    if body_bytes < 0 or body_at + body_bytes + 1 > record_bytes:
        return 0
    properties_at = body_at + body_bytes + 1 + at[body_at + body_bytes] + 2
    if properties_at > record_bytes:
        return 0
    if properties_at + <int16_t>(at[properties_at - 2] << 8 | at[properties_at - 1]) != record_bytes:
        return 0
    found.at = at
    found.middle = at + STORE_TIMESTAMP_AT + (IPV6_EXTRA_BYTES if flags & BORN_HOST_V6 else 0)
    found.body = at + body_at
    found.body_bytes = body_bytes
    found.properties = at + properties_at
    found.properties_bytes = <int32_t>(record_bytes - properties_at)
    return <int32_t>record_bytes


def whole_records(bytes page):
    """How many records a pull answer begins with, and where the last of them ends."""
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(page)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(page), at = 0, count = 0
    cdef int32_t record_bytes
    cdef Record record
    with nogil:
        while at < size:
            record_bytes = read(data + at, size - at, &record)
            if record_bytes == 0:
                break
            at += record_bytes
            count += 1
    return count, at


cdef class Records:
    """The records of some pull answers.

    Args:
        pages: the answers' bodies, each of whole records.
        start: first queue offset wanted.
        end: queue offset after the last one wanted.

    Attributes:
        count: how many are wanted.
        compressed: how many bodies of them are.

    Raises ValueError where the bytes are not records.
    """

    cdef list _pages
    cdef Record* _records
    cdef Py_ssize_t _reserved
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t compressed

    def __init__(self, list pages, int64_t start, int64_t end):
        cdef bytes page
        cdef const uint8_t* data
        cdef Py_ssize_t at, size
        self._pages = pages
        for page in pages:
            data = <const uint8_t*>PyBytes_AS_STRING(page)
            size = PyBytes_GET_SIZE(page)
            with nogil:
                at = self._scan(data, size, start, end)
            if at == -2:
                raise MemoryError
            if at >= 0:
                raise ValueError(f"the bytes at {at} of {len(page)} are not a record")

    def __dealloc__(self):
        free(self._records)

    cdef Py_ssize_t _scan(self, const uint8_t* page, Py_ssize_t size, int64_t start, int64_t end) noexcept nogil:
        """Scan a page; returns -1, or where no record is, or -2 where there is no memory."""
        cdef Py_ssize_t at = 0
        cdef int64_t offset
        cdef int32_t record_bytes
        cdef Record record
        cdef void* grown
        while at < size:
            record_bytes = read(page + at, size - at, &record)
            if record_bytes == 0:
                return at
            offset = <int64_t>get64(record.at + QUEUE_OFFSET_AT)
            if start <= offset < end:
                if self.count == self._reserved:
                    self._reserved = 2 * self._reserved + 256
                    grown = realloc(self._records, self._reserved * sizeof(Record))
                    if grown == NULL:
                        return -2
                    self._records = <Record*>grown
                self._records[self.count] = record
                self.count += 1
                if get32(record.at + SYS_FLAG_AT) & COMPRESSED:
                    self.compressed += 1
            at += record_bytes
        return -1

    @property
    def queue_ids(self):
        """One int32 for each record."""
        return self._head32(QUEUE_ID_AT)

    @property
    def queue_offsets(self):
        """One int64 for each record."""
        return self._head64(QUEUE_OFFSET_AT)

    @property
    def physical_offsets(self):
        """One int64 for each record."""
        return self._head64(PHYSICAL_OFFSET_AT)

    @property
    def born_ms(self):
        """One int64 for each record: milliseconds since 1970."""
        return self._head64(BORN_TIMESTAMP_AT)

    @property
    def stored_ms(self):
        """One int64 for each record: milliseconds since 1970."""
        cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * self.count)
        cdef uint64_t* out = <uint64_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t row
        for row in range(self.count):
            out[row] = get64(self._records[row].middle)
        return made

    @property
    def reconsume_times(self):
        """One int32 for each record."""
        cdef bytes made = PyBytes_FromStringAndSize(NULL, 4 * self.count)
        cdef uint32_t* out = <uint32_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t row
        for row in range(self.count):
            out[row] = get32(self._records[row].body - (BODY_AT - RECONSUME_TIMES_AT))
        return made

    cdef bytes _head32(self, Py_ssize_t at):
        cdef bytes made = PyBytes_FromStringAndSize(NULL, 4 * self.count)
        cdef uint32_t* out = <uint32_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t row
        for row in range(self.count):
            out[row] = get32(self._records[row].at + at)
        return made

    cdef bytes _head64(self, Py_ssize_t at):
        cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * self.count)
        cdef uint64_t* out = <uint64_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t row
        for row in range(self.count):
            out[row] = get64(self._records[row].at + at)
        return made

    def bodies(self):
        """Offsets and bytes of all bodies, as they are stored.

        Raises OverflowError where they are longer than Arrow's offsets reach.
        """
        cdef int64_t total = 0
        cdef Py_ssize_t row
        for row in range(self.count):
            total += self._records[row].body_bytes
        if total > INT32_MAX:
            raise OverflowError(f"{total} bytes of bodies in one batch")
        cdef bytes offsets = PyBytes_FromStringAndSize(NULL, 4 * (self.count + 1))
        cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
        cdef int32_t* ends = <int32_t*>PyBytes_AS_STRING(offsets)
        cdef char* out = PyBytes_AS_STRING(data)
        cdef int32_t at = 0
        cdef Record* record
        with nogil:
            ends[0] = 0
            for row in range(self.count):
                record = self._records + row
                memcpy(out + at, record.body, record.body_bytes)
                at += record.body_bytes
                ends[row + 1] = at
        return offsets, data

    def properties(self):
        """The properties of all records; None where those of one are not UTF-8, or too many."""
        cdef Properties made = Properties.__new__(Properties)
        made._records = self
        cdef Py_ssize_t row
        cdef int fits
        cdef Record* record
        with nogil:
            fits = made._cut(self._records, self.count)
        if fits == -1:
            raise MemoryError
        if not fits:
            return None
        if made._beyond_ascii:
            for row in range(self.count):
                record = self._records + row
                try:
                    PyUnicode_DecodeUTF8(<const char*>record.properties, record.properties_bytes, "strict")
                except UnicodeDecodeError:
                    return None
        return made


cdef class Properties:
    """Names and values of the properties of some records, as `triomq_protocol.properties.decode_properties` has them."""

    cdef Records _records
    cdef Entry* _entries
    cdef Py_ssize_t _reserved
    cdef int32_t* _first        # of each record; behind the last one: how many there are
    cdef bint _beyond_ascii
    cdef int64_t _name_bytes
    cdef int64_t _value_bytes

    def __dealloc__(self):
        free(self._entries)
        free(self._first)

    cdef int _cut(self, Record* records, Py_ssize_t count) noexcept nogil:
        """Cut all property strings; returns 1, or 0 where one is not for this module, or -1 where there is no memory."""
        cdef Py_ssize_t row, found = 0, first, other
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* name
        cdef const uint8_t* name_end
        cdef uint8_t bits = 0, byte
        cdef int32_t name_bytes, value_bytes
        cdef Entry* entry
        cdef void* grown
        self._first = <int32_t*>malloc(4 * (count + 1))
        if self._first == NULL:
            return -1
        for row in range(count):
            self._first[row] = <int32_t>found
            first = found
            if self._reserved - found < ENTRIES_MOST:
                self._reserved = 2 * self._reserved + 16 * ENTRIES_MOST
                grown = realloc(self._entries, self._reserved * sizeof(Entry))
                if grown == NULL:
                    return -1
                self._entries = <Entry*>grown
            at = records[row].properties
            end = at + records[row].properties_bytes
            name = at
            name_end = NULL
            while True:
                byte = VALUE_END if at == end else at[0]
                bits |= byte
                if byte > VALUE_END:
                    at += 1
                    continue
                if byte == NAME_END:
                    if name_end == NULL:
                        name_end = at
                elif byte == VALUE_END:
                    if name_end != NULL and name_end > name and at > name_end + 1:
                        name_bytes = <int32_t>(name_end - name)
                        value_bytes = <int32_t>(at - name_end - 1)
                        for other in range(first, found):
                            entry = self._entries + other
                            if entry.name_bytes == name_bytes and memcmp(entry.name, name, name_bytes) == 0:
                                # The last value counts, in the first one's place.
                                self._value_bytes += value_bytes - entry.value_bytes
                                entry.value = name_end + 1
                                entry.value_bytes = value_bytes
                                break
                        else:
                            if found - first == ENTRIES_MOST:
                                return 0
                            entry = self._entries + found
                            entry.name = name
                            entry.name_bytes = name_bytes
                            entry.value = name_end + 1
                            entry.value_bytes = value_bytes
                            self._name_bytes += name_bytes
                            self._value_bytes += value_bytes
                            found += 1
                    if at == end:
                        break
                    name = at + 1
                    name_end = NULL
                at += 1
        self._first[count] = <int32_t>found
        self._beyond_ascii = bits >= 0x80
        return 0 if self._name_bytes > INT32_MAX or self._value_bytes > INT32_MAX else 1

    def column(self, bytes name):
        """One property: how many records lack it, the null bits, offsets and bytes."""
        cdef const char* wanted = PyBytes_AS_STRING(name)
        cdef int32_t wanted_bytes = <int32_t>PyBytes_GET_SIZE(name)
        cdef Py_ssize_t count = self._records.count, row, nulls = 0
        cdef bytes bits = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
        cdef bytes offsets = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
        cdef uint8_t* present = <uint8_t*>PyBytes_AS_STRING(bits)
        cdef int32_t* ends = <int32_t*>PyBytes_AS_STRING(offsets)
        cdef int32_t total = 0
        cdef Entry* entry
        # No sum here is larger than that of all values, which fits.
        with nogil:
            memset(present, 0, (count + 7) // 8)
            ends[0] = 0
            for row in range(count):
                entry = self._find(row, wanted, wanted_bytes)
                if entry == NULL:
                    nulls += 1
                else:
                    present[row >> 3] |= 1 << (row & 7)
                    total += entry.value_bytes
                ends[row + 1] = total
        cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
        cdef char* out = PyBytes_AS_STRING(data)
        with nogil:
            for row in range(count):
                if ends[row + 1] != ends[row]:
                    entry = self._find(row, wanted, wanted_bytes)
                    memcpy(out + ends[row], entry.value, entry.value_bytes)
        return nulls, bits, offsets, data

    cdef Entry* _find(self, Py_ssize_t row, const char* name, int32_t name_bytes) noexcept nogil:
        cdef Entry* entry = self._entries + self._first[row]
        cdef Entry* end = self._entries + self._first[row + 1]
        while entry < end:
            if entry.name_bytes == name_bytes and memcmp(entry.name, name, name_bytes) == 0:
                return entry
            entry += 1
        return NULL

    def map_column(self):
        """All of them: where each record's begin, how many there are, offsets and bytes of names and of values."""
        cdef Py_ssize_t count = self._records.count, each
        cdef Py_ssize_t entries = self._first[count]
        cdef bytes first = PyBytes_FromStringAndSize(<char*>self._first, 4 * (count + 1))
        cdef bytes name_offsets = PyBytes_FromStringAndSize(NULL, 4 * (entries + 1))
        cdef bytes names = PyBytes_FromStringAndSize(NULL, self._name_bytes)
        cdef bytes value_offsets = PyBytes_FromStringAndSize(NULL, 4 * (entries + 1))
        cdef bytes values = PyBytes_FromStringAndSize(NULL, self._value_bytes)
        cdef int32_t* name_ends = <int32_t*>PyBytes_AS_STRING(name_offsets)
        cdef int32_t* value_ends = <int32_t*>PyBytes_AS_STRING(value_offsets)
        cdef char* name_out = PyBytes_AS_STRING(names)
        cdef char* value_out = PyBytes_AS_STRING(values)
        cdef int32_t name_at = 0, value_at = 0
        cdef Entry* entry
        with nogil:
            name_ends[0] = value_ends[0] = 0
            for each in range(entries):
                entry = self._entries + each
                memcpy(name_out + name_at, entry.name, entry.name_bytes)
                name_at += entry.name_bytes
                name_ends[each + 1] = name_at
                memcpy(value_out + value_at, entry.value, entry.value_bytes)
                value_at += entry.value_bytes
                value_ends[each + 1] = value_at
        return first, entries, name_offsets, names, value_offsets, values
