"""Records of one queue as a pull brings them, and many of them at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from stored_records import encode_record

from triomq import MessageQueue, PullResult, PullStatus
from triomq_protocol.properties import encode_properties_bytes

QUEUE = MessageQueue("T", "broker-a", 3)
V4, V6 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", bytes(range(16)) + b"\x00\x00\x2a\x9f"


def record(offset: int, body: bytes = b"x", properties: bytes = b"", **changes: object) -> bytes:
    """A stored record of :data:`QUEUE`."""
    fields: dict[str, object] = {
        "flag": 0, "sys_flag": 0, "born_timestamp": 1_700_000_000_000 + offset, "born_host": V4, "store_host": V4,
        "queue_offset": offset, "physical_offset": offset * 1000, "store_timestamp": 1_700_000_000_500 + offset,
        "reconsume_times": offset % 3, **changes,
    }  # fmt: skip
    return encode_record(b"T", 3, body, properties, **fields)  # type: ignore[arg-type]


class PullsInRuns:
    """The runs of a fake consumer: one pull after the other."""

    async def _pull_run(
        self, queue: MessageQueue, offset: int, go_on: Callable[[PullResult], int], *, max_messages: int, **options: Any
    ) -> PullResult:
        while True:
            result: PullResult = await self.pull(queue, offset, max_messages=max_messages, **options)  # type: ignore[attr-defined]
            if result.status is not PullStatus.FOUND:
                return result
            offset, max_messages = result.next_offset, go_on(result)
            if not max_messages:
                result.taken = True
                return result


NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "a", "a longer name of a property"])
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(NAMES, TEXT, max_size=6).map(encode_properties_bytes)
ODD = st.lists(st.sampled_from([b"TAGS", b"\x01", b"\x02", b"a", b"KEYS\x01k", b"\xff", b"\xc3\xa9"]), max_size=8).map(
    b"".join
)
RECORDS = st.builds(
    lambda body, properties, tail, born, store: (body, properties + tail, born, store),
    st.binary(max_size=40),
    st.one_of(PROPERTIES, ODD),
    st.sampled_from([b"", b"\x02"]),
    st.sampled_from([V4, V6]),
    st.sampled_from([V4, V6]),
)
