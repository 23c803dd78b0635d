"""The property string of a message: name 0x01 value 0x02 ... (messages.md sections 2 and 3)."""

from collections.abc import Mapping

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQ_KEY = "UNIQ_KEY"
CLUSTER = "CLUSTER"


def encode_properties(properties: Mapping[str, str]) -> str:
    """The property string in the mapping's order, without a final separator; "" for none."""
    raise LookupError


def decode_properties(text: str | None) -> dict[str, str]:
    """The properties of a string; segments without name or value are dropped, later duplicates win."""
    raise LookupError


def encode_properties_bytes(properties: Mapping[str, str]) -> bytes:
    """`encode_properties` as UTF-8."""
    raise LookupError


def get_property(text: str, name: str) -> str | None:
    """The value `decode_properties` would give for one name, without a dict."""
    raise LookupError


def broker_properties(text: str | None, cluster: str) -> str:
    """What a broker stores for a plain message: WAIT removed, CLUSTER appended, the rest untouched and in order.

    A CLUSTER sent by the client is replaced.
    """
    raise LookupError


def append_property(text: str, name: str, value: str) -> str:
    """Add a property at the end of a property string that does not hold that name."""
    raise LookupError


def remove_property(text: str, name: str) -> str:
    """Cut every segment of that name out of a property string."""
    raise LookupError
