"""The compiled request of a lone send has the bytes of the template's, or there is none."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import triomq
from triomq import errors
from triomq._producer import compiled, plain_sends
from triomq._producer.attempts.outgoing import properties_text
from triomq._producer.attempts.send_template import SendTemplate

pytestmark = pytest.mark.skipif(not compiled.BUILT, reason="no compiled modules")

TEMPLATE = SendTemplate(
    producer_group="g-é", topic="T", queue_id=3, broker_name='b"', default_topic="TBW102", default_topic_queue_nums=4
)
TEXTS = st.one_of(
    st.none(),
    st.sampled_from(
        ["a", "key-1", '"', "\\", "/<>'", "a b", "", "a|b", "a&b", "\x01", "é", "\ud800", "\x7f", "0" * 5000]
    ),
    st.text(max_size=8),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8),
)
MESSAGES = st.builds(
    triomq.Message,
    st.just("T"),
    st.binary(min_size=1, max_size=50),
    tags=TEXTS,
    keys=TEXTS | st.lists(st.sampled_from(["a", "b"]), max_size=2),
    properties=st.none() | st.just({}) | st.just({"a": "b"}),
    flag=st.sampled_from([0, 0, False]),
    delay_level=st.sampled_from([0, 0, 0, 3, False, None]),
    wait_store_ok=st.sampled_from([True, True, False, 1]),
)
KEYS = st.text("0123456789ABCDEF", min_size=1, max_size=56)


@given(MESSAGES, KEYS, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
@example(triomq.Message("T", b"x", tags="t", keys="k"), "A" * 32, 1_700_000_000_000, 0)
@example(triomq.Message("T", b"x"), "A" * 32, 0, 9)
def test_same_bytes_or_none(message, unique_key, born_ms, opaque):
    from triomq._producer.compiled import sends

    frame = sends.lone_frame(TEMPLATE.parts, message, unique_key, born_ms, opaque)
    try:
        message.check_parts()
        whole = TEMPLATE.encode(opaque, born_ms, properties_text(message, unique_key), message.body)
    except errors.MQError:
        assert frame is None
        return
    assert frame in (None, whole)
    texts = [text for text in (message.tags, message.keys) if text is not None]
    if message.properties is None and message.delay_level == 0 and message.wait_store_ok is True:
        assert (frame is not None) is all(
            isinstance(text, str) and 0 < len(text) <= 4096 and text.isascii() and text.isprintable()
            and not set(text) & set(' "&\\|')
            for text in texts
        )  # fmt: skip


def test_python_leaves_it_to_the_template():
    assert plain_sends.lone_frame(TEMPLATE.parts, triomq.Message("T", b"x"), "A", 1, 2) is None


@pytest.mark.parametrize(("born_ms", "opaque"), [(-1, 0), (0, -1)])
def test_numbers_that_are_none(born_ms, opaque):
    from triomq._producer.compiled import sends

    assert sends.lone_frame(TEMPLATE.parts, triomq.Message("T", b"x"), "A", born_ms, opaque) is None
