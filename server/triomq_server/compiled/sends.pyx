# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends of a whole receive, compiled: cut into frames, checked, stored and answered without an object for each.

`SendBursts.take` does the requests at the front of what a link received that need nothing special, and stops at the
first one that does: an unusual header, a topic or queue that is not there yet, a delay, a transaction, a full file. That
one and what follows are for the handlers of `send`, which do the same with every message; both ways leave the same
bytes in the log, the queues and the index, and give the same answers."""

VERSION = 185927876

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

include "big_endian.pxi"
include "headers.pxi"
include "signing.pxi"
include "record_layout.pxi"
include "properties.pxi"

cdef extern from *:
    """
    /* A killed process must leave a record whole or without its first eight bytes: stores are not moved across. */
    #define KEEP_ORDER() __asm__ __volatile__("" ::: "memory")
    """
    void KEEP_ORDER() nogil

cdef enum:
    TOUCHED_MOST = 32
    SHARED_BYTES = 256      # of a batch's property string whose meaning is kept
    SCRATCH_BYTES = 65536   # unescaped strings of one header
    HEADER_MOST = 60000
    SMALL_BODY = 192        # up to here the own checksum is as fast as a call of the library's
    RUN_BYTES = 4194304     # of records that one call stores
    RUN_KEYS_BYTES = 24 * 4096  # of their entries for the index; a message may have thousands
    KEYS_BYTES_MOST = 65536 # of a batch; one with more is done in slices, by Python
    ELEMENTS_MOST = 4096    # of a batch, likewise: more would take the loop too long
    ANSWER_BYTES = 1024     # more than any answer without its ids

    BLANK_BYTES = 8
    PROPERTIES_MOST = 32767
    TOPIC_MOST = 127
    ALLOWED_SYS_FLAGS = 0x701   # compression; anything else is for Python
    NAMES_MOST = 32         # of a message; more are for Python
    ELEMENT_FLAG_AT = 12
    ELEMENT_BODY_LENGTH_AT = 16
    ELEMENT_BODY_AT = 20

cdef extern from *:
    """
    #define POLYNOMIAL 0xEDB88320u
    """
    const uint32_t POLYNOMIAL

# ---- numbers


cdef uint32_t crc_table[8][256]


cdef void make_crc_table() noexcept nogil:
    cdef uint32_t value
    cdef int n, k
    for n in range(256):
        value = n
        for k in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        crc_table[0][n] = value
    for n in range(256):
        for k in range(1, 8):
            crc_table[k][n] = (crc_table[k - 1][n] >> 8) ^ crc_table[0][crc_table[k - 1][n] & 0xFF]


make_crc_table()


cdef uint32_t small_crc32(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = ~<uint32_t>0
    cdef uint32_t low, high
    while size >= 8:
        memcpy(&low, data, 4)
        memcpy(&high, data + 4, 4)
        low ^= crc
        crc = (
            crc_table[7][low & 0xFF] ^ crc_table[6][(low >> 8) & 0xFF]
            ^ crc_table[5][(low >> 16) & 0xFF] ^ crc_table[4][low >> 24]
            ^ crc_table[3][high & 0xFF] ^ crc_table[2][(high >> 8) & 0xFF]
            ^ crc_table[1][(high >> 16) & 0xFF] ^ crc_table[0][high >> 24]
        )
        data += 8
        size -= 8
    while size:
        crc = (crc >> 8) ^ crc_table[0][(crc ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return ~crc


cdef inline void write_hex64(char* out, uint64_t value) noexcept nogil:
    cdef int n
    cdef int nibble
    for n in range(16):
        nibble = (value >> (60 - 4 * n)) & 15
        out[n] = <char>(48 + nibble if nibble < 10 else 55 + nibble)


# ---- the header


cdef struct Header:
    int64_t code
    int64_t flag
    int64_t opaque
    int64_t ext_seen
    int group_seen
    Text topic
    Text properties
    int64_t queue_id
    int queue_id_seen
    int64_t sys_flag
    int sys_flag_seen
    int64_t born_timestamp
    int born_timestamp_seen
    int64_t message_flag
    int message_flag_seen
    int64_t reconsume_times
    int batch


cdef bint read_switch(Text* value, int* out) noexcept nogil:
    if text_is(value, b"false", 5):
        out[0] = 0
        return True
    if text_is(value, b"true", 4):
        out[0] = 1
        return True
    return False


cdef bint take_short(Header* h, char name, Text* value) noexcept nogil:
    """A field of the header with one-letter names; false for one that is not plain."""
    cdef int ignored
    cdef int64_t number
    if name == 97:  # a: producer group
        h.group_seen = 1
    elif name == 98:  # b
        h.topic = value[0]
    elif name == 99 or name == 110:  # c, n: default topic, broker name
        pass
    elif name == 100 or name == 108:  # d, l: queues of the default topic, most retries
        return text_number(value, &number)
    elif name == 101:  # e
        h.queue_id_seen = 1
        return text_number(value, &h.queue_id)
    elif name == 102:  # f
        h.sys_flag_seen = 1
        return text_number(value, &h.sys_flag)
    elif name == 103:  # g
        h.born_timestamp_seen = 1
        return to_number(value.at, value.size, -999999999999999999, 999999999999999999, &h.born_timestamp)
    elif name == 104:  # h
        h.message_flag_seen = 1
        return text_number(value, &h.message_flag)
    elif name == 105:  # i
        h.properties = value[0]
    elif name == 106:  # j
        return text_number(value, &h.reconsume_times)
    elif name == 107:  # k: unit mode
        return read_switch(value, &ignored)
    elif name == 109:  # m
        return read_switch(value, &h.batch)
    else:
        return False
    return True


cdef bint take_long(Header* h, Text* name, Text* value) noexcept nogil:
    """A field of the header with long names; false for one that is not plain."""
    if text_is(name, b"producerGroup", 13):
        return take_short(h, 97, value)
    if text_is(name, b"topic", 5):
        return take_short(h, 98, value)
    if text_is(name, b"defaultTopic", 12):
        return take_short(h, 99, value)
    if text_is(name, b"defaultTopicQueueNums", 21):
        return take_short(h, 100, value)
    if text_is(name, b"queueId", 7):
        return take_short(h, 101, value)
    if text_is(name, b"sysFlag", 7):
        return take_short(h, 102, value)
    if text_is(name, b"bornTimestamp", 13):
        return take_short(h, 103, value)
    if text_is(name, b"flag", 4):
        return take_short(h, 104, value)
    if text_is(name, b"properties", 10):
        return take_short(h, 105, value)
    if text_is(name, b"reconsumeTimes", 14):
        return take_short(h, 106, value)
    if text_is(name, b"unitMode", 8):
        return take_short(h, 107, value)
    if text_is(name, b"maxReconsumeTimes", 17):
        return take_short(h, 108, value)
    if text_is(name, b"batch", 5):
        return take_short(h, 109, value)
    if text_is(name, b"bname", 5):
        return take_short(h, 110, value)
    return False


cdef bint read_ext(Reader* r, Header* h, Fields* fields, bint short_names) noexcept nogil:
    cdef Text name, value
    if not passes(r, 123):  # {
        return False
    while True:
        if not read_text(r, &name) or not passes(r, 58) or not read_text(r, &value):  # :
            return False
        if fields.count == FIELDS_MOST:
            return False
        if short_names and name.size == 1:
            if not take_short(h, name.at[0], &value):
                return False
        elif not take_signing(fields, &name) and (short_names or not take_long(h, &name, &value)):
            return False
        keep_field(fields, &name, &value)
        if not passes(r, 44):  # ,
            return passes(r, 125)  # }


cdef bint read_member(Reader* r, Header* h, Fields* fields, Text* name) noexcept nogil:
    """The value of a member of a send's header; false for one that is not plain."""
    cdef Text value
    cdef int64_t ignored
    if text_is(name, b"code", 4):
        # Only one: the names of the fields were read by the first.
        return not h.code and read_number(r, &h.code) and (h.code == 310 or h.code == 10 or h.code == 320)
    if text_is(name, b"extFields", 9):
        if h.ext_seen or not h.code:  # whose names depend on the code, which Java writes first
            return False
        h.ext_seen = 1
        return read_ext(r, h, fields, h.code != 10)
    if text_is(name, b"flag", 4):
        return read_number(r, &h.flag)
    if text_is(name, b"opaque", 6):
        return read_number(r, &h.opaque)
    if text_is(name, b"version", 7):
        return read_number(r, &ignored)
    if text_is(name, b"language", 8):
        return read_text(r, &value)
    if text_is(name, b"serializeTypeCurrentRPC", 23):
        return read_text(r, &value) and text_is(&value, b"JSON", 4)
    return False


cdef bint read_header(Reader* r, Header* h, Fields* fields) noexcept nogil:
    """A send's JSON header in the usual form; false for any other header, whatever it says."""
    cdef Text name
    begin_fields(fields)
    if not passes(r, 123):  # {
        return False
    while True:
        if not read_text(r, &name) or not passes(r, 58) or not read_member(r, h, fields, &name):  # :
            return False
        if not passes(r, 44):  # ,
            break
    return (
        passes(r, 125) and r.at == r.end and h.ext_seen and h.group_seen and h.queue_id_seen and h.sys_flag_seen
        and h.born_timestamp_seen and h.message_flag_seen and h.topic.size > 0 and not h.flag & ~2
        and not h.sys_flag & ~<int64_t>ALLOWED_SYS_FLAGS
    )


# ---- properties


cdef struct Properties:
    Text tags
    Text keys
    Text unique_key
    int kept            # bytes of the segments that are stored
    int cut             # whether some are not
    int ends_open       # whether what is stored needs no separator behind it
    int no_wait         # whether WAIT says something else than "true"


cdef bint read_properties(const char* at, int size, Properties* p, bint plain_message) noexcept nogil:
    """Read a property string; false if it asks for something special, or is not ASCII.

    Of a plain message WAIT and CLUSTER are not stored as they were sent, nor segments without name or value and all but
    the last of one name, which are left to Python; the elements of a batch keep them.
    """
    cdef int[NAMES_MOST] names
    cdef int[NAMES_MOST] name_sizes
    cdef int count = 0
    cdef int n
    cdef const char* sign
    cdef int start = 0
    cdef int end, length, kept = 0
    cdef const char* segment
    cdef bint dropped
    cdef int segments = 0
    cdef int last_empty = 0
    p.tags.size = p.keys.size = p.unique_key.size = 0
    p.cut = p.no_wait = 0
    if not size:
        p.kept = 0
        p.ends_open = 1
        return True
    while True:
        end = start
        while end < size and at[end] != 2:
            if <uint8_t>at[end] >= 0x80:
                return False
            end += 1
        segment = at + start
        length = end - start
        dropped = False
        if plain_message and (length or end < size):
            sign = <const char*>memchr(segment, 1, length)
            if sign == NULL or sign == segment or sign == segment + length - 1 or count == NAMES_MOST:
                return False
            names[count] = start
            name_sizes[count] = <int>(sign - segment)
            for n in range(count):
                if name_sizes[n] == name_sizes[count] and memcmp(at + names[n], segment, name_sizes[n]) == 0:
                    return False
            count += 1
        if length > 4:
            if begins(segment, length, b"TAGS\x01", 5):
                if length > 5:
                    p.tags.at = segment + 5
                    p.tags.size = length - 5
            elif begins(segment, length, b"KEYS\x01", 5):
                if length > 5:
                    p.keys.at = segment + 5
                    p.keys.size = length - 5
            elif begins(segment, length, b"UNIQ_KEY\x01", 9):
                if length > 9:
                    p.unique_key.at = segment + 9
                    p.unique_key.size = length - 9
            elif begins(segment, length, b"WAIT\x01", 5):
                dropped = plain_message
                if not (length == 9 and memcmp(segment + 5, b"true", 4) == 0):
                    p.no_wait = 1
            elif begins(segment, length, b"CLUSTER\x01", 8):
                dropped = plain_message
            elif plain_message and (
                begins(segment, length, b"DELAY\x01", 6)
                or begins(segment, length, b"TRAN_MSG\x01", 9)
                or begins(segment, length, b"TIMER_DEL", 9)
                or begins(segment, length, b"__STARTDELIVERTIME\x01", 19)
            ):
                return False
        if dropped:
            p.cut = 1
        else:
            kept += length + (1 if segments else 0)
            segments += 1
            last_empty = not length
        if end >= size:
            break
        start = end + 1
    p.kept = kept
    p.ends_open = not kept or (last_empty and segments > 1)
    return True


cdef void write_kept(char* out, const char* at, int size) noexcept nogil:
    """The segments but WAIT and CLUSTER, as `read_properties` counted them."""
    cdef int start = 0
    cdef int end, length
    cdef bint first = True
    while True:
        end = start
        while end < size and at[end] != 2:
            end += 1
        length = end - start
        if not (begins(at + start, length, b"WAIT\x01", 5) or begins(at + start, length, b"CLUSTER\x01", 8)):
            if not first:
                out[0] = 2
                out += 1
            first = False
            memcpy(out, at + start, length)
            out += length
        if end >= size:
            return
        start = end + 1


# ---- queues


cdef struct Touched:
    Text topic
    int64_t queue_id
    Py_buffer view
    uint8_t* buffer
    int64_t position
    int64_t limit
    int64_t next_offset
    int64_t physical_end
    uint32_t topic_hash
    int watched
    int64_t calls
    int64_t messages
    int64_t stored_bytes


cdef inline bint is_queue_of(Touched* touched, Header* header) noexcept nogil:
    """Whether a header names this queue."""
    return (
        touched.queue_id == header.queue_id
        and touched.topic.size == header.topic.size
        and memcmp(touched.topic.at, header.topic.at, header.topic.size) == 0
    )


cdef inline int64_t record_bytes(Touched* touched, int64_t body_size, int properties_size) noexcept nogil:
    return BODY_AT + body_size + 1 + touched.topic.size + 2 + properties_size


cdef inline uint8_t* write_body(
    uint8_t* record, const uint8_t* body, int64_t size, Touched* touched, int properties_size
) noexcept nogil:
    """A record's body and topic, and the length of its properties; returns where those go."""
    cdef uint8_t* tail = record + BODY_AT + size
    memcpy(record + BODY_AT, body, size)
    tail[0] = <uint8_t>touched.topic.size
    memcpy(tail + 1, touched.topic.at, touched.topic.size)
    tail += 1 + touched.topic.size
    tail[0] = <uint8_t>(properties_size >> 8)
    tail[1] = <uint8_t>(properties_size & 0xFF)
    return tail + 2


cdef inline int64_t tags_code_of(Properties* p) noexcept nogil:
    return <int32_t>hash_on(0, p.tags.at, p.tags.size) if p.tags.size else 0


cdef struct Element:
    const uint8_t* body
    int body_size
    int flag
    const char* own             # its own properties
    int own_size
    int joint                   # whether a separator is put behind them
    int properties_size         # of all that are stored
    int64_t size                # of the record
    Properties properties


cdef class SendBursts:
    """Does the plain sends at the front of a receive. The arguments are what `send.Sending` uses for them.

    Args:
        store: the message store.
        topics: the table of topics.
        queues: the table of consume queues, by topic and queue id.
        is_plain_topic: whether messages of a topic need nothing special, called with its configuration.
        count: called with a topic, and the messages, bytes and sends stored for it.
        requests: counts requests by their codes.
        checksum: CRC-32 of long bodies.
        arrival: makes an arrival from topic, queue id, next offset, tags code and store time.
        batch_properties: what a batch's property string adds to each element's; None where Python has to decide.
        hold: holds the answers of sends until disk or slave have the messages (`SendCompletion.hold`).
        access: decides which sends may be stored (`RequestAccess`); None: all.
    """

    cdef object _store, _topics, _queues, _is_plain_topic, _count, _requests, _checksum, _arrival, _batch_properties
    cdef object _hold, _access
    cdef Fields _fields
    cdef dict _shared
    cdef bytes _cluster, _answer_middle, _answer_end, _store_host, _host_id
    cdef object _short_queue
    cdef int64_t _short_bytes
    cdef int64_t _short_entries
    cdef int64_t _body_most
    cdef int64_t _frame_most
    cdef public bint active
    cdef public bint waits
    cdef Touched _touched[TOUCHED_MOST]
    cdef int _count_touched
    cdef int _last
    cdef list _names
    cdef list _objects
    cdef list _encoded
    cdef char* _scratch
    cdef char* _out
    cdef Py_ssize_t _out_size
    cdef Py_ssize_t _out_used
    cdef Element* _elements
    cdef int _elements_room

    def __cinit__(self):
        self._scratch = <char*>malloc(SCRATCH_BYTES)
        self._out_size = 65536
        self._out = <char*>malloc(self._out_size)
        self._elements_room = 64
        self._elements = <Element*>malloc(sizeof(Element) * self._elements_room)
        if self._scratch == NULL or self._out == NULL or self._elements == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._scratch)
        free(self._out)
        free(self._elements)

    def __init__(
        self, store, topics, queues, is_plain_topic, count, requests, checksum, arrival, batch_properties, hold,
        access,
    ):
        self._store = store
        self._topics = topics
        self._queues = queues
        self._is_plain_topic = is_plain_topic
        self._count = count
        self._requests = requests
        self._checksum = checksum
        self._arrival = arrival
        self._batch_properties = batch_properties
        self._hold = hold
        self._access = access
        self._shared = {}
        self._names = []
        self._objects = []
        self._encoded = []
        self.active = self.waits = False

    def configure(
        self, bytes cluster, bytes answer_middle, bytes answer_end, bytes store_host, *, body_most, frame_most
    ):
        """Take over settings.

        Args:
            cluster: the name of the cluster, ASCII.
            answer_middle: what is between the queue id and the message id of an answer.
            answer_end: what is behind the opaque of an answer.
            store_host: the broker's packed address, 8 bytes.
            body_most: of one message.
            frame_most: of one frame, with its length.
        """
        self._cluster = cluster
        self._answer_middle = answer_middle
        self._answer_end = answer_end
        self._store_host = store_host
        self._host_id = store_host.hex().upper().encode()
        self._body_most = body_most
        self._frame_most = frame_most
        self._shared = {}

    def take(self, link, bytes data) -> int:
        """Do the plain sends at the front of `data`; returns how many bytes they had. What is left begins a frame."""
        cdef Py_ssize_t done, before
        self._short_queue = None
        done = self._run(link, data, 0)
        while self._short_queue is not None:
            queue, self._short_queue = self._short_queue, None
            if not self._store.provide_space(self._short_bytes, queue, self._short_entries):
                break
            before = done
            done = self._run(link, data, before)
            if done == before:
                break
        return done

    cdef bint _lacks_space(self, int64_t size, int64_t room, int64_t entries):
        """Whether records of this size, or their entries, do not fit into the reserved space; then `take` asks for more."""
        cdef Touched* touched = &self._touched[self._last]
        if size + BLANK_BYTES <= room and touched.position + entries * ENTRY_BYTES <= touched.limit:
            return False
        self._short_queue = self._objects[self._last]
        self._short_bytes = size
        self._short_entries = entries
        return True

    cdef Py_ssize_t _run(self, link, bytes data, Py_ssize_t done) except -1:
        """As `take`, from position `done` on, as far as space is reserved."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Header header
        cdef Reader reader
        cdef int64_t total, header_bytes
        cdef uint32_t mark
        cdef const uint8_t* body
        cdef int64_t body_size
        cdef Py_buffer log
        cdef bint opened = False
        cdef int64_t position = 0, first_position = 0, limit = 0, offset = 0, now = 0
        cdef int64_t stored
        cdef bytes born_host
        cdef int64_t long_sends = 0, short_sends = 0, batches = 0
        cdef bytearray hashes = bytearray()
        cdef list arrivals = []
        cdef list held = []
        cdef bint indexed = False
        cdef object place
        cdef bytes answers = None
        cdef str host = None
        cdef Touched touched
        cdef Py_ssize_t hashes_before, arrivals_before, out_before
        if not self.active or size < 100:
            return done
        self._out_used = 0
        self._count_touched = 0
        self._last = -1
        if self._names:  # an error has ended the last call before its end
            self._names.clear()
            self._objects.clear()
            self._encoded.clear()
        born_host = link.peer_host
        if PyBytes_GET_SIZE(born_host) != 8:
            return done
        if self._access is not None:
            host = self._access.host_to_check(link.peer)
        try:
            while size - done >= 8:
                total = <int32_t>get32(start + done)
                mark = get32(start + done + 4)
                header_bytes = mark
                if (
                    mark > HEADER_MOST or total < 4 or total > self._frame_most - 4 or 4 + header_bytes > total
                    or size - done < 4 + total
                ):
                    break
                body = start + done + 8 + header_bytes
                body_size = total - 4 - header_bytes
                if not body_size or body_size > self._body_most:
                    break
                reader.at = start + done + 8
                reader.end = body
                reader.scratch = self._scratch
                reader.scratch_used = 0
                memset(&header, 0, sizeof(Header))
                if not read_header(&reader, &header, &self._fields):
                    break
                if not opened:
                    place = self._store.begin_run()
                    if place is None:
                        break
                    PyObject_GetBuffer(place[0], &log, PyBUF_SIMPLE | PyBUF_WRITABLE)
                    opened = True
                    position = first_position = place[1]
                    limit = place[2]
                    offset = place[3]
                    now = place[4]
                    indexed = place[5]
                    if limit > log.len:
                        limit = log.len
                if self._find(&header) < 0 or (host is not None and not is_allowed(
                    self._access, host, &self._fields, body, body_size, header.code, self._names[self._last], ""
                )):
                    break
                touched = self._touched[self._last]
                hashes_before, arrivals_before, out_before = PyByteArray_GET_SIZE(hashes), len(arrivals), self._out_used
                try:
                    stored = self._store_batch(
                        &header, body, body_size, <uint8_t*>log.buf + position, limit - position, offset, now,
                        PyBytes_AS_STRING(born_host), hashes if indexed else None, arrivals,
                    ) if header.batch else self._store_one(
                        &header, body, body_size, <uint8_t*>log.buf + position, limit - position, offset, now,
                        PyBytes_AS_STRING(born_host), hashes if indexed else None, arrivals,
                    )
                except BaseException:
                    # What has been written lies behind the ends of log and queue, and is written over.
                    self._touched[self._last] = touched
                    del hashes[hashes_before:], arrivals[arrivals_before:]
                    self._out_used = out_before
                    raise
                if stored <= 0:
                    break
                if header.code == 310:
                    short_sends += 1
                elif header.code == 10:
                    long_sends += 1
                else:
                    batches += 1
                position += stored
                offset += stored
                done += 4 + total
                if self.waits:
                    held.append((offset, self._out_used, self._names[self._last], header.code))
                if position - first_position > RUN_BYTES or PyByteArray_GET_SIZE(hashes) > RUN_KEYS_BYTES:
                    break
        finally:
            if opened:
                PyBuffer_Release(&log)
                self._release(position - first_position, now, hashes, arrivals)
            if short_sends:
                self._requests[310] += short_sends
            if long_sends:
                self._requests[10] += long_sends
            if batches:
                self._requests[320] += batches
            if held:
                answers = self._hold(link, PyBytes_FromStringAndSize(self._out, self._out_used), held)
            elif self._out_used:
                answers = PyBytes_FromStringAndSize(self._out, self._out_used)
            if answers is not None:
                link.unsent.append(answers)
                link.unsent_bytes += len(answers)
        return done

    cdef int _release(self, int64_t stored, int64_t now, bytearray hashes, list arrivals) except -1:
        """Give the queues their ends, and the store what has been written."""
        cdef Touched* touched
        cdef int n
        cdef int64_t calls = 0
        for n in range(self._count_touched):
            touched = &self._touched[n]
            queue = self._objects[n]
            PyBuffer_Release(&touched.view)
            if touched.messages:
                queue.position = touched.position
                queue.max_offset = touched.next_offset
                queue.max_physical_offset = touched.physical_end
                calls += touched.calls
        if stored:
            self._store.end_run(stored, now, hashes, arrivals, calls)
        for n in range(self._count_touched):
            touched = &self._touched[n]
            if touched.messages:
                self._count(self._names[n], touched.messages, touched.stored_bytes, touched.calls)
        self._names.clear()
        self._objects.clear()
        self._encoded.clear()
        self._count_touched = 0
        return 0

    cdef int _find(self, Header* header) except -2:
        """Make the queue of a header the last one touched; -1 if there is something special about it."""
        cdef Touched* touched
        cdef int n
        cdef bytes encoded
        if self._last >= 0 and is_queue_of(&self._touched[self._last], header):
            return self._last
        for n in range(self._count_touched):
            if is_queue_of(&self._touched[n], header):
                self._last = n
                return n
        if self._count_touched == TOUCHED_MOST or header.topic.size > TOPIC_MOST:
            return -1
        name = header.topic.at[:header.topic.size].decode("ascii")
        config = self._topics.get(name)
        if config is None or not self._is_plain_topic(name, config):
            return -1
        if not 0 <= header.queue_id < config.write_queue_nums:
            return -1
        queue = self._queues.get((name, header.queue_id))
        if queue is None:
            return -1
        encoded = name.encode()
        touched = &self._touched[self._count_touched]
        PyObject_GetBuffer(queue.buffer, &touched.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            touched.buffer = <uint8_t*>touched.view.buf
            touched.position = queue.position
            touched.limit = min(<int64_t>queue.limit, <int64_t>touched.view.len)
            touched.next_offset = queue.max_offset
            touched.physical_end = queue.max_physical_offset
            touched.watched = self._store.is_watched(name, header.queue_id)
        except BaseException:
            PyBuffer_Release(&touched.view)
            raise
        self._names.append(name)
        self._objects.append(queue)
        self._encoded.append(encoded)  # the name in the header may lie in the scratch, which the next header takes
        touched.topic.size = header.topic.size
        touched.topic.at = PyBytes_AS_STRING(encoded)
        touched.queue_id = header.queue_id
        touched.topic_hash = hash_on(hash_on(0, touched.topic.at, touched.topic.size), b"#", 1)
        touched.calls = touched.messages = touched.stored_bytes = 0
        self._last = self._count_touched
        self._count_touched += 1
        return self._last

    cdef uint32_t _crc(self, const uint8_t* body, int64_t size) except? 0:
        if size <= SMALL_BODY:
            return small_crc32(body, size)
        return self._checksum(PyBytes_FromStringAndSize(<const char*>body, size))

    cdef int _dispatch(
        self, Touched* touched, Properties* p, int64_t offset, int64_t now, bytearray hashes, list arrivals
    ) except -1:
        """Collect the index entries, if there is an index, and the arrival, if it is wanted, of a record that has its
        queue entry."""
        if touched.watched:
            arrivals.append(
                self._arrival(self._names[self._last], touched.queue_id, touched.next_offset, tags_code_of(p), now)
            )
        if hashes is not None:
            add_hashes(
                hashes, touched.topic_hash, p.unique_key.at, p.unique_key.size, p.keys.at, p.keys.size, offset, now
            )
        return 0

    cdef int64_t _store_one(
        self, Header* header, const uint8_t* body, int64_t body_size, uint8_t* at, int64_t room, int64_t offset,
        int64_t now, const char* born_host, bytearray hashes, list arrivals,
    ) except -1:
        """Write a record, its entry and its answer; returns the record's size, 0 if it is not for here."""
        cdef Touched* touched = &self._touched[self._last]
        cdef Properties p
        cdef int cluster_size = <int>PyBytes_GET_SIZE(self._cluster)
        cdef int64_t size
        cdef int properties_size
        cdef uint8_t* tail
        cdef uint32_t crc
        if not read_properties(header.properties.at, header.properties.size, &p, True):
            return 0
        if self.waits and p.no_wait:
            return 0
        properties_size = p.kept + (0 if p.ends_open else 1) + 8 + cluster_size
        if properties_size > PROPERTIES_MOST:
            return 0
        size = record_bytes(touched, body_size, properties_size)
        if self._lacks_space(size, room, 1):
            return 0
        crc = self._crc(body, body_size)
        self._head(header, at, size, crc, touched, offset, now, born_host, <int32_t>header.message_flag, body_size)
        tail = write_body(at, body, body_size, touched, properties_size)
        if p.cut:
            write_kept(<char*>tail, header.properties.at, header.properties.size)
        elif p.kept:
            memcpy(tail, header.properties.at, p.kept)
        tail += p.kept
        if not p.ends_open:
            tail[0] = 2
            tail += 1
        memcpy(tail, b"CLUSTER\x01", 8)
        memcpy(tail + 8, PyBytes_AS_STRING(self._cluster), cluster_size)
        KEEP_ORDER()
        put64(at, (<uint64_t>size << 32) | MAGIC)
        KEEP_ORDER()
        self._entry(touched, offset, size, tags_code_of(&p))
        self._dispatch(touched, &p, offset, now, hashes, arrivals)
        touched.calls += 1
        touched.messages += 1
        touched.stored_bytes += size
        if not header.flag & 2:
            self._answer(header, touched.next_offset - 1, offset, NULL, 0)
        return size

    cdef void _head(
        self, Header* header, uint8_t* at, int64_t size, uint32_t crc, Touched* touched, int64_t offset, int64_t now,
        const char* born_host, int32_t flag, int64_t body_size,
    ) noexcept:
        """A record's head but for its first eight bytes."""
        put32(at + BODY_CRC_AT, crc & 0x7FFFFFFF)
        put32(at + QUEUE_ID_AT, <uint32_t>header.queue_id)
        put32(at + FLAG_AT, <uint32_t>flag)
        put64(at + QUEUE_OFFSET_AT, <uint64_t>touched.next_offset)
        put64(at + PHYSICAL_OFFSET_AT, <uint64_t>offset)
        put32(at + SYS_FLAG_AT, <uint32_t>header.sys_flag)
        put64(at + BORN_TIMESTAMP_AT, <uint64_t>header.born_timestamp)
        memcpy(at + BORN_HOST_AT, born_host, 8)
        put64(at + STORE_TIMESTAMP_AT, <uint64_t>now)
        memcpy(at + STORE_HOST_AT, PyBytes_AS_STRING(self._store_host), 8)
        put32(at + RECONSUME_TIMES_AT, <uint32_t>header.reconsume_times)
        put64(at + PREPARED_OFFSET_AT, 0)
        put32(at + BODY_LENGTH_AT, <uint32_t>body_size)

    cdef void _entry(self, Touched* touched, int64_t offset, int64_t size, int64_t tags_code) noexcept:
        cdef uint8_t* at = touched.buffer + touched.position
        put64(at, <uint64_t>offset)
        put32(at + 8, <uint32_t>size)
        put64(at + 12, <uint64_t>tags_code)
        touched.position += ENTRY_BYTES
        touched.next_offset += 1
        touched.physical_end = offset + size

    cdef int64_t _store_batch(
        self, Header* header, const uint8_t* body, int64_t body_size, uint8_t* at, int64_t room, int64_t offset,
        int64_t now, const char* born_host, bytearray hashes, list arrivals,
    ) except -1:
        """Write a batch's records, entries and answer, all or none; returns their size, 0 if it is not for here."""
        cdef Touched* touched = &self._touched[self._last]
        cdef bytes shared = self._shared_properties(header)
        cdef int shared_size
        cdef const char* shared_at
        cdef Properties common
        cdef int64_t total = 0, place
        cdef int count, n
        cdef Element* element
        cdef uint8_t* record
        cdef uint8_t* tail
        cdef int64_t first_offset = touched.next_offset
        if shared is None or (self.waits and not self._batch_waits(header)):
            return 0
        shared_size = <int>PyBytes_GET_SIZE(shared)
        shared_at = PyBytes_AS_STRING(shared)
        if not read_properties(shared_at, shared_size, &common, False):
            return 0
        if common.tags.size or common.keys.size or common.unique_key.size:
            return 0
        count = self._read_elements(body, body_size, touched, shared_size, &total)
        if not count or self._lacks_space(total, room, count):
            return 0
        # Entries first, and the marks last and in order: a killed process leaves the batch, its first records, or none.
        place = offset
        for n in range(count):
            element = &self._elements[n]
            self._entry(touched, place, element.size, tags_code_of(&element.properties))
            place += element.size
        touched.next_offset = first_offset
        KEEP_ORDER()
        record = at
        for n in range(count):
            element = &self._elements[n]
            place = offset + (record - at)
            self._head(
                header, record, element.size, self._crc(element.body, element.body_size), touched, place, now, born_host,
                element.flag, element.body_size,
            )
            tail = write_body(record, element.body, element.body_size, touched, element.properties_size)
            memcpy(tail, element.own, element.own_size)
            tail += element.own_size
            if element.joint:
                tail[0] = 2
                tail += 1
            memcpy(tail, shared_at, shared_size)
            touched.next_offset += 1
            self._dispatch(touched, &element.properties, place, now, hashes, arrivals)
            record += element.size
        record = at
        for n in range(count):
            KEEP_ORDER()
            put64(record, (<uint64_t>self._elements[n].size << 32) | MAGIC)
            record += self._elements[n].size
        KEEP_ORDER()
        touched.calls += 1
        touched.messages += count
        touched.stored_bytes += total
        if not header.flag & 2:
            self._answer(header, first_offset, offset, at, count)
        return total

    cdef int _read_elements(
        self, const uint8_t* body, int64_t body_size, Touched* touched, int shared_size, int64_t* total
    ) except -1:
        """Read a batch's elements into `_elements`; returns how many, 0 if they are not for here.

        `total` becomes the size of their records, to whose properties `shared_size` bytes are added.
        """
        cdef const uint8_t* here = body
        cdef const uint8_t* end = body + body_size
        cdef int64_t element_body  # 64 bits, since a request may name a length to which nothing can be added in 32
        cdef int count = 0
        cdef int64_t keys_bytes = 0
        cdef Element* element
        while here < end:
            if end - here < ELEMENT_BODY_AT + 2 or count == ELEMENTS_MOST:
                return 0
            element_body = <int32_t>get32(here + ELEMENT_BODY_LENGTH_AT)
            if element_body < 0 or end - here < ELEMENT_BODY_AT + 2 + element_body:
                return 0
            if count == self._elements_room:
                self._more_elements()
            element = &self._elements[count]
            element.flag = <int32_t>get32(here + ELEMENT_FLAG_AT)
            element.body = here + ELEMENT_BODY_AT
            element.body_size = <int>element_body
            here += ELEMENT_BODY_AT + element_body
            element.own_size = (<int>here[0] << 8) | here[1]
            here += 2
            if element.own_size > PROPERTIES_MOST or end - here < element.own_size:
                return 0
            element.own = <const char*>here
            here += element.own_size
            if not read_properties(element.own, element.own_size, &element.properties, False):
                return 0
            keys_bytes += element.properties.keys.size
            if keys_bytes > KEYS_BYTES_MOST:
                return 0
            element.joint = 1 if element.own_size and element.own[element.own_size - 1] != 2 else 0
            element.properties_size = element.own_size + element.joint + shared_size
            if element.properties_size > PROPERTIES_MOST:
                return 0
            element.size = record_bytes(touched, element_body, element.properties_size)
            total[0] += element.size
            count += 1
        return count

    cdef bint _batch_waits(self, Header* header):
        """Whether a batch's own properties let it wait for disk and slave."""
        cdef Properties own
        return read_properties(header.properties.at, header.properties.size, &own, True) and not own.no_wait

    cdef bytes _shared_properties(self, Header* header):
        """What a batch's own properties add to each element's; None if they are not plain."""
        cdef bytes text = header.properties.at[:header.properties.size] if header.properties.size else b""
        shared = self._shared.get(text)
        if shared is None:
            shared = self._batch_properties(text.decode("ascii"))
            if shared is None:
                return None
            if len(self._shared) > 4096:
                self._shared = {}
            if len(text) <= SHARED_BYTES:
                self._shared[text] = shared
        return shared

    cdef int _more_elements(self) except -1:
        cdef Element* more = <Element*>realloc(self._elements, sizeof(Element) * self._elements_room * 2)
        if more == NULL:
            raise MemoryError
        self._elements = more
        self._elements_room *= 2
        return 0

    cdef int _answer(self, Header* header, int64_t queue_offset, int64_t offset, const uint8_t* batch, int count) except -1:
        """The answer; of a batch, `batch` are its records and `count` how many."""
        cdef Py_ssize_t need = (
            ANSWER_BYTES + PyBytes_GET_SIZE(self._answer_middle) + PyBytes_GET_SIZE(self._answer_end)
            + 40 * <Py_ssize_t>count
        )
        cdef char* out
        cdef char* start
        cdef char* grown
        cdef int n
        cdef Py_ssize_t size
        if self._out_used + need > self._out_size:
            grown = <char*>realloc(self._out, (self._out_used + need) * 2)
            if grown == NULL:
                raise MemoryError
            self._out = grown
            self._out_size = (self._out_used + need) * 2
        start = self._out + self._out_used
        out = start + 8
        out = text_out(out, b'{"code":0,"extFields":{"queueId":"', 34)
        out += write_decimal(out, header.queue_id)
        out = text_out(out, PyBytes_AS_STRING(self._answer_middle), PyBytes_GET_SIZE(self._answer_middle))
        if batch == NULL:
            out = self._message_id(out, offset)
        else:
            for n in range(count):
                if n:
                    out[0] = 44
                    out += 1
                out = self._message_id(out, offset)
                size = get32(batch)
                batch += size
                offset += size
        out = text_out(out, b'","queueOffset":"', 17)
        out += write_decimal(out, queue_offset)
        out = text_out(out, b'"},"flag":1,"language":"JAVA","opaque":', 39)
        out += write_decimal(out, header.opaque)
        out = text_out(out, PyBytes_AS_STRING(self._answer_end), PyBytes_GET_SIZE(self._answer_end))
        size = out - start - 8
        put32(<uint8_t*>start, <uint32_t>(size + 4))
        put32(<uint8_t*>start + 4, <uint32_t>size)
        self._out_used += size + 8
        return 0

    cdef char* _message_id(self, char* out, int64_t offset) noexcept:
        memcpy(out, PyBytes_AS_STRING(self._host_id), 16)
        write_hex64(out + 16, <uint64_t>offset)
        return out + 32


