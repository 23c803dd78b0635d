# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain pulls, compiled: read from a receive, checked, looked up and answered without an object for each part.

`PullBursts.take` does the pulls at the front of what a link received that need nothing special, and stops at the first
one that does: an unusual header, a filter, a refusal, an end of a queue, records of several log files. That one and what
follows are for `requests.pull.Pulling`, which gives the same answers. `find_records` does what
`store.reading.queue_reads` does where no entry needs a second look.
"""

VERSION = 7800533

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

include "big_endian.pxi"
include "headers.pxi"
include "signing.pxi"
include "record_layout.pxi"

cdef enum:
    HEAD_BYTES = 36             # of a record, up to the end of the physical offset
    CODE = 11
    HEADER_MOST = 4096          # longer ones bring filters
    SCRATCH_BYTES = HEADER_MOST
    PERM_READ = 4
    COMMITS = 1                 # bits of a pull's flag
    SUBSCRIBES = 4
    ANSWER_BYTES = 320          # more than any head without its end
    END_MOST = 128


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


cdef enum Found:
    NOT_PLAIN
    ONE_RUN         # one behind the other in the log
    SEVERAL_RUNS


cdef Found check_records(
    const uint8_t* first, int64_t count, Py_buffer* view, int64_t base, int64_t low, int64_t high, int64_t queue_id,
    int64_t number, int64_t bytes_most, int64_t* total
) noexcept nogil:
    """How the records of `count` entries lie, and their bytes; the arguments are those of `find_records`."""
    cdef const uint8_t* entry
    cdef const uint8_t* log = <const uint8_t*>view.buf
    cdef int64_t n, offset, size = 0, end
    low = max(low, base)
    high = min(high, base + <int64_t>view.len)
    total[0] = 0
    for n in range(count):
        size = <int32_t>get32(first + n * ENTRY_BYTES + 8)
        if size <= 0:
            return NOT_PLAIN
        total[0] += size
    if total[0] > bytes_most and count > 1:
        return NOT_PLAIN
    entry = first + (count - 1) * ENTRY_BYTES
    end = get64(first)
    offset = get64(entry)
    if end < low or offset < end or offset > high - size:
        return NOT_PLAIN
    if offset + size - end == total[0]:  # entries are in log order, so nothing is between their records
        if not fits(log, base, high, first, queue_id, number):
            return NOT_PLAIN
        return ONE_RUN if fits(log, base, high, entry, queue_id, number + count - 1) else NOT_PLAIN
    for n in range(count):
        entry = first + n * ENTRY_BYTES
        offset = get64(entry)
        size = <int32_t>get32(entry + 8)
        if offset < end or offset > high - size or not fits(log, base, high, entry, queue_id, number + n):
            return NOT_PLAIN
        end = offset + size
    return SEVERAL_RUNS


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
    cdef int64_t n, offset, end, start, total
    cdef Found found
    cdef list slices
    PyObject_GetBuffer(entries, &queue_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(log, &log_view, PyBUF_SIMPLE)
        try:
            if at < 0 or count < 1 or at + count * ENTRY_BYTES > queue_view.len:
                raise ValueError("these entries are not in the file")
            first = <const uint8_t*>queue_view.buf + at
            found = check_records(
                first, count, &log_view, base, low, high, queue_id, number, bytes_most, &total
            )
            if found == NOT_PLAIN:
                return None
            view = memoryview(log)
            start = get64(first)
            if found == ONE_RUN:
                return [view[start - base:start + total - base]], total
            slices = []
            end = start
            for n in range(count):
                offset = get64(first + n * ENTRY_BYTES)
                if offset > end:
                    slices.append(view[start - base:end - base])
                    start = offset
                end = offset + <int32_t>get32(first + n * ENTRY_BYTES + 8)
            slices.append(view[start - base:end - base])
        finally:
            PyBuffer_Release(&log_view)
    finally:
        PyBuffer_Release(&queue_view)
    return slices, total


# ---- the header


cdef enum:
    GROUP_SEEN = 1
    TOPIC_SEEN = 2
    QUEUE_ID_SEEN = 4
    QUEUE_OFFSET_SEEN = 8
    MAX_SEEN = 16
    SYS_FLAG_SEEN = 32
    COMMIT_OFFSET_SEEN = 64
    TIMEOUT_SEEN = 128
    SUB_VERSION_SEEN = 256
    ALL_SEEN = 511


cdef struct Pull:
    int64_t code
    int64_t flag
    int64_t opaque
    int64_t ext_seen
    int seen
    Text group
    Text topic
    Text subscription
    Text kind
    int64_t queue_id
    int64_t queue_offset
    int64_t messages_most
    int64_t sys_flag
    int64_t commit_offset
    int64_t timeout
    int64_t sub_version


cdef inline bint long_number(Text* text, int64_t* out) noexcept nogil:
    return to_number(text.at, text.size, -999999999999999999, 999999999999999999, out)


cdef bint take_field(Pull* p, Text* name, Text* value) noexcept nogil:
    """A field of the header; false for one that is not plain. Fields that no pull has are passed over, as in Python."""
    if text_is(name, b"consumerGroup", 13):
        p.seen |= GROUP_SEEN
        p.group = value[0]
    elif text_is(name, b"topic", 5):
        p.seen |= TOPIC_SEEN
        p.topic = value[0]
    elif text_is(name, b"queueId", 7):
        p.seen |= QUEUE_ID_SEEN
        return text_number(value, &p.queue_id)
    elif text_is(name, b"queueOffset", 11):
        p.seen |= QUEUE_OFFSET_SEEN
        return long_number(value, &p.queue_offset)
    elif text_is(name, b"maxMsgNums", 10):
        p.seen |= MAX_SEEN
        return text_number(value, &p.messages_most)
    elif text_is(name, b"sysFlag", 7):
        p.seen |= SYS_FLAG_SEEN
        return text_number(value, &p.sys_flag)
    elif text_is(name, b"commitOffset", 12):
        p.seen |= COMMIT_OFFSET_SEEN
        return long_number(value, &p.commit_offset)
    elif text_is(name, b"suspendTimeoutMillis", 20):
        p.seen |= TIMEOUT_SEEN
        return long_number(value, &p.timeout)
    elif text_is(name, b"subVersion", 10):
        p.seen |= SUB_VERSION_SEEN
        return long_number(value, &p.sub_version)
    elif text_is(name, b"subscription", 12):
        p.subscription = value[0]
    elif text_is(name, b"expressionType", 14):
        p.kind = value[0]
    return True


cdef bint read_fields(Reader* r, Pull* p, Fields* fields) noexcept nogil:
    cdef Text name, value
    if not passes(r, 123):  # {
        return False
    while True:
        if not read_text(r, &name) or not passes(r, 58) or not read_text(r, &value):  # :
            return False
        if fields.count == FIELDS_MOST or not take_field(p, &name, &value):
            return False
        take_signing(fields, &name)
        keep_field(fields, &name, &value)
        if not passes(r, 44):  # ,
            return passes(r, 125)  # }


cdef bint read_pull(Reader* r, Pull* p, Fields* fields) noexcept nogil:
    """A pull's JSON header in the usual form; false for any other header, whatever it says."""
    cdef Text name, value
    cdef int64_t ignored
    cdef bint plain
    begin_fields(fields)
    if not passes(r, 123):  # {
        return False
    while True:
        if not read_text(r, &name) or not passes(r, 58):  # :
            return False
        if text_is(&name, b"code", 4):
            plain = not p.code and read_number(r, &p.code) and p.code == CODE
        elif text_is(&name, b"extFields", 9):
            plain = not p.ext_seen and read_fields(r, p, fields)
            p.ext_seen = 1
        elif text_is(&name, b"flag", 4):
            plain = read_number(r, &p.flag)
        elif text_is(&name, b"opaque", 6):
            plain = read_number(r, &p.opaque)
        elif text_is(&name, b"version", 7):
            plain = read_number(r, &ignored)
        elif text_is(&name, b"language", 8):
            plain = read_text(r, &value)
        elif text_is(&name, b"serializeTypeCurrentRPC", 23):
            plain = read_text(r, &value) and text_is(&value, b"JSON", 4)
        else:
            plain = False
        if not plain:
            return False
        if not passes(r, 44):  # ,
            break
    return passes(r, 125) and r.at == r.end and p.code == CODE and not p.flag and p.seen == ALL_SEEN


cdef inline str decoded(Text* text):
    return PyUnicode_DecodeASCII(text.at, text.size, NULL)


cdef inline bint is_of_tags(object kind):
    return kind is None or kind == "" or kind == "TAG"


cdef class PullBursts:
    """Answers the plain pulls at the front of a receive. The arguments are what `pull.Pulling` uses for them.

    Args:
        store: the message store.
        config: its configuration.
        queues: the table of consume queues, by topic and queue id.
        topics: the table of topics.
        groups: has the table of consumer groups.
        clients: has the consumers that are online.
        commit: sets an offset of group, topic and queue id.
        count: called with topic, queue id, group, messages, bytes, 0, and the first message's age in ms.
        clock: ms since the epoch.
        times: its clock measures how long a pull takes, and it gets those of at least `slow_s`.
        slow_s: in seconds.
        requests: counts requests by their codes.
        retry_prefix: of topics that may need a filter of their own.
        broadcasting: the message model that not every group may use.
        access: decides which pulls may be answered (`RequestAccess`); None: all.
    """

    cdef object _store, _config, _queues, _topics, _groups, _clients, _commit, _count, _clock, _times, _requests, _access
    cdef double _slow_s
    cdef str _retry_prefix, _broadcasting
    cdef str _host  # that is checked now, None if nothing is
    cdef Fields _fields
    cdef bytes _answer_end
    cdef bint _slave_read
    cdef int64_t _unsent_most
    cdef public bint active
    cdef char _scratch[SCRATCH_BYTES]

    def __init__(
        self, *, store, config, queues, topics, groups, clients, commit, count, clock, times, double slow_s, requests,
        str retry_prefix, str broadcasting, access,
    ):
        self._store = store
        self._config = config
        self._queues = queues
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._commit = commit
        self._count = count
        self._clock = clock
        self._times = times
        self._slow_s = slow_s
        self._requests = requests
        self._retry_prefix = retry_prefix
        self._broadcasting = broadcasting
        self._access = access
        self.active = False

    def configure(self, bytes answer_end, *, bint slave_read, unsent_most):
        """Take over settings.

        Args:
            answer_end: what is behind the opaque of an answer.
            slave_read: whether readers are sent to other brokers of the set.
            unsent_most: no pull is answered behind so many bytes of answers.
        """
        if len(answer_end) > END_MOST:
            raise ValueError("this end of an answer is too long")
        self._answer_end = answer_end
        self._slave_read = slave_read
        self._unsent_most = unsent_most

    def take(self, link, bytes data) -> int:
        """Answer the plain pulls at the front of `data`; returns how many bytes they had. What is left begins a frame."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), done = 0
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef int64_t total, header_bytes
        cdef Reader reader
        cdef Pull pull
        if not self.active:
            return 0
        self._host = None if self._access is None else self._access.host_to_check(link.peer)
        while size - done >= 8:
            total = <int32_t>get32(at)
            header_bytes = get32(at + 4)
            if header_bytes > HEADER_MOST or total != 4 + header_bytes or size - done < 4 + total:
                break
            reader.at = at + 8
            reader.end = at + 4 + total
            reader.scratch = self._scratch
            reader.scratch_used = 0
            memset(&pull, 0, sizeof(Pull))
            if not read_pull(&reader, &pull, &self._fields):
                break
            try:
                if not self._answer(link, &pull):
                    break
            except Exception:  # the handler meets it again, and says it
                break
            done += 4 + total
            at += 4 + total
            if link.unsent_bytes >= self._unsent_most:
                break
        return done

    cdef bint _answer(self, link, Pull* pull) except -1:
        """Answer a pull; false, and nothing is done, if it is not plain."""
        cdef str name = decoded(&pull.group), topic = decoded(&pull.topic)
        cdef int64_t slow_id, home_id
        cdef double began, duration_s
        if topic.startswith(self._retry_prefix):
            return False
        group = self._groups.table.get(name)
        config = self._topics.get(topic)
        if group is None or not group.consume_enable or config is None or not config.perm & PERM_READ:
            return False
        if not 0 <= pull.queue_id < <int64_t>config.read_queue_nums:
            return False
        if pull.sys_flag & SUBSCRIBES:
            if not text_is(&pull.subscription, b"*", 1) or not is_of_tags(decoded(&pull.kind)):
                return False
        elif not self._wants_all(name, topic, group, pull.sub_version):
            return False
        home_id = group.broker_id
        slow_id = group.which_broker_when_consume_slowly
        began = self._times.now()
        if not self._read(link, pull, name, topic, home_id, slow_id):
            return False
        duration_s = <double>self._times.now() - began
        if duration_s >= self._slow_s:
            self._times.read(duration_s)
        return True

    cdef bint _wants_all(self, str name, str topic, group, int64_t sub_version) except -1:
        """Whether heartbeats have said that the group gets all messages of a topic."""
        online = self._clients.consumers.get(name)
        if online is None:
            return False
        if not group.consume_broadcast_enable and online.message_model == self._broadcasting:
            return False
        subscription = online.subscriptions.get(topic)
        if subscription is None or <int64_t>subscription.sub_version < sub_version:
            return False
        return is_of_tags(subscription.expression_type) and (
            subscription.sub_string == "*" or bool(subscription.class_filter_mode)
        )

    cdef bint _read(self, link, Pull* pull, str name, str topic, int64_t home_id, int64_t slow_id) except -1:
        cdef int64_t low, high, at, available
        cdef Py_buffer entries, log
        queue = self._queues.get((topic, pull.queue_id))
        if queue is None or not self._store.readable:
            return False
        low, high = queue.min_offset, queue.max_offset
        if not low <= pull.queue_offset < high:
            return False
        place = queue.locate(pull.queue_offset)
        if place is None:
            return False
        at = place[1]
        available = place[2]
        PyObject_GetBuffer(place[0], &entries, PyBUF_SIMPLE)
        try:
            if at < 0 or available < 1 or at + available * ENTRY_BYTES > entries.len:
                return False
            segment = self._store.commitlog.segments.find(<int64_t>get64(<const uint8_t*>entries.buf + at))
            if segment is None:
                return False
            buffer = segment.buffer
            PyObject_GetBuffer(buffer, &log, PyBUF_SIMPLE)
            try:
                return self._send(
                    link, pull, name, topic, low, high, <const uint8_t*>entries.buf + at, available, buffer, &log,
                    segment.base, home_id, slow_id,
                )
            finally:
                PyBuffer_Release(&log)
        finally:
            PyBuffer_Release(&entries)

    cdef bint _send(
        self, link, Pull* pull, str name, str topic, int64_t low, int64_t high, const uint8_t* first, int64_t available,
        buffer, Py_buffer* log, int64_t base, int64_t home_id, int64_t slow_id
    ) except -1:
        """As `_read`, from the first entry and the file of the log with its record on."""
        cdef int64_t count, read_count, log_end, limit, most, most_bytes, total, stored_ms, age = 0
        cdef int64_t offset = get64(first), last, suggested = 0, n, size, record_bytes
        cdef char head[ANSWER_BYTES + END_MOST]
        cdef char* out
        cdef bytes answer
        cdef const uint8_t* record
        cdef bint old
        cdef Found found
        settings, commitlog = self._config, self._store.commitlog
        log_end = commitlog.max_offset
        limit = settings.in_memory_limit_bytes
        old = log_end - offset > limit
        if old:
            most = settings.max_transfer_count_on_message_in_disk
            most_bytes = settings.max_transfer_bytes_on_message_in_disk
        else:
            most = settings.max_transfer_count_on_message_in_memory
            most_bytes = settings.max_transfer_bytes_on_message_in_memory
        count = min(max(1, min(pull.messages_most, most)), available)
        # The entry behind the answer counts, too: it decides which broker is suggested.
        read_count = min(count + 1, available)
        last = get64(first + (read_count - 1) * ENTRY_BYTES)
        if (log_end - last > limit) != old:
            return False
        found = check_records(
            first, count, log, base, commitlog.min_offset, log_end, pull.queue_id, pull.queue_offset, most_bytes, &total
        )
        if found == NOT_PLAIN or total < FIXED_BYTES:
            return False
        # Not before all else is known: what is left to the handler is checked there.
        if self._host is not None and not is_allowed(
            self._access, self._host, &self._fields, NULL, 0, CODE, topic, name
        ):
            return False
        record = <const uint8_t*>log.buf + (offset - base)
        stored_ms = get64(
            record + STORE_TIMESTAMP_AT + (IPV6_MORE if get32(record + SYS_FLAG_AT) & BORN_HOST_V6 else 0)
        )
        if pull.sys_flag & COMMITS:
            self._commit(name, topic, pull.queue_id, pull.commit_offset)
        self._requests[CODE] += 1
        if stored_ms > 0:
            age = max(0, <int64_t>self._clock() - stored_ms)
        self._count(topic, pull.queue_id, name, count, total, 0, age)
        if self._slave_read:
            suggested = slow_id if old else home_id
        size = self._write_head(head, suggested, pull.queue_offset + count, low, high, total, pull.opaque)
        if found == ONE_RUN and not link.draining:
            # One long view of the log goes straight to the socket; see `Pulling.pull`.
            link.unsent.append(PyBytes_FromStringAndSize(head, size))
            link.unsent.append(memoryview(buffer)[offset - base:offset - base + total])
        else:
            answer = PyBytes_FromStringAndSize(NULL, size + total)
            out = text_out(PyBytes_AS_STRING(answer), head, size)
            for n in range(count):
                record = <const uint8_t*>log.buf + (get64(first + n * ENTRY_BYTES) - base)
                record_bytes = <int32_t>get32(first + n * ENTRY_BYTES + 8)
                out = text_out(out, <const char*>record, record_bytes)
            link.unsent.append(answer)
        link.unsent_bytes += size + total
        return True

    cdef int64_t _write_head(
        self, char* start, int64_t suggested, int64_t following, int64_t low, int64_t high, int64_t body_bytes,
        int64_t opaque
    ) noexcept:
        """Write what is in front of the records of an answer; returns its length.

        Args:
            start: where to; ANSWER_BYTES and END_MOST together are enough.
            suggested: `suggestWhichBrokerId`.
            following: `nextBeginOffset`.
            low: `minOffset`.
            high: `maxOffset`.
            body_bytes: of all records.
            opaque: the request's.
        """
        cdef char* out = start + 8
        cdef int64_t size
        out = text_out(out, b'{"code":0,"extFields":{"suggestWhichBrokerId":"', 47)
        out += write_decimal(out, suggested)
        out = text_out(out, b'","nextBeginOffset":"', 21)
        out += write_decimal(out, following)
        out = text_out(out, b'","maxOffset":"', 15)
        out += write_decimal(out, high)
        out = text_out(out, b'","minOffset":"', 15)
        out += write_decimal(out, low)
        out = text_out(out, b'"},"flag":1,"language":"JAVA","opaque":', 39)
        out += write_decimal(out, opaque)
        out = text_out(out, PyBytes_AS_STRING(self._answer_end), PyBytes_GET_SIZE(self._answer_end))
        size = out - start
        put32(<uint8_t*>start, <uint32_t>(size - 4 + body_bytes))
        put32(<uint8_t*>start + 4, <uint32_t>(size - 8))
        return size
