# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of the log and entries of queues, checked one after the other: what a recovery of the store does with each that
is sound."""

VERSION = 2128356156

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

include "big_endian.pxi"
include "record_layout.pxi"
include "log_records.pxi"

cdef enum:
    BLANK_SIZE = 0x7FFFFFFF
    NOT_VALID = 1           # why passing over entries has ended
    WRONG = 2


cdef struct LastRecord:
    QueueName name
    int64_t queue_offset
    int64_t offset
    int64_t size

cdef struct KnownQueue:
    QueueName name
    int64_t until


cdef int note(dict last_records, LastRecord* last) except -1:
    topic = PyUnicode_DecodeUTF8(<const char*>last.name.topic, last.name.topic_bytes, "replace")
    last_records[topic, last.name.queue_id] = (last.queue_offset, last.offset, last.size)
    last.name.topic = NULL
    return 0


def pass_records(
    buffer, int64_t start, int64_t end, int64_t base, int64_t bytes_most, checksum, bint may_be_torn, dict last_records
):
    """Pass over sound records; returns where the first is that is not passed, how many were, and the last one's store time.

    That one is for the caller: it is not sound, or may be torn, or there was enough to do.

    Args:
        buffer: a file of the log.
        start: where the first record is.
        end: bounds what may be read.
        base: the log offset of the file's first byte.
        bytes_most: no record behind so many bytes is looked at.
        checksum: CRC-32 of a body, which is compared without its top bit; None for no comparison.
        may_be_torn: whether a record that ends in zeros is not passed.
        last_records: takes, by topic and queue, the queue offset, log offset and size of the last record that enters a queue.
    """
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef int64_t at = start, stop, timestamp = 0, records = 0
    cdef uint32_t found_crc
    cdef Record record
    cdef LastRecord last[QUEUES]
    cdef LastRecord* entry
    cdef int n
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    memset(last, 0, sizeof(last))
    try:
        data = <const uint8_t*>view.buf
        if start < 0 or end > view.len:
            raise ValueError("these bytes are not in the file")
        stop = end if bytes_most >= end - start else start + bytes_most
        while at < stop and read_record(data, at, end, base, &record):
            if may_be_torn and record.properties_bytes and not data[at + record.size - 1]:
                break
            if checksum is not None:
                body_copy = PyBytes_FromStringAndSize(<const char*>record.body, record.body_bytes)
                found_crc = checksum(body_copy)
                if found_crc & 0x7FFFFFFF != get32(data + at + BODY_CRC_AT):
                    break
            timestamp = record.timestamp
            if enters_queue(&record):
                entry = &last[place_of(&record)]
                if entry.name.topic != NULL and not is_queue_of(&entry.name, &record):
                    note(last_records, entry)
                name_queue_of(&entry.name, &record)
                entry.queue_offset = get64(data + at + QUEUE_OFFSET_AT)
                entry.offset = base + at
                entry.size = record.size
            at += record.size
            records += 1
        for n in range(QUEUES):
            if last[n].name.topic != NULL:
                note(last_records, &last[n])
    finally:
        PyBuffer_Release(&view)
    return at, records, timestamp


def pass_dispatched(
    buffer, int64_t start, int64_t end, int64_t base, int64_t bytes_most, int64_t indexed_until, dict known
):
    """Pass over records to which dispatch would add nothing; returns as `pass_records` does.

    Args:
        buffer: a file of the log.
        start: where the first record is.
        end: bounds what may be read.
        base: the log offset of the file's first byte.
        bytes_most: no record behind so many bytes is looked at.
        indexed_until: the log offset in front of which all records are in the index.
        known: by topic and queue, the log offset in front of which all records have their entries.
    """
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef int64_t at = start, stop, timestamp = 0, records = 0
    cdef Record record
    cdef KnownQueue queues[QUEUES]
    cdef KnownQueue* queue
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    memset(queues, 0, sizeof(queues))
    try:
        data = <const uint8_t*>view.buf
        if start < 0 or end > view.len:
            raise ValueError("these bytes are not in the file")
        stop = end if bytes_most >= end - start else start + bytes_most
        while at < stop and read_record(data, at, end, base, &record):
            if base + at >= indexed_until and may_have_keys(record.properties, record.properties_bytes):
                break
            if enters_queue(&record):
                queue = &queues[place_of(&record)]
                if not is_queue_of(&queue.name, &record):
                    topic = PyUnicode_DecodeUTF8(<const char*>record.topic, record.topic_bytes, "replace")
                    until = known.get((topic, record.queue_id))
                    if until is None:
                        break
                    name_queue_of(&queue.name, &record)
                    queue.until = until
                if base + at + record.size > queue.until:
                    break
            timestamp = record.timestamp
            at += record.size
            records += 1
    finally:
        PyBuffer_Release(&view)
    return at, records, timestamp


cdef bint may_have_keys(const uint8_t* properties, int64_t size) noexcept nogil:
    """Whether the names of the properties that are indexed are anywhere in them: `UNIQ_KEY` and `KEYS`."""
    cdef int64_t at
    for at in range(size - 3):
        if properties[at] == c"K" and properties[at + 1] == c"E" and properties[at + 2] == c"Y":
            return True
    return False


def pass_entries(buffer, int64_t start, int64_t stop, int64_t limit, uint64_t before, int64_t last):
    """`store.entry_layout.pass_entries_one_by_one` does the same, and says what it is."""
    cdef Py_buffer view
    cdef const uint8_t* entry
    cdef int64_t at = start, offset
    cdef int32_t size
    cdef int why = 0
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start < 0:
            raise ValueError("these bytes are not in the file")
        if stop > view.len:
            stop = view.len
        while at + ENTRY_BYTES <= stop:
            entry = <const uint8_t*>view.buf + at
            offset = get64(entry)
            size = <int32_t>get32(entry + 8)
            if offset < 0 or size <= 0 or (limit >= 0 and offset >= limit):
                why = NOT_VALID
                break
            if size != BLANK_SIZE:
                if limit < 0 and <uint64_t>offset < before:
                    why = WRONG
                    break
                before = <uint64_t>offset + size
                last = at
            at += ENTRY_BYTES
    finally:
        PyBuffer_Release(&view)
    return at, before, last, why
