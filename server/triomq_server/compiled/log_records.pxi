# Records as they lie in the log.

cdef enum:
    TRANSACTION = 3 << 2    # in the sysFlag
    COMMITTED = 2 << 2
    QUEUES = 64             # that functions keep apart while they go through records

cdef struct Record:
    const uint8_t* body
    const uint8_t* topic
    const uint8_t* properties
    int64_t size
    int64_t body_bytes
    int64_t topic_bytes
    int64_t properties_bytes
    int64_t timestamp
    uint32_t sys_flag
    int32_t queue_id


cdef struct QueueName:
    const uint8_t* topic        # NULL: none
    int64_t topic_bytes
    int32_t queue_id


cdef bint read_record(const uint8_t* data, int64_t at, int64_t end, int64_t base, Record* found) noexcept nogil:
    """Whether a whole record lies there; its body's checksum is not compared."""
    cdef const uint8_t* record = data + at
    cdef int64_t fixed = BODY_LENGTH_AT
    if end - at < FIXED_BYTES:
        return False
    found.size = <int32_t>get32(record)
    if get32(record + 4) != MAGIC or found.size < FIXED_BYTES or found.size > end - at:
        return False
    if get64(record + PHYSICAL_OFFSET_AT) != base + at:
        return False
    found.sys_flag = get32(record + SYS_FLAG_AT)
    if found.sys_flag & BORN_HOST_V6:
        fixed += IPV6_MORE
    if found.sys_flag & STORE_HOST_V6:
        fixed += IPV6_MORE
    if found.size < fixed + 7:
        return False
    found.body_bytes = <int32_t>get32(record + fixed)
    found.body = record + fixed + 4
    if found.body_bytes < 0 or found.body_bytes > found.size - fixed - 7:
        return False
    found.topic_bytes = found.body[found.body_bytes]
    found.topic = found.body + found.body_bytes + 1
    if found.topic_bytes > found.size - fixed - 7 - found.body_bytes:
        return False
    found.properties_bytes = found.size - fixed - 7 - found.body_bytes - found.topic_bytes
    found.properties = found.topic + found.topic_bytes + 2
    if found.properties_bytes > 0x7FFF or (found.properties[-2] << 8 | found.properties[-1]) != found.properties_bytes:
        return False
    found.timestamp = get64(record + STORE_TIMESTAMP_AT + (IPV6_MORE if found.sys_flag & BORN_HOST_V6 else 0))
    found.queue_id = <int32_t>get32(record + QUEUE_ID_AT)
    return True


cdef inline bint enters_queue(const Record* record) noexcept nogil:
    return not record.sys_flag & TRANSACTION or record.sys_flag & TRANSACTION == COMMITTED


cdef inline int place_of(const Record* record) noexcept nogil:
    """Which of `QUEUES` places belongs to the record's queue, among others."""
    cdef uint32_t last = record.topic[record.topic_bytes - 1] if record.topic_bytes else 0
    return (<uint32_t>record.queue_id + <uint32_t>record.topic_bytes + last) % QUEUES


cdef inline bint is_queue_of(const QueueName* name, const Record* record) noexcept nogil:
    """Whether a record belongs to this queue."""
    return (
        name.topic != NULL
        and name.queue_id == record.queue_id
        and name.topic_bytes == record.topic_bytes
        and memcmp(name.topic, record.topic, record.topic_bytes) == 0
    )


cdef inline void name_queue_of(QueueName* name, const Record* record) noexcept nogil:
    """Let a name be that of a record's queue; it lies in the log."""
    name.topic = record.topic
    name.topic_bytes = record.topic_bytes
    name.queue_id = record.queue_id
