"""Requests from a template are the very bytes the protocol's encoder writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq._cluster.identity import UniqueKeys
from triomq._producer.attempts.send_template import SendTemplate
from triomq_protocol.errors import LocalProtocolError
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


def test_a_request_that_does_not_fit_a_frame_is_our_mistake():
    template = SendTemplate(
        producer_group="g", topic="T", queue_id=0, broker_name="b", default_topic="TBW102", default_topic_queue_nums=4
    )
    with pytest.raises(LocalProtocolError, match="do not fit a frame"):
        template.encode(1, 5, "x" * 0xFFFFFF, b"")


def test_unique_keys_stay_unique_over_milliseconds_and_months():
    day_ms = 86_400_000
    times = [t for day in range(70) for t in [1_700_000_000_000 + day * day_ms] * 3]
    keys = UniqueKeys("10.1.2.3", lambda: times[0])
    made = [keys.next(time) for time in [*times, *times]]
    assert len(set(made)) == len(made)
    # Address, process id, instance, milliseconds of the month, counter: 8, 4, 8, 8 and 4 hex digits.
    assert [int(key[28:], 16) for key in made] == list(range(len(made)))
    assert {key[:8] for key in made} == {"0A010203"}
    assert len({key[12:20] for key in made}) == 1
    # Four bytes hold all of a month, but only read as an unsigned number. A clock set back is an accident: its times
    # are not true.
    assert all(int(key[20:28], 16) < 31 * day_ms + 7_200_000 for key in made[: len(times)])
