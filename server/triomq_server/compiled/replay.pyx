# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A slave's dispatch of runs of ordinary records: what `store.dispatch.replay.Replay` does, and the hashes of their keys.

It leaves more to Python than that does: text that is not ASCII, and a property that comes twice or is empty.
"""

VERSION = 2481523216

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

include "big_endian.pxi"
include "record_layout.pxi"
include "log_records.pxi"
include "properties.pxi"

cdef enum:
    NOT_ORDINARY = TRANSACTION | BORN_HOST_V6 | STORE_HOST_V6


cdef struct Value:
    const char* at
    int size

cdef struct Indexed:
    Value tags
    Value keys
    Value unique_key

cdef struct Touched:
    QueueName name
    uint32_t topic_hash
    bint watched
    Py_buffer view
    int64_t position
    int64_t limit
    int64_t next_offset
    int64_t physical_end


cdef inline bint take(Value* value, const char* segment, int size, const char* name, int name_size) noexcept nogil:
    """Take a property's value if the segment is that property; false if it came before, or is empty."""
    if not begins(segment, size, name, name_size):
        return True
    if value.size or size == name_size:
        return False
    value.at = segment + name_size
    value.size = size - name_size
    return True


cdef bint read_indexed(const char* at, int size, Indexed* p) noexcept nogil:
    """Find what entries are made of in a property string; false if it is not ordinary."""
    cdef int start = 0, end
    memset(p, 0, sizeof(Indexed))
    while start < size:
        end = start
        while end < size and at[end] != 2:
            if <uint8_t>at[end] >= 0x80:
                return False
            end += 1
        if not (
            take(&p.tags, at + start, end - start, b"TAGS\x01", 5)
            and take(&p.keys, at + start, end - start, b"KEYS\x01", 5)
            and take(&p.unique_key, at + start, end - start, b"UNIQ_KEY\x01", 9)
        ):
            return False
        start = end + 1
    return True


cdef class Queues:
    """The queues of a run.

    Args:
        table: the queues by topic and queue id.
        excluded: the topic whose records are not ordinary.
        watched: the queues whose arrivals are wanted, None for all; or False for none.
    """

    cdef dict _table
    cdef str _excluded
    cdef object _watched
    cdef list objects
    cdef list names
    cdef Touched touched[QUEUES]

    def __init__(self, dict table not None, str excluded, watched):
        self._table = table
        self._excluded = excluded
        self._watched = watched
        self.objects = [None] * QUEUES
        self.names = [None] * QUEUES
        memset(self.touched, 0, sizeof(self.touched))

    cdef int find(self, const Record* record) except -2:
        """The place of a record's queue; -1 if its records are not ordinary."""
        cdef int n = place_of(record), i
        cdef Touched* queue = &self.touched[n]
        if is_queue_of(&queue.name, record):
            return n
        self.release(n)
        for i in range(record.topic_bytes):
            if record.topic[i] >= 0x80:
                return -1
        name = (<const char*>record.topic)[:record.topic_bytes].decode("ascii")
        found = None if name == self._excluded else self._table.get((name, record.queue_id))
        if found is None:
            return -1
        queue.watched = self._watched is None or (self._watched is not False and (name, record.queue_id) in self._watched)
        queue.position = found.position
        queue.next_offset = found.max_offset
        queue.physical_end = found.max_physical_offset
        queue.limit = found.limit
        queue.topic_hash = hash_on(hash_on(0, <const char*>record.topic, record.topic_bytes), b"#", 1)
        PyObject_GetBuffer(found.buffer, &queue.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        queue.limit = min(queue.limit, <int64_t>queue.view.len)
        name_queue_of(&queue.name, record)
        self.objects[n] = found
        self.names[n] = name
        return n

    cdef int release(self, int n) except -1:
        """Give a queue its end, and forget it."""
        cdef Touched* queue = &self.touched[n]
        if queue.name.topic == NULL:
            return 0
        queue.name.topic = NULL
        PyBuffer_Release(&queue.view)
        found = self.objects[n]
        found.position = queue.position
        found.max_offset = queue.next_offset
        found.max_physical_offset = queue.physical_end
        return 0


def run(
    buffer, int64_t base, int64_t start, int64_t end, int64_t until, dict table, str excluded, bytearray hashes,
    list arrivals,
    watched, arrival,
):
    """Dispatch ordinary records; returns where the first is that is not dispatched, and the last one's store time.

    Args:
        buffer: a file of the log.
        base: the log offset of its first byte.
        start: where the first record is.
        end: how much of the file has been received.
        until: no record that begins here or behind is dispatched.
        table: the queues by topic and queue id.
        excluded: the topic whose records are not ordinary.
        hashes: takes the entries for the index, packed as `store.index.HASHED_KEY`; None: there is none.
        arrivals: takes the arrivals; None: not wanted.
        watched: the queues whose arrivals are wanted; None: all.
        arrival: makes one.
    """
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef uint8_t* entry
    cdef int64_t at = start, timestamp = 0, code
    cdef Record record
    cdef Indexed p
    cdef Touched* queue
    cdef Queues queues = Queues(table, excluded, False if arrivals is None else watched)
    cdef int n
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        data = <const uint8_t*>view.buf
        if start < 0 or end > view.len:
            raise ValueError("these bytes are not in the file")
        while at < until and read_record(data, at, end, base, &record):
            if record.sys_flag & NOT_ORDINARY:
                break
            if not read_indexed(<const char*>record.properties, <int>record.properties_bytes, &p):
                break
            n = queues.find(&record)
            if n < 0:
                break
            queue = &queues.touched[n]
            if (
                get64(data + at + QUEUE_OFFSET_AT) != queue.next_offset
                or queue.position + ENTRY_BYTES > queue.limit
                or base + at < queue.physical_end
            ):
                break
            timestamp = record.timestamp
            code = <int32_t>hash_on(0, p.tags.at, p.tags.size) if p.tags.size else 0
            if hashes is not None:
                add_hashes(
                    hashes, queue.topic_hash, p.unique_key.at, p.unique_key.size, p.keys.at, p.keys.size, base + at, timestamp
                )
            if queue.watched:
                arrivals.append(arrival(queues.names[n], queue.name.queue_id, queue.next_offset + 1, code, timestamp))
            entry = <uint8_t*>queue.view.buf + queue.position
            put64(entry, <uint64_t>(base + at))
            put32(entry + 8, <uint32_t>record.size)
            put64(entry + 12, <uint64_t>code)
            queue.position += ENTRY_BYTES
            queue.next_offset += 1
            queue.physical_end = base + at + record.size
            at += record.size
    finally:
        for n in range(QUEUES):
            queues.release(n)
        PyBuffer_Release(&view)
    return at, timestamp
