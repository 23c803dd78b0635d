"""The property string of a message: name 0x01 value 0x02 ... (docs/protocol/messages.md §2 and §3; upstream
`MessageConst`)."""

from collections.abc import Mapping
from functools import lru_cache

from triomq_protocol.java_text import map_capacity, map_hash, natural_number, utf8
from triomq_protocol.names import START_DELIVER_TIME, TIMER_OUT, TIMER_PROPERTIES

_KEPT_CHARACTERS = 64
"""Names of at most this many characters have their hash kept; senders choose names, also for messages that are refused
for the length of one."""


def encode_properties(properties: Mapping[str, str | None]) -> str:
    """The property string in the mapping's order, without a final separator; "" for none. None values are left out."""
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items() if value is not None])


def encode_properties_bytes(properties: Mapping[str, str | None]) -> bytes:
    """`encode_properties` as UTF-8; a lone surrogate becomes `?`, as in Java."""
    return utf8(encode_properties(properties))


def encode_properties_as_java(properties: Mapping[str, str]) -> bytes:
    """The properties in the order in which Java's `HashMap` has them, as UTF-8: the bytes that a 4.9 broker stores."""
    mask = map_capacity(len(properties)) - 1
    ordered = sorted(properties.items(), key=lambda item: _map_hash(item[0]) & mask)
    return utf8("\x02".join([f"{name}\x01{value}" for name, value in ordered]))


def _map_hash(name: str) -> int:
    return _kept_map_hash(name) if len(name) <= _KEPT_CHARACTERS else map_hash(name)


_kept_map_hash = lru_cache(1024)(map_hash)


def decode_properties(text: str | None) -> dict[str, str]:
    """The properties of a string; segments without name or value are dropped, later duplicates win."""
    if not text:
        return {}
    out = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            out[name] = value
    return out


def get_property(text: str, name: str) -> str | None:
    """The value `decode_properties` would give for one name, without a dict."""
    wanted = name + "\x01"
    start = text.rfind(wanted)
    if start < 0:
        return None
    value_at = start + len(wanted)
    if (start and text[start - 1] != "\x02") or text[value_at : value_at + 1] in ("", "\x02"):
        # Part of another name or value, or empty: an earlier segment may be meant.
        start = _find_segment(text, wanted)
        if start < 0:
            return None
        value_at = start + len(wanted)
    end = text.find("\x02", value_at)
    return text[value_at:] if end < 0 else text[value_at:end]


def _find_segment(text: str, wanted: str) -> int:
    """Start of the last segment that begins with `wanted` and has a value; -1 if there is none."""
    limit = len(text)
    while True:
        at = text.rfind(wanted, 0, limit)
        if at < 0:
            return -1
        value_at = at + len(wanted)
        starts = at == 0 or text[at - 1] == "\x02"
        if starts and value_at < len(text) and text[value_at] != "\x02":
            return at
        limit = value_at - 1


def remove_property(text: str, name: str) -> str:
    """Cut every segment of that name out of a property string; the others stay as they are and in order."""
    wanted = name + "\x01"
    if wanted not in text:
        return text
    return "\x02".join([segment for segment in text.split("\x02") if not segment.startswith(wanted)])


def append_property(text: str, name: str, value: str) -> str:
    """Add a property at the end of a property string that does not hold that name."""
    if not text:
        return f"{name}\x01{value}"
    if text[-1] == "\x02":
        return f"{text}{name}\x01{value}"
    return f"{text}\x02{name}\x01{value}"


def broker_properties(text: str | None, cluster: str, values: Mapping[str, str] | None = None) -> str:
    """The properties a broker stores for a plain message: WAIT removed, CLUSTER appended, the rest unchanged, in order.

    A CLUSTER sent by the client is replaced. Segments without name or value, and all but the last of one name, are left
    out: not all clients skip them. Java writes the same set in HashMap order; no reader relies on it.

    Args:
        text: as sent.
        cluster: the value of CLUSTER.
        values: what `decode_properties` gives for it, if the caller has that already.
    """
    if not text:
        return f"CLUSTER\x01{cluster}"
    if values is None:
        values = decode_properties(text)
    if len(values) <= text.count("\x02", 0, -1):
        text = encode_properties(values)
        if not text:
            return f"CLUSTER\x01{cluster}"
    if "WAIT\x01" in text:
        text = _cut(text, "WAIT\x01")
    if "CLUSTER\x01" in text:
        text = _cut(text, "CLUSTER\x01")
    if not text:
        return f"CLUSTER\x01{cluster}"
    if text[-1] == "\x02":
        return f"{text}CLUSTER\x01{cluster}"
    return f"{text}\x02CLUSTER\x01{cluster}"


def _cut(text: str, wanted: str) -> str:
    """Remove the segments that begin with `wanted`; the usual single one without splitting everything."""
    at = text.find(wanted)
    if text.find(wanted, at + 1) >= 0 or (at and text[at - 1] != "\x02"):
        return "\x02".join([segment for segment in text.split("\x02") if not segment.startswith(wanted)])
    end = text.find("\x02", at)
    if end < 0:
        return text[: at - 1] if at else ""
    return text[:at] + text[end + 1 :]


def has_timer(properties: Mapping[str, str]) -> bool:
    """Whether a broker of RocketMQ 5 would keep a message with these properties until a time."""
    return not TIMER_PROPERTIES.isdisjoint(properties) and TIMER_OUT not in properties


def starts_later(properties: Mapping[str, str], now_ms: int) -> bool:
    """Whether a broker of Alibaba Cloud would keep a message with these properties until a time."""
    text = properties.get(START_DELIVER_TIME)
    if text is None:
        return False
    due_ms = natural_number(text, 64)
    return due_ms is None or due_ms > now_ms
