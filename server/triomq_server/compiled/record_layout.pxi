# Where a record has what: the layout of `triomq_protocol.record.layout`, with which a test compares `LAYOUT`.

cdef extern from *:
    """
    #define MAGIC 0xDAA320A7u
    """
    const uint32_t MAGIC

cdef enum:
    SIZE_AT = 0
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_TIMESTAMP_AT = 40
    BORN_HOST_AT = 48
    STORE_TIMESTAMP_AT = 56
    STORE_HOST_AT = 64
    RECONSUME_TIMES_AT = 72
    PREPARED_OFFSET_AT = 76
    BODY_LENGTH_AT = 84
    BODY_AT = 88
    FIXED_BYTES = 91        # of a record with nothing in it
    IPV6_MORE = 12          # bytes that a host takes more
    BORN_HOST_V6 = 1 << 4
    STORE_HOST_V6 = 1 << 5
    ENTRY_BYTES = 20         # of an entry of a queue

LAYOUT = {
    "size": SIZE_AT,
    "magic": MAGIC_AT,
    "body_crc": BODY_CRC_AT,
    "queue_id": QUEUE_ID_AT,
    "flag": FLAG_AT,
    "queue_offset": QUEUE_OFFSET_AT,
    "physical_offset": PHYSICAL_OFFSET_AT,
    "sys_flag": SYS_FLAG_AT,
    "born_timestamp": BORN_TIMESTAMP_AT,
    "born_host": BORN_HOST_AT,
    "store_timestamp": STORE_TIMESTAMP_AT,
    "store_host": STORE_HOST_AT,
    "reconsume_times": RECONSUME_TIMES_AT,
    "prepared_transaction_offset": PREPARED_OFFSET_AT,
    "body_length": BODY_LENGTH_AT,
}
