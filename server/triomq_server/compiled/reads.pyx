# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The records of a plain pull: what `store.reading.queue_reads` does where no entry needs a second look.

The layout of records is that of `triomq_protocol.record.layout`; `LAYOUT` repeats it for the test that compares them.
"""

VERSION = 1559145047

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #define MAGIC 0xDAA320A7u
    static inline uint64_t swapped64(uint64_t v) { return __builtin_bswap64(v); }
    static inline uint32_t swapped32(uint32_t v) { return __builtin_bswap32(v); }
    """
    const uint32_t MAGIC
    uint64_t swapped64(uint64_t) nogil
    uint32_t swapped32(uint32_t) nogil

cdef enum:
    UNIT_BYTES = 20
    MAGIC_AT = 4
    QUEUE_ID_AT = 12
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    HEAD_BYTES = 36         # up to the end of the physical offset

LAYOUT = {
    "magic": MAGIC_AT,
    "queue_id": QUEUE_ID_AT,
    "queue_offset": QUEUE_OFFSET_AT,
    "physical_offset": PHYSICAL_OFFSET_AT,
}


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return swapped32(value)


cdef inline int64_t get64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return <int64_t>swapped64(value)


cdef inline bint fits(
    const uint8_t* log, int64_t base, int64_t end, const uint8_t* entry, int64_t queue_id, int64_t number
) noexcept nogil:
    """Whether an entry points to its record. The record begins in the file."""
    cdef int64_t offset = get64(entry)
    cdef const uint8_t* record = log + (offset - base)
    return (
        offset + HEAD_BYTES <= end
        and get32(record) == get32(entry + 8)
        and get32(record + MAGIC_AT) == MAGIC
        and <int32_t>get32(record + QUEUE_ID_AT) == queue_id
        and get64(record + QUEUE_OFFSET_AT) == number
        and get64(record + PHYSICAL_OFFSET_AT) == offset
    )


def find_records(
    entries, int64_t at, int64_t count, log, int64_t base, int64_t low, int64_t high, int64_t queue_id, int64_t number,
    int64_t bytes_most,
):
    """Slices of the log with the records of these entries, neighbours joined, and their bytes; None if not all are plain.

    They are where they are in log order, in this file, and within the limits, and where entries point to their records. Of
    records that lie one behind the other the outer two tell.

    Args:
        entries: a file of the queue.
        at: where the first entry is.
        count: how many; at least one.
        log: the file of the log that holds the first one's record.
        base: the log offset of its first byte.
        low: the least log offset that may be read.
        high: the end of what may be read, in this file.
        queue_id: whose entries they are.
        number: the first one's number in the queue.
        bytes_most: of all records together, unless it is a single one.
    """
    cdef Py_buffer queue_view, log_view
    cdef const uint8_t* first
    cdef const uint8_t* entry
    cdef const uint8_t* records
    cdef int64_t n, offset, size = 0, end, run_start, total = 0
    cdef list slices
    PyObject_GetBuffer(entries, &queue_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(log, &log_view, PyBUF_SIMPLE)
        try:
            if at < 0 or count < 1 or at + count * UNIT_BYTES > queue_view.len:
                raise ValueError("these entries are not in the file")
            if low < base:
                low = base
            if high > base + log_view.len:
                high = base + log_view.len
            first = <const uint8_t*>queue_view.buf + at
            records = <const uint8_t*>log_view.buf
            slices = []
            view = memoryview(log)
            for n in range(count):
                size = <int32_t>get32(first + n * UNIT_BYTES + 8)
                if size <= 0:
                    return None
                total += size
            if total > bytes_most and count > 1:
                return None
            entry = first + (count - 1) * UNIT_BYTES
            run_start = get64(first)
            offset = get64(entry)
            if run_start < low or offset < run_start or offset > high - size:
                return None
            end = offset + size
            if end - run_start == total:  # entries are in log order, so nothing is between their records
                if not fits(records, base, high, first, queue_id, number) or not fits(
                    records, base, high, entry, queue_id, number + count - 1
                ):
                    return None
                slices.append(view[run_start - base:end - base])
                return slices, total
            end = run_start
            for n in range(count):
                entry = first + n * UNIT_BYTES
                offset = get64(entry)
                size = <int32_t>get32(entry + 8)
                if offset < end or offset > high - size or not fits(records, base, high, entry, queue_id, number + n):
                    return None
                if offset > end:
                    slices.append(view[run_start - base:end - base])
                    run_start = offset
                end = offset + size
            slices.append(view[run_start - base:end - base])
        finally:
            PyBuffer_Release(&log_view)
    finally:
        PyBuffer_Release(&queue_view)
    return slices, total
