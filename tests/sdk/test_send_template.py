"""Requests from a template are the very bytes the protocol's encoder writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triomq._identity import UniqueKeys
from triomq._send_template import SendTemplate
from triomq_protocol.message_id import decode_unique_id
from triomq_protocol.requests.send import encode_send_request_v2

names = st.text(st.sampled_from("ab%|_-0123456789"), min_size=1) | st.just("1111111111") | st.just("1111111112")


@given(
    names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.text(),
    st.binary(max_size=50),
)
def test_same_bytes(group, topic, broker, queue_id, opaque, born, properties, body):
    same = {
        "producer_group": group,
        "topic": topic,
        "queue_id": queue_id,
        "broker_name": broker,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
    }
    expected = encode_send_request_v2(
        opaque, **same, sys_flag=0, born_timestamp=born, flag=0, properties=properties, body=body
    )
    assert SendTemplate(**same).encode(opaque, born, properties, body) == expected


def test_unique_keys_stay_unique_over_milliseconds_and_months():
    day_ms = 86_400_000
    times = [t for day in range(70) for t in [1_700_000_000_000 + day * day_ms] * 3]
    keys = UniqueKeys("10.1.2.3", lambda: times[0])
    made = [keys.next(time) for time in [*times, *times]]
    assert len(set(made)) == len(made)
    parts = [decode_unique_id(key) for key in made]
    assert [part.counter for part in parts] == list(range(len(made)))
    assert {part.ip for part in parts} == {bytes([10, 1, 2, 3])}
    assert len({part.instance for part in parts}) == 1
    # Four bytes hold all of a month, but only read as an unsigned number. A clock set back is an accident: no true times.
    assert all(0 <= part.millis_of_month & 0xFFFFFFFF < 31 * day_ms + 7_200_000 for part in parts[: len(times)])
