"""How long the hot codecs take, in microseconds: `python tests/protocol/measure_codecs.py`.

The figures after the names are what the broker and the client were designed for, on two quiet cores with Python 3.11.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

from triomq_protocol import properties, record, tags
from triomq_protocol.command import Command, decode_json_command
from triomq_protocol.frame import FrameDecoder
from triomq_protocol.requests import (
    PullMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
    encode_pull_answer_head,
    encode_pull_request,
    encode_send_answer,
    encode_send_request_v2,
)

PROPERTIES = "KEYS\x01k1\x02UNIQ_KEY\x017F0000017ADB5FFD2B27682054930000\x02WAIT\x01true\x02TAGS\x01TagA"
BODY = bytes(1024)
MSG_ID = "7F00000100004E8F0000000000000000"
SEND = {
    "producer_group": "PG_bench", "topic": "TopicBench", "queue_id": 2, "sys_flag": 0, "born_timestamp": 1795236502206,
    "flag": 0, "properties": PROPERTIES,
}  # fmt: skip
PULL = {
    "consumer_group": "CG1", "topic": "TopicBench", "queue_id": 3, "queue_offset": 12345, "max_msg_nums": 32,
    "sys_flag": 2, "commit_offset": 0, "suspend_timeout_millis": 15000, "sub_version": 1795236505970,
    "broker_name": "broker-a",
}  # fmt: skip
BOUNDS = {"suggest_which_broker_id": 0, "next_begin_offset": 123456, "min_offset": 0, "max_offset": 234567}


def show(name: str, target_us: float, call: Callable[[], object], *, number: int = 20000, per: int = 1) -> None:
    best_us = min(timeit.repeat(call, number=number, repeat=5)) / number / per * 1e6
    print(f"{best_us:8.3f}  (target {target_us:g})  {name}")


def main() -> None:
    decoder = FrameDecoder()
    frame = encode_send_request_v2(7, body=BODY, broker_name="broker-a", **SEND)  # type: ignore[arg-type]
    (request,) = decoder.feed(frame)
    answer = encode_send_answer(request, MSG_ID, 3, 123456)
    pull = encode_pull_request(1, **PULL)  # type: ignore[arg-type]
    header = frame[8 : 8 + int.from_bytes(frame[4:8], "big")]
    chunk, answers = frame * 64, answer * 64

    show("decode a 310 frame, typed header", 2.0, lambda: decoder.feed(frame)[0].header(SendMessageRequestV2))
    show("the same, 64 in a chunk, each", 2.0, number=300, per=64,
         call=lambda: [command.header(SendMessageRequestV2) for command in decoder.feed(chunk)])  # fmt: skip
    show("frames alone, 64 in a chunk, each", 1.2, lambda: decoder.feed(chunk), number=300, per=64)
    show("  of which JSON header", 0.5, lambda: decode_json_command(header))
    show("encode a send's answer", 1.0, lambda: encode_send_answer(request, MSG_ID, 3, 123456))
    show("encode a pull's answer head", 1.0,
         lambda: encode_pull_answer_head(request, 0, "FOUND", body_bytes=32768, **BOUNDS))  # fmt: skip
    show("decode a pull frame, typed header", 2.0, lambda: decoder.feed(pull)[0].header(PullMessageRequest))
    show("client: encode a 310 request", 2.5,
         lambda: encode_send_request_v2(7, body=BODY, broker_name="broker-a", **SEND))  # type: ignore[arg-type]  # fmt: skip
    show("client: decode its answer", 1.2, lambda: decoder.feed(answer)[0].header(SendMessageResponse))
    show("the same, 64 in a chunk, each", 1.2, number=300, per=64,
         call=lambda: [command.header(SendMessageResponse) for command in decoder.feed(answers)])  # fmt: skip
    show("client: encode a pull", 2.5, lambda: encode_pull_request(1, **PULL))  # type: ignore[arg-type]
    show("any command by the canonical encoder", 12,
         lambda: Command.request(310, SendMessageRequestV2(**SEND), body=BODY).encode())  # type: ignore[arg-type]  # fmt: skip
    show_records()
    show_texts()
    show_large_body()


def show_records() -> None:
    host, text = record.pack_host("127.0.0.1", 1234), PROPERTIES.encode()

    def encode() -> bytes:
        return record.encode_record(b"TopicBench", 2, BODY, text, flag=0, sys_flag=0, born_timestamp=1795236502206,
                                    born_host=host, store_host=host)  # fmt: skip

    data = encode()
    many = data * 32
    show("encode a record of 1 KiB with its CRC", 2.2, encode)
    show("  of which CRC", 0.25, lambda: record.crc32(BODY))
    show("view a record", 1.0, lambda: record.RecordView(data))
    show("iterate over 32 records, each", 1.0, lambda: list(record.iter_records(many)), number=1000, per=32)
    show("check a record", 3.0, lambda: record.check_record(data))


def show_texts() -> None:
    key = "7F0000017ADB5FFD2B27682054930000"
    show("hash of 45 characters", 2.0, lambda: tags.java_hash("TopicTest0001" + key))
    show("hash of topic#UNIQ_KEY, prefix remembered", 1.2, lambda: tags.java_hash_with_prefix("TopicTest000#", key))
    show(
        "properties as the broker stores them", 1.0, lambda: properties.broker_properties(PROPERTIES, "DefaultCluster")
    )
    show("one property", 0.6, lambda: properties.get_property(PROPERTIES, "UNIQ_KEY"))
    show("all properties", 1.0, lambda: properties.decode_properties(PROPERTIES))


def show_large_body() -> None:
    frame = Command.request(310, body=bytes(15 << 20)).encode()
    decoder, start, out = FrameDecoder(), time.perf_counter(), []
    for at in range(0, len(frame), 65536):
        out += decoder.feed(frame[at : at + 65536])
    assert len(out) == 1
    print(f"{(time.perf_counter() - start) * 1e3:8.1f} ms for a body of 15 MiB in pieces of 64 KiB")


if __name__ == "__main__":
    main()
