# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of the log and entries of queues, checked one after the other: what `store.recovery.Recovery` and
`store.consume_queue.ConsumeQueue` do with each that is sound."""

VERSION = 770429255

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

include "big_endian.pxi"
include "record_layout.pxi"

cdef enum:
    TRANSACTION = 3 << 2
    COMMITTED = 2 << 2
    QUEUES = 64             # whose last records are kept apart
    BLANK_SIZE = 0x7FFFFFFF
    NOT_VALID = 1           # why passing over entries has ended
    WRONG = 2


cdef struct LastRecord:
    const uint8_t* topic
    Py_ssize_t topic_bytes
    int64_t queue_id
    int64_t queue_offset
    int64_t offset


cdef int note(dict numbers, LastRecord* last) except -1:
    topic = PyUnicode_DecodeUTF8(<const char*>last.topic, last.topic_bytes, "replace")
    numbers[topic, last.queue_id] = (last.queue_offset, last.offset)
    last.topic = NULL
    return 0


def pass_records(
    buffer, int64_t start, int64_t end, int64_t base, int64_t bytes_most, checksum, bint may_be_torn, dict numbers
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
        numbers: takes, by topic and queue, the queue offset and log offset of the last record that enters a queue.
    """
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef const uint8_t* record
    cdef const uint8_t* body
    cdef const uint8_t* topic
    cdef int64_t at = start, stop, size, body_bytes, topic_bytes, properties_bytes, timestamp = 0, records = 0
    cdef int64_t fixed
    cdef uint32_t sys_flag, found_crc
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
        while at < stop and end - at >= FIXED_BYTES:
            record = data + at
            size = <int32_t>get32(record)
            if get32(record + 4) != MAGIC or size < FIXED_BYTES or size > end - at:
                break
            if get64(record + PHYSICAL_OFFSET_AT) != base + at:
                break
            sys_flag = get32(record + SYS_FLAG_AT)
            fixed = BODY_LENGTH_AT
            if sys_flag & BORN_HOST_V6:
                fixed += IPV6_MORE
            if sys_flag & STORE_HOST_V6:
                fixed += IPV6_MORE
            if size < fixed + 7:
                break
            body_bytes = <int32_t>get32(record + fixed)
            body = record + fixed + 4
            if body_bytes < 0 or body_bytes > size - fixed - 7:
                break
            topic_bytes = body[body_bytes]
            topic = body + body_bytes + 1
            if topic_bytes > size - fixed - 7 - body_bytes:
                break
            properties_bytes = size - fixed - 7 - body_bytes - topic_bytes
            if properties_bytes > 0x7FFF:
                break
            if (topic[topic_bytes] << 8 | topic[topic_bytes + 1]) != properties_bytes:
                break
            if may_be_torn and properties_bytes and not record[size - 1]:
                break
            if checksum is not None:
                body_copy = PyBytes_FromStringAndSize(<const char*>body, body_bytes)
                found_crc = checksum(body_copy)
                if found_crc & 0x7FFFFFFF != get32(record + BODY_CRC_AT):
                    break
            timestamp = get64(record + STORE_TIMESTAMP_AT + (IPV6_MORE if sys_flag & BORN_HOST_V6 else 0))
            if not sys_flag & TRANSACTION or sys_flag & TRANSACTION == COMMITTED:
                n = (get32(record + QUEUE_ID_AT) + topic_bytes + topic[topic_bytes - 1] if topic_bytes else 0) % QUEUES
                entry = &last[n]
                if entry.topic != NULL and (
                    entry.queue_id != <int32_t>get32(record + QUEUE_ID_AT)
                    or entry.topic_bytes != topic_bytes
                    or memcmp(entry.topic, topic, topic_bytes)
                ):
                    note(numbers, entry)
                entry.topic = topic
                entry.topic_bytes = topic_bytes
                entry.queue_id = <int32_t>get32(record + QUEUE_ID_AT)
                entry.queue_offset = get64(record + QUEUE_OFFSET_AT)
                entry.offset = base + at
            at += size
            records += 1
        for n in range(QUEUES):
            if last[n].topic != NULL:
                note(numbers, &last[n])
    finally:
        PyBuffer_Release(&view)
    return at, records, timestamp


def pass_entries(buffer, int64_t start, int64_t stop, int64_t limit, uint64_t before, int64_t last):
    """`store.consume_queue.pass_entries_one_by_one` does the same, and says what it is."""
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
        while at + UNIT_BYTES <= stop:
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
            at += UNIT_BYTES
    finally:
        PyBuffer_Release(&view)
    return at, before, last, why
