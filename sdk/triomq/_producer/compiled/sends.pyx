# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends that join a batch which is open, compiled: see `triomq._producer.plain_sends`, which says what all this is.

A message without properties of the user's, whose keys and tags are printable ASCII, is checked and encoded here; any
other one by the functions that `Joins` is given. The layout of a batch's elements is that of
`triomq_protocol.record.layout`; `LAYOUT` repeats it for the test that compares them.
"""

VERSION = 988070735

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object)
    bint PyUnicode_CheckExact(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    void* PyUnicode_DATA(object)
    object PyUnicode_New(Py_ssize_t, Py_UCS4)

cdef extern from *:
    """
    static inline uint32_t swapped32(uint32_t v) { return __builtin_bswap32(v); }
    static inline uint16_t swapped16(uint16_t v) { return __builtin_bswap16(v); }
    """
    uint32_t swapped32(uint32_t) nogil
    uint16_t swapped16(uint16_t) nogil

cdef enum:
    SIZE_AT = 0
    MAGIC_AT = 4
    CRC_AT = 8
    FLAG_AT = 12
    BODY_LENGTH_AT = 16
    BODY_AT = 20
    PROPERTIES_LENGTH_BYTES = 2
    FIXED_BYTES = 22
    KEY_DIGITS = 4
    KEY_MOST = 128          # a unique key has 32 characters, with an IPv6 address 56
    WORD_MOST = 4096        # keys or tags of a message that is alone; longer ones are for Python
    BODY_MOST = 0x00FFFFFF  # what the field of a header's length holds
    NAME_END = 1
    VALUE_END = 2

LAYOUT = {
    "size": SIZE_AT,
    "magic": MAGIC_AT,
    "body_crc": CRC_AT,
    "flag": FLAG_AT,
    "body_length": BODY_LENGTH_AT,
    "BODY_AT": BODY_AT,
    "FIXED_BYTES": FIXED_BYTES,
}


cdef inline void put32(char* at, uint32_t value) noexcept nogil:
    value = swapped32(value)
    memcpy(at, &value, 4)


cdef inline void put16(char* at, uint16_t value) noexcept nogil:
    value = swapped16(value)
    memcpy(at, &value, 2)


cdef inline char* put_text(char* at, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(at, text, size)
    return at + size


cdef inline bint is_word(const char* text, Py_ssize_t size) noexcept nogil:
    """Whether a text is printable ASCII without what means something in keys and tags: blanks, `|` and `&`."""
    cdef Py_ssize_t n
    cdef char c
    for n in range(size):
        c = text[n]
        if c <= 32 or c >= 127 or c == 124 or c == 38:
            return False
    return True


cdef inline bint is_json_word(const char* text, Py_ssize_t size) noexcept nogil:
    """Whether a text is such a word, and stands in JSON as it is."""
    cdef Py_ssize_t n
    for n in range(size):
        if text[n] == 34 or text[n] == 92:
            return False
    return is_word(text, size)


cdef inline bint has_text(text, const char** at, Py_ssize_t* size) noexcept:
    """Whether a value is a str of ASCII that is not empty, and where its characters are."""
    if not PyUnicode_CheckExact(text) or not PyUnicode_IS_COMPACT_ASCII(text):
        return False
    at[0], size[0] = <const char*>PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)
    return size[0] > 0


cdef inline Py_ssize_t digits_of(int64_t value, char* at) noexcept nogil:
    """Write a number that is not negative in decimal; returns how many digits it has."""
    cdef char reversed_digits[20]
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t n
    while True:
        reversed_digits[count] = <char>(48 + value % 10)
        value //= 10
        count += 1
        if not value:
            break
    for n in range(count):
        at[n] = reversed_digits[count - 1 - n]
    return count


def lone_frame(tuple parts not None, message, str unique_key not None, int64_t born_ms, int64_t opaque):
    cdef Py_ssize_t keys_bytes = 0
    cdef Py_ssize_t tags_bytes = 0
    cdef Py_ssize_t header_bytes, body_bytes, key_bytes
    cdef const char* keys_at = NULL
    cdef const char* tags_at = NULL
    cdef char born_digits[20]
    cdef char opaque_digits[20]
    cdef Py_ssize_t born_count, opaque_count
    cdef bytes start, before_properties, before_opaque, end, body
    cdef char* at
    if (
        message.properties is not None
        or message.delay_level != 0
        or message.wait_store_ok is not True
        or not PyLong_CheckExact(message.flag)
        or not PyLong_CheckExact(message.delay_level)
        or born_ms < 0
        or opaque < 0
    ):
        return None
    tags, keys = message.tags, message.keys
    if keys is not None and not (
        has_text(keys, &keys_at, &keys_bytes) and keys_bytes <= WORD_MOST and is_json_word(keys_at, keys_bytes)
    ):
        return None
    if tags is not None and not (
        has_text(tags, &tags_at, &tags_bytes) and tags_bytes <= WORD_MOST and is_json_word(tags_at, tags_bytes)
    ):
        return None
    if not PyUnicode_IS_COMPACT_ASCII(unique_key) or PyUnicode_GET_LENGTH(unique_key) > KEY_MOST:
        return None
    key_bytes = PyUnicode_GET_LENGTH(unique_key)
    start, before_properties, before_opaque, end = parts
    body = message.body
    body_bytes = PyBytes_GET_SIZE(body)
    born_count = digits_of(born_ms, born_digits)
    opaque_count = digits_of(opaque, opaque_digits)
    # Two quotes; in JSON, each control character takes six bytes.
    header_bytes = (
        PyBytes_GET_SIZE(start) + born_count + PyBytes_GET_SIZE(before_properties) + 2 + 14 + key_bytes
        + PyBytes_GET_SIZE(before_opaque) + opaque_count + PyBytes_GET_SIZE(end)
    )
    if keys_bytes:
        header_bytes += 4 + 6 + keys_bytes + 6
    if tags_bytes:
        header_bytes += 6 + 4 + 6 + tags_bytes
    if body_bytes > BODY_MOST or header_bytes > BODY_MOST:
        return None
    frame = PyBytes_FromStringAndSize(NULL, 8 + header_bytes + body_bytes)
    at = PyBytes_AS_STRING(frame)
    put32(at, <uint32_t>(4 + header_bytes + body_bytes))
    put32(at + 4, <uint32_t>header_bytes)
    at = put_text(at + 8, PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
    at = put_text(at, born_digits, born_count)
    at = put_text(at, PyBytes_AS_STRING(before_properties), PyBytes_GET_SIZE(before_properties))
    at = put_text(at, b'"', 1)
    if keys_bytes:
        at = put_text(at, b"KEYS\\u0001", 10)
        at = put_text(at, keys_at, keys_bytes)
        at = put_text(at, b"\\u0002", 6)
    at = put_text(at, b"UNIQ_KEY\\u0001", 14)
    at = put_text(at, <const char*>PyUnicode_DATA(unique_key), key_bytes)
    if tags_bytes:
        at = put_text(at, b"\\u0002TAGS\\u0001", 16)
        at = put_text(at, tags_at, tags_bytes)
    at = put_text(at, b'"', 1)
    at = put_text(at, PyBytes_AS_STRING(before_opaque), PyBytes_GET_SIZE(before_opaque))
    at = put_text(at, opaque_digits, opaque_count)
    at = put_text(at, PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end))
    memcpy(at, PyBytes_AS_STRING(body), body_bytes)
    return frame


cdef class Window:
    cdef public Py_ssize_t count
    cdef public Py_ssize_t size_bytes
    cdef readonly Py_ssize_t max_count
    cdef readonly Py_ssize_t max_bytes

    def __init__(self, Py_ssize_t max_count, Py_ssize_t max_bytes):
        self.max_count = max_count
        self.max_bytes = max_bytes

    cpdef bint has(self, Py_ssize_t size_bytes) noexcept:
        return self.count < self.max_count and (self.size_bytes + size_bytes <= self.max_bytes or not self.count)

    cpdef void take(self, Py_ssize_t size_bytes) noexcept:
        self.count += 1
        self.size_bytes += size_bytes

    cpdef void give(self, Py_ssize_t size_bytes) noexcept:
        self.count -= 1
        self.size_bytes -= size_bytes


@cython.final
@cython.freelist(256)
cdef class PlainSend:
    cdef readonly object message
    cdef readonly object callback
    cdef readonly bytes properties
    cdef readonly str unique_key
    cdef readonly double started
    cdef Py_ssize_t body_bytes


@cython.final
cdef class OpenBatch:
    cdef Window _window
    cdef char* _data
    cdef Py_ssize_t _reserved
    cdef readonly Py_ssize_t size_bytes
    cdef readonly Py_ssize_t plain_count
    cdef readonly Py_ssize_t plain_body_bytes
    cdef public list sends
    cdef public Py_ssize_t ended
    cdef public int64_t opaque
    cdef readonly object pinned
    cdef readonly object target
    cdef readonly object link
    cdef readonly double deadline
    cdef readonly double due
    cdef readonly bint wait_store_ok

    def __init__(self, Window window not None, pinned, target, link, double deadline, double due, bint wait_store_ok):
        self._window = window
        self.pinned = pinned
        self.target = target
        self.link = link
        self.deadline = deadline
        self.due = due
        self.wait_store_ok = wait_store_ok
        self.sends = []
        self.opaque = -1

    def __dealloc__(self):
        PyMem_Free(self._data)

    cdef char* _grown(self, Py_ssize_t size) except NULL:
        """Where so many bytes more may be written."""
        cdef char* data
        cdef Py_ssize_t reserved = self._reserved
        if self.size_bytes + size > reserved:
            while self.size_bytes + size > reserved:
                reserved = reserved * 2 if reserved else 4096
            data = <char*>PyMem_Realloc(self._data, reserved)
            if data is NULL:
                raise MemoryError
            self._data, self._reserved = data, reserved
        return self._data + self.size_bytes

    def add(self, send, bytes element not None):
        memcpy(self._grown(PyBytes_GET_SIZE(element)), PyBytes_AS_STRING(element), PyBytes_GET_SIZE(element))
        self.sends.append(send)
        self.size_bytes += PyBytes_GET_SIZE(element)

    def elements(self):
        found = PyBytes_FromStringAndSize(self._data, self.size_bytes)
        PyMem_Free(self._data)
        self._data, self._reserved = NULL, 0
        return found

    def rest(self):
        sends = self.sends[self.ended:]
        self.ended = len(self.sends)
        return sends

    def end(self, whole, list offset_message_ids not None, failed, later):
        cdef Window window = self._window
        cdef Py_ssize_t number
        cdef PlainSend plain
        make = type(whole)
        status, queue, transaction_id = whole.status, whole.queue, whole.transaction_id
        region_id, trace_on = whole.region_id, whole.trace_on
        cdef int64_t queue_offset = whole.queue_offset
        # A callback may give up its producer, which takes the rest.
        while self.ended < len(self.sends):
            number = self.ended
            self.ended = number + 1
            send = self.sends[number]
            if type(send) is not PlainSend:
                send.outcome = make(
                    status, send.out.unique_key, offset_message_ids[number], queue, queue_offset + number,
                    transaction_id, region_id, trace_on,
                )
                send.ended()
                continue
            plain = <PlainSend>send
            result = make(
                status, plain.unique_key, offset_message_ids[number], queue, queue_offset + number,
                transaction_id, region_id, trace_on,
            )
            window.give(plain.body_bytes)
            try:
                found = plain.callback.on_success(result)
            except Exception as error:
                failed(plain, error)
                continue
            if found is not None:
                later(plain, found)


@cython.final
cdef class Joins:
    cdef Window _window
    cdef object _message_type
    cdef object _callback_of
    cdef object _properties_of
    cdef object _reserve_keys
    cdef object _now
    cdef Py_ssize_t _body_bytes_max
    cdef Py_ssize_t _message_bytes_max
    cdef Py_ssize_t _batch_bytes_max
    cdef Py_ssize_t _messages_max
    cdef bint _adds_properties
    cdef char _key[KEY_MOST]
    cdef Py_ssize_t _key_bytes
    cdef uint32_t _key_number
    cdef Py_ssize_t _keys_left
    cdef readonly dict open

    def __init__(
        self, Window window not None, *, message_type, callback_of, properties_of, reserve_keys, now,
        Py_ssize_t body_bytes_max, Py_ssize_t message_bytes_max, Py_ssize_t batch_bytes_max, Py_ssize_t messages_max,
        bint adds_properties,
    ):
        self._window = window
        self._message_type = message_type
        self._callback_of = callback_of
        self._properties_of = properties_of
        self._reserve_keys = reserve_keys
        self._now = now
        self._body_bytes_max = body_bytes_max
        self._message_bytes_max = message_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._messages_max = messages_max
        self._adds_properties = adds_properties
        self.open = {}

    def begin(self, tuple key not None, target, link, double deadline, double due, *, bint wait_store_ok):
        self._keys_left = 0
        batch = self.open[key] = OpenBatch(self._window, key[1], target, link, deadline, due, wait_store_ok)
        return batch

    cpdef bint has_room(self, OpenBatch batch, Py_ssize_t size_bytes):
        return len(batch.sends) < self._messages_max and batch.size_bytes + size_bytes < self._batch_bytes_max

    cdef int _reserve(self) except -1:
        stamp, number = self._reserve_keys(self._messages_max)
        cdef bytes text = stamp.encode("ascii")
        if len(text) + KEY_DIGITS > KEY_MOST:
            raise ValueError(f"a unique key of {len(text) + KEY_DIGITS} characters")
        memcpy(self._key, PyBytes_AS_STRING(text), len(text))
        self._key_bytes = len(text) + KEY_DIGITS
        self._key_number = number
        self._keys_left = self._messages_max
        return 0

    cdef str _next_key(self):
        """The next unique key, which is used when `_keys_left` goes down."""
        cdef int n
        cdef uint32_t nibble
        if not self._keys_left:
            self._reserve()
        for n in range(KEY_DIGITS):
            nibble = (self._key_number >> (4 * (KEY_DIGITS - 1 - n))) & 15
            self._key[self._key_bytes - KEY_DIGITS + n] = <char>(48 + nibble if nibble < 10 else 55 + nibble)
        found = PyUnicode_New(self._key_bytes, 127)
        memcpy(PyUnicode_DATA(found), self._key, self._key_bytes)
        return found

    def join(self, message, callback, queue):
        cdef OpenBatch batch
        cdef Py_ssize_t body_bytes, properties_bytes, size_bytes, flag
        cdef Py_ssize_t keys_bytes = 0
        cdef Py_ssize_t tags_bytes = 0
        cdef const char* keys_at = NULL
        cdef const char* tags_at = NULL
        cdef char* at
        cdef bytes written = None
        cdef PlainSend plain
        cdef PyObject* found
        if type(message) is not self._message_type or not self.open:
            return False
        try:
            found = PyDict_GetItemWithError(self.open, (message.topic, queue))
        except TypeError:
            return False  # a topic or a queue of another type, to be refused
        if found is NULL:
            return False
        batch = <OpenBatch>found
        body = message.body
        if type(body) is not bytes:
            return False
        body_bytes = PyBytes_GET_SIZE(body)
        if not 0 < body_bytes <= self._body_bytes_max or not self._window.has(body_bytes):
            return False
        wait_store_ok = message.wait_store_ok
        given_flag = message.flag
        if (
            message.delay_level != 0
            or wait_store_ok is not (True if batch.wait_store_ok else False)
            or not PyLong_CheckExact(given_flag)
            or not INT32_MIN <= given_flag <= INT32_MAX
        ):
            return False
        flag = given_flag
        callback = self._callback_of(callback)
        unique_key = self._next_key()
        tags, keys = message.tags, message.keys
        plainly = wait_store_ok and not self._adds_properties and message.properties is None
        if plainly and keys is not None:
            plainly = has_text(keys, &keys_at, &keys_bytes) and is_word(keys_at, keys_bytes)
        if plainly and tags is not None:
            plainly = has_text(tags, &tags_at, &tags_bytes) and is_word(tags_at, tags_bytes)
        if plainly:
            # KEYS, UNIQ_KEY and TAGS, each with the end of its name, and a separator between two.
            properties_bytes = 9 + self._key_bytes
            if keys_bytes:
                properties_bytes += 6 + keys_bytes
            if tags_bytes:
                properties_bytes += 6 + tags_bytes
        else:
            written = self._properties_of(message, unique_key)
            if written is None:
                return False
            properties_bytes = PyBytes_GET_SIZE(written)
        size_bytes = FIXED_BYTES + body_bytes + properties_bytes
        if body_bytes + properties_bytes > self._message_bytes_max or not self.has_room(batch, size_bytes):
            return False
        plain = PlainSend.__new__(PlainSend)
        plain.message = message
        plain.callback = callback
        plain.properties = written
        plain.unique_key = unique_key
        plain.body_bytes = body_bytes
        plain.started = self._now()
        # What has called Python is behind: nothing fails halfway.
        at = batch._grown(size_bytes)
        put32(at, <uint32_t>size_bytes)
        put32(at + MAGIC_AT, 0)
        put32(at + CRC_AT, 0)
        put32(at + FLAG_AT, <uint32_t><int32_t>flag)
        put32(at + BODY_LENGTH_AT, <uint32_t>body_bytes)
        at = put_text(at + BODY_AT, PyBytes_AS_STRING(body), body_bytes)
        put16(at, <uint16_t>properties_bytes)
        at += PROPERTIES_LENGTH_BYTES
        if written is not None:
            put_text(at, PyBytes_AS_STRING(written), properties_bytes)
        else:
            if keys_bytes:
                at = put_text(at, b"KEYS\x01", 5)
                at = put_text(at, keys_at, keys_bytes)
                at = put_text(at, b"\x02", 1)
            at = put_text(at, b"UNIQ_KEY\x01", 9)
            at = put_text(at, self._key, self._key_bytes)
            if tags_bytes:
                at = put_text(at, b"\x02TAGS\x01", 6)
                at = put_text(at, tags_at, tags_bytes)
        self._key_number = (self._key_number + 1) & 0xFFFF
        self._keys_left -= 1
        batch.sends.append(plain)
        batch.size_bytes += size_bytes
        batch.plain_count += 1
        batch.plain_body_bytes += body_bytes
        self._window.take(body_bytes)
        return True

