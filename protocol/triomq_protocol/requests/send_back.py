"""Messages sent back for another delivery: code 36 (docs/protocol/broker-api.md §9)."""

from triomq_protocol.wire.header import Header, Int32, Int64


class ConsumerSendMsgBackRequest(Header, kw_only=True):
    """Header of CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    bname: str | None = None
