"""Plain sends that join a batch: the same by both ways, and the same bytes as any other send of the message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import triomq
from triomq import errors
from triomq._producer import compiled, plain_sends
from triomq._producer.attempts.outgoing import properties_text
from triomq_protocol.java_text import utf8
from triomq_protocol.record import layout
from triomq_protocol.record.batch import encode_batch_element

MESSAGE_MAX, BATCH_MAX, COUNT_MAX, BODY_MAX = 200, 700, 6, 100
STAMP = "A" * 28
RESULT = triomq.SendResult(triomq.SendStatus.SEND_OK, "", "", triomq.MessageQueue("T", "b", 0), 7, None, "r", False)
TEXTS = st.one_of(
    st.sampled_from(
        ["a", "key-1", "a b", "", " ", "a|b", "a||b", "a&b", "\x01", "x\x02", "é", "\ud800", "\x7f", "0" * 150]
    ),
    st.text(max_size=8),
)
MESSAGES = st.builds(
    triomq.Message,
    st.sampled_from(["T", "T", "T", "U"]),
    st.one_of(st.binary(max_size=BODY_MAX + 1), st.sampled_from(["text", None, bytearray(b"x")])),
    tags=st.none() | TEXTS,
    keys=st.none() | TEXTS | st.lists(TEXTS, max_size=2),
    properties=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    flag=st.sampled_from([0, 0, 1, -1, 2**31 - 1, -(2**31), 2**31, True, "1", 10**30]),
    delay_level=st.sampled_from([0, 0, 0, 3, None]),
    wait_store_ok=st.sampled_from([True, True, False, 1]),
)


class Callback:
    def __init__(self):
        self.results = []

    def on_success(self, result):
        self.results.append(result)

    def on_exception(self, error):
        raise AssertionError(error)


class Run:
    """One twin with all it is given."""

    def __init__(self, twin, *, window=(1000, 10_000), adds_properties=False, wait_store_ok=True):
        self.window = twin.Window(*window)
        self.reserved = 0xFFFD
        self.joins = twin.Joins(
            self.window,
            message_type=triomq.Message,
            callback_of=lambda callback: callback,
            properties_of=self.properties_of,
            reserve_keys=self.reserve_keys,
            now=lambda: 1.5,
            body_bytes_max=BODY_MAX,
            message_bytes_max=MESSAGE_MAX,
            batch_bytes_max=BATCH_MAX,
            messages_max=COUNT_MAX,
            adds_properties=adds_properties,
        )
        self.adds_properties = adds_properties
        self.wait_store_ok = wait_store_ok
        self.batch = self.begin()

    def begin(self):
        return self.joins.begin(("T", None), "target", "link", 3.0, 0.0, wait_store_ok=self.wait_store_ok)

    def properties_of(self, message, unique_key):
        message.check_parts(BODY_MAX)
        if message.properties and "alone" in message.properties:
            return None
        return utf8(properties_text(message, unique_key, {"INSTANCE_ID": "n"} if self.adds_properties else None))

    def reserve_keys(self, count):
        first, self.reserved = self.reserved, (self.reserved + count) & 0xFFFF
        return STAMP, first

    def join(self, message, callback=None, queue=None):
        try:
            return self.joins.join(message, callback, queue)
        except errors.MQError as error:
            return str(error)


@pytest.mark.skipif(not compiled.BUILT, reason="no compiled module in this installation")
@settings(max_examples=400, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=12), adds=st.booleans(), safe=st.booleans(), most=st.integers(1, 12))
@example(messages=[triomq.Message("T", b"x", tags="t", keys="k")] * 12, adds=False, safe=True, most=12)
def test_the_compiled_and_the_plain_way_do_the_same(messages, adds, safe, most):
    from triomq._producer.compiled import sends

    runs = [Run(twin, window=(most, 300), adds_properties=adds, wait_store_ok=safe) for twin in (plain_sends, sends)]
    seen = []
    for run in runs:
        callbacks = [Callback() for _ in messages]
        outcomes = [run.join(message, callback) for message, callback in zip(messages, callbacks, strict=True)]
        batch = run.batch
        counts = batch.size_bytes, batch.plain_count, batch.plain_body_bytes, run.window.count, run.window.size_bytes
        kept = [(send.message, send.unique_key, send.started) for send in batch.sends]
        elements = batch.elements()
        batch.end(RESULT, [f"at{n}" for n in range(len(kept))], None, None)
        left = run.window.count, run.window.size_bytes, batch.ended
        seen.append((outcomes, counts, kept, elements, left, [callback.results for callback in callbacks]))
    assert seen[0] == seen[1]
    outcomes, counts, kept, elements, left, results = seen[0]
    assert len(kept) == outcomes.count(True) == counts[1]
    assert left == (0, 0, len(kept))
    own = {"INSTANCE_ID": "n"} if adds else None
    assert elements == b"".join(
        encode_batch_element(message.body, utf8(properties_text(message, key, own)), message.flag)
        for message, key, _ in kept
    )
    assert len(elements) == counts[0] < BATCH_MAX
    assert [key for _, key, _ in kept] == [f"{STAMP}{0xFFFD + n & 0xFFFF:04X}" for n in range(len(kept))]
    assert [each for every in results for each in every] == [
        triomq.SendResult(RESULT.status, key, f"at{n}", RESULT.queue, 7 + n, None, "r", False)
        for n, (_, key, _) in enumerate(kept)
    ]


async def test_messages_that_do_not_join(sends_twin):
    run = Run(sends_twin)

    class Mine(triomq.Message):
        pass

    plain = triomq.Message("T", b"x")
    for message in (
        Mine("T", b"x"),
        triomq.Message("U", b"x"),
        triomq.Message(["T"], b"x"),
        triomq.Message("T", b"x" * (BODY_MAX + 1)),
        triomq.Message("T", b"x", delay_level=1),
        triomq.Message("T", b"x", wait_store_ok=False),
        triomq.Message("T", b"x", properties={"alone": "1"}),
        triomq.Message("T", b"x", keys="k" * MESSAGE_MAX),
    ):
        assert run.join(message) is False
    assert run.join(plain, queue=RESULT.queue) is False
    assert run.join(plain, queue=["no queue"]) is False
    assert isinstance(run.join(triomq.Message("T", b"x", tags="a||b")), str)
    assert run.window.count == run.batch.plain_count == 0
    assert [run.join(plain) for _ in range(COUNT_MAX + 1)] == [True] * COUNT_MAX + [False]
    run.joins.open.clear()
    assert run.join(plain) is False


async def test_an_id_is_used_once(sends_twin):
    run = Run(sends_twin)
    plain = triomq.Message("T", b"x")
    assert run.join(plain)
    assert run.join(triomq.Message("T", b"x", properties={"alone": "1"})) is False
    assert run.join(plain)
    first = run.batch
    run.batch = run.begin()
    assert run.join(plain)
    assert [send.unique_key[-4:] for send in (*first.sends, *run.batch.sends)] == ["FFFD", "FFFE", "0003"]


async def test_a_callback_that_fails_and_one_that_takes_the_rest(sends_twin):
    run = Run(sends_twin)
    taken, failed, later = [], [], []

    class Failing(Callback):
        def on_success(self, result):
            raise ValueError(result.queue_offset)

    class Later(Callback):
        def on_success(self, result):
            return result.message_id

    class Taking(Callback):
        def on_success(self, result):
            taken.extend(run.batch.rest())

    for callback in (Failing(), Later(), Taking(), Callback()):
        assert run.join(triomq.Message("T", b"xx"), callback)
    run.batch.end(
        RESULT,
        ["a"] * 4,
        lambda send, error: failed.append((send.unique_key[-4:], repr(error))),
        lambda send, found: later.append((send.unique_key, found)),
    )
    assert failed == [("FFFD", "ValueError(7)")]
    assert later == [(STAMP + "FFFE",) * 2]
    assert [send.unique_key[-4:] for send in taken] == ["0000"]
    assert (run.window.count, run.window.size_bytes) == (1, 2)
    assert run.batch.rest() == []


@pytest.mark.skipif(not compiled.BUILT, reason="no compiled module in this installation")
def test_the_layout_is_that_of_the_protocol():
    from triomq._producer.compiled.sends import LAYOUT

    head = layout.BATCH_ELEMENT_HEAD
    names = ("size", "magic", "body_crc", "flag", "body_length")
    assert (
        dict(zip(names, range(0, head.size, 4), strict=True))
        | {
            "BODY_AT": layout.BATCH_ELEMENT_BODY_AT,
            "FIXED_BYTES": layout.BATCH_ELEMENT_FIXED_BYTES,
        }
        == LAYOUT
    )


def test_the_environment_leaves_it_unused():
    for pure, state in (("1", "unwanted"), ("0", "used")):
        done = subprocess.run(
            [sys.executable, "-c", "from triomq._producer import compiled; print(compiled.STATE)"],
            env=os.environ | {"TRIOMQ_PURE": pure},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == (state if compiled.BUILT else "missing")
