# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Entries of the key index, written many at once: what `store.index.IndexFile.insert` does for each."""

VERSION = 3076496704

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

include "big_endian.pxi"

cdef enum:
    HEADER_BYTES = 40
    ENTRY_BYTES = 20
    SECONDS_MOST = 0x7FFFFFFF


def write_entries(buffer, int64_t slots, int64_t number, int64_t stop, entries, int64_t start, int64_t begin):
    """Write entries at the numbers from `number` to `stop`, each at the head of its chain; returns how many chains are new.

    Args:
        buffer: the index file.
        slots: how many chains it has.
        number: of the first entry.
        stop: behind the last one; space is reserved up to it.
        entries: packed as `store.index.HASHED_KEY`, in log order.
        start: the first one's place in `entries`.
        begin: the store time of the file's first entry, ms.
    """
    cdef Py_buffer view, given
    cdef const uint8_t* source
    cdef int64_t entry[3]
    cdef uint8_t* base
    cdef uint8_t* at
    cdef uint8_t* slot
    cdef int64_t key_hash, offset, timestamp, seconds, used = 0
    cdef uint32_t word
    cdef int64_t previous
    cdef uint64_t wide
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(entries, &given, PyBUF_SIMPLE)
    except BaseException:
        PyBuffer_Release(&view)
        raise
    try:
        if number < 1 or start < 0 or start + stop - number > given.len // <int64_t>sizeof(entry):
            raise ValueError("these entries were not given")
        if slots < 1 or HEADER_BYTES + 4 * slots + ENTRY_BYTES * stop > view.len:
            raise ValueError("the file is too short for these entries")
        base = <uint8_t*>view.buf
        at = base + HEADER_BYTES + 4 * slots + ENTRY_BYTES * number
        source = <const uint8_t*>given.buf + start * <int64_t>sizeof(entry)
        while number < stop:
            memcpy(entry, source, sizeof(entry))
            key_hash = entry[0]
            offset = entry[1]
            timestamp = entry[2]
            if key_hash < 0:
                raise ValueError("a hash is negative")
            seconds = (timestamp - begin) // 1000 if timestamp >= begin else -1
            if begin <= 0 or seconds < 0:
                seconds = 0
            elif seconds > SECONDS_MOST:
                seconds = SECONDS_MOST
            slot = base + HEADER_BYTES + key_hash % slots * 4
            memcpy(&word, slot, 4)
            previous = <int32_t>swapped32(word)
            if not 0 < previous < number:
                previous = 0
                used += 1
            word = swapped32(<uint32_t>key_hash)
            memcpy(at, &word, 4)
            wide = swapped64(<uint64_t>offset)
            memcpy(at + 4, &wide, 8)
            word = swapped32(<uint32_t>seconds)
            memcpy(at + 12, &word, 4)
            word = swapped32(<uint32_t>previous)
            memcpy(at + 16, &word, 4)
            word = swapped32(<uint32_t>number)
            memcpy(slot, &word, 4)
            number += 1
            source += sizeof(entry)
            at += ENTRY_BYTES
    finally:
        PyBuffer_Release(&given)
        PyBuffer_Release(&view)
    return used
