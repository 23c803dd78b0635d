"""Recorded answers of a real broker to hand-made requests, replayed in order against ours: the same frames."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from triomq_protocol.record.view import iter_records
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

# The names of the recorded broker.
NAMES = {"brokerClusterName": "VecCluster", "brokerName": "broker-raw", "listenPort": 21810}

# In the recording's order. Plain texts are requests whose answers were not kept, but which left a message in the log.
SEQUENCE = [
    "raw_create_topic",
    "raw_create_topic_readonly",
    "raw_send_ok",
    "raw_send_v1_ok",
    "auto-create",
    "raw_send_bad_queue",
    "raw_send_readonly",
    "raw_send_long_topic",
    "raw_send_empty_body",
    "no-properties",
    "raw_send_bad_number",
    "raw_send_long_properties",
    "raw_send_schedule_topic",
    "raw_send_negative_queue",
    "raw_pull_found",
    "raw_pull_not_found",
    "raw_pull_offset_too_large",
    "raw_pull_offset_negative",
    "raw_pull_tag_mismatch",
    "raw_pull_tag_match",
    "raw_pull_bad_queue",
    "raw_pull_no_subscription",
    "raw_pull_bad_tag_expression",
    "raw_update_offset",
    "raw_query_offset",
    "raw_query_offset_no_topic",
    "raw_max_offset",
    "raw_min_offset",
    "raw_search_offset",
    "raw_earliest",
    "raw_earliest_none",
    "raw_send_back_bad_group",
]

OTHER_TEXT = {"raw_send_bad_number"}
"""Answers that carry a Java exception: only the code counts (docs/protocol/remoting.md §6)."""

TIMES = {"raw_earliest", "raw_earliest_none"}
"""Answers whose only value is a store time."""


def cases(vectors: Path) -> dict[str, dict[str, Any]]:
    return {case["name"]: case for case in json.loads((vectors / "exchanges.json").read_text())["cases"]}


def decoded(frame: bytes) -> Command:
    (command,) = FrameDecoder().feed(frame)
    return command


def masked(frame: bytes, peer: str) -> tuple[bytes, list[tuple[Any, ...]]]:
    """A frame without what differs between two runs: the client's port, born host and store time of records."""
    command = decoded(frame)
    header_length = struct.unpack(">I", b"\0" + frame[5:8])[0]
    header = frame[8 : 8 + header_length]
    remark = command.remark or ""
    for word in remark.replace("[/", " ").replace("]", " ").split():
        if word.startswith("127.0.0.1:"):
            header = header.replace(word.encode(), peer.encode())
    records = [
        (r.queue_id, r.flag, r.queue_offset, r.physical_offset, r.sys_flag, r.born_timestamp, r.store_host,
         r.reconsume_times, r.body_crc, r.body, r.topic, r.properties, r.size_bytes)
        for r in iter_records(command.body)
    ]  # fmt: skip
    return header, records


async def test_answers_of_a_real_broker(open_broker: Any, vectors: Path) -> None:
    recorded = cases(vectors)
    async with open_broker(slaveReadEnable="false", mappedFileSizeCommitLog=8 << 20, **NAMES) as broker:
        peer = await broker.peer(21810)
        unrecorded = {
            "auto-create": peer.put_request("RawAuto", b"x", properties="TAGS\x01TagA\x02KEYS\x01rk"),
            "no-properties": peer.put_request("RawT", b"np", properties=None),
        }
        for name in SEQUENCE:
            if name in unrecorded:
                assert (await peer.ask(unrecorded[name])).code == 0
                continue
            case = recorded[name]
            await peer.stream.send_all(bytes.fromhex(case["requestHex"]))
            answer = await peer.receive_frame()
            expected = bytes.fromhex(case["responseHex"])
            if name in OTHER_TEXT:
                assert decoded(answer).code == decoded(expected).code, name
                assert decoded(answer).opaque == decoded(expected).opaque
            elif name in TIMES:
                ours, theirs = decoded(answer), decoded(expected)
                assert ours.code == theirs.code
                assert ours.fields is not None
                assert theirs.fields is not None
                assert ours.fields.keys() == theirs.fields.keys()
                assert len(ours.fields["timestamp"]) == len(theirs.fields["timestamp"]), name
            else:
                assert masked(answer, "p") == masked(expected, "p"), name


async def test_events_and_send_back_as_a_real_broker_stores_them(open_broker: Any, vectors: Path) -> None:
    """What the same requests leave in the log: the offset-moved event and the message given back."""
    recorded = cases(vectors)
    stored = {
        record["name"]: bytes.fromhex(record["recordHex"])
        for record in json.loads((vectors / "messages.json").read_text())["records"]
        if "recordHex" in record
    }
    async with open_broker(**NAMES) as broker:
        peer = await broker.peer(21810)
        for name in SEQUENCE:
            if name == "auto-create":
                await peer.put("RawAuto", b"x", properties="TAGS\x01TagA\x02KEYS\x01rk")
            elif name == "no-properties":
                await peer.put("RawT", b"np", properties=None)
            else:
                await peer.stream.send_all(bytes.fromhex(recorded[name]["requestHex"]))
                await peer.receive()
        events = await peer.pull("OFFSET_MOVED_EVENT", 1, max_msg_nums=2)
        delayed = await peer.pull("SCHEDULE_TOPIC_XXXX", 0, queue_id=2)
    ours = [*iter_records(events.body), *iter_records(delayed.body)]
    theirs = [next(iter_records(stored[f"rec_handmade_{number}"])) for number in (8, 9, 10)]
    for our, their in zip(ours, theirs, strict=True):
        assert our.properties == their.properties
        assert (our.topic, our.queue_id, our.queue_offset, our.physical_offset) == (
            their.topic, their.queue_id, their.queue_offset, their.physical_offset
        )  # fmt: skip
        assert (our.body, our.flag, our.sys_flag, our.reconsume_times, our.store_host) == (
            their.body, their.flag, their.sys_flag, their.reconsume_times, their.store_host
        )  # fmt: skip
    assert ours[0].born_host == theirs[0].born_host
    assert ours[2].born_timestamp == theirs[2].born_timestamp


@pytest.mark.parametrize("serialize", [0, 1])
async def test_serialization_follows_the_request(open_broker: Any, serialize: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        assert (await peer.ask(peer.put_request(serialize=serialize))).serialize == serialize
        assert (await peer.ask(peer.pull_request(serialize=serialize))).serialize == serialize
        assert (await peer.ask(peer.put_request("a b", serialize=serialize))).serialize == serialize
