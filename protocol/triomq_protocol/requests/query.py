"""Looking up messages: codes 12 and 33 (docs/protocol/broker-api.md §6)."""

from triomq_protocol.wire.header import Header, Int32, Int64

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
INDEX_TYPE_UNIQUE = "U"
"""Ext field in addition to the header of code 12: `true` if `key` is a UNIQ_KEY."""


class QueryMessageRequest(Header, kw_only=True):
    """Header of QUERY_MESSAGE (12); timestamps are store times in ms.

    The type of index is RocketMQ 5's: None for keys, `INDEX_TYPE_UNIQUE` for ids that clients give.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None


class QueryMessageResponse(Header, kw_only=True):
    """Answer header of 12, also of "not found" (both 0)."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequest(Header, kw_only=True):
    """Header of VIEW_MESSAGE_BY_ID (33): a physical offset."""

    offset: Int64
