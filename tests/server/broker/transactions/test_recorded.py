"""Transactions of a real 4.9.7 broker, played again: each record in the log, and the request to the producer, byte for
byte."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import attrs
import pytest

from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import encode_properties
from triomq_protocol.record.layout import BORN_TIMESTAMP_AT, FIXED_BYTES
from triomq_protocol.requests.heartbeat import HeartbeatData, ProducerData
from triomq_protocol.requests.send import SendMessageRequestV2
from triomq_protocol.requests.transaction import EndTransactionRequest
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.transactions.check_back import CheckBack
from triomq_server.config import BrokerConfig
from triomq_server.store import NewRecord

FIRST = 111_904
"""Where the first half message of the recording was in the log."""


@pytest.fixture
def config(config: BrokerConfig) -> BrokerConfig:
    """A log file that holds the filler before the recorded messages."""
    return attrs.evolve(config, store=attrs.evolve(config.store, mapped_file_size_commit_log=1 << 20))


class Recording:
    """The recorded records by name, and a broker that has a log as long as the recorded one had."""

    def __init__(self, desk: Any, link: Any, vectors: Path) -> None:
        self.desk, self.link = desk, link
        cases = json.loads((vectors / "messages.json").read_text())["records"]
        self.cases: dict[str, Any] = {case["name"]: case for case in cases}
        exchanges = json.loads((vectors / "exchanges.json").read_text())["cases"]
        self.exchanges: dict[str, Any] = {case["name"]: case for case in exchanges}
        link.peer_host = socket.inet_aton("127.0.0.1") + (42804).to_bytes(4, "big")
        filler = NewRecord("Filler", 0, bytes(FIRST - FIXED_BYTES - len("Filler")), b"")
        assert desk.broker.store.append(filler).end_offset == FIRST

    async def send_half(self, name: str, queue_id: int, stored_ms: int) -> None:
        """Send a half message as the recorded producer did."""
        case = self.cases[name]
        self.desk.clock.now_ms = stored_ms
        header = SendMessageRequestV2(
            producer_group="PG_tx", topic="TopicTx", default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=queue_id, sys_flag=4, born_timestamp=case["decoded"]["bornTimestamp"], flag=0,
            properties=encode_properties(case["sentByClient"]["propertiesAfterSend"]), reconsume_times=0,
        )  # fmt: skip
        body = bytes.fromhex(case["sentByClient"]["bodyHex"])
        answer = await self.desk.ask(RequestCode.SEND_MESSAGE_V2, header, body=body, link=self.link)
        assert answer.code == 0

    async def end(self, offset: int, physical_offset: int, kind: int, at_ms: int, *, check: bool = False) -> None:
        self.desk.clock.now_ms = at_ms
        header = EndTransactionRequest(
            producer_group="PG_tx", tran_state_table_offset=offset, commit_log_offset=physical_offset,
            commit_or_rollback=kind, from_transaction_check=check, msg_id="x",
        )  # fmt: skip
        answer = await self.desk.ask(RequestCode.END_TRANSACTION, header)
        assert (answer.code, answer.remark) == (0, None if kind == 8 else "not set any response code")

    def stored_ms(self, name: str) -> int:
        return int(self.cases[name]["decoded"]["storeTimestamp"])

    def assert_stored(self, name: str) -> None:
        """The record at the recorded place has the recorded bytes; of an op message all except its born time."""
        expected = bytearray.fromhex(self.cases[name]["recordHex"])
        place = self.cases[name]["decoded"]["commitLogOffset"]
        found = self.desk.broker.store.record_at(place)
        assert found is not None, name
        ours = bytearray(found)
        if name.startswith("rec_op"):
            born = slice(BORN_TIMESTAMP_AT, BORN_TIMESTAMP_AT + 8)
            ours[born] = expected[born] = bytes(8)
        assert bytes(ours) == bytes(expected), name


async def test_records_and_requests_are_those_of_a_real_broker(desk: Any, vectors: Path, client_link: Any) -> None:
    link = client_link()
    recording = Recording(desk, link, vectors)
    check = CheckBack(desk.broker, desk.transactions)
    desk.broker.config.transaction_time_out = 3000
    heartbeat = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="PG_tx")])
    await desk.ask(RequestCode.HEART_BEAT, body=heartbeat.encode(), link=link)

    await recording.send_half("rec_tx_COMMIT_MESSAGE_2", 0, recording.stored_ms("rec_tx_COMMIT_MESSAGE_2") - 50)
    await recording.send_half("rec_tx_ROLLBACK_MESSAGE_1", 1, recording.stored_ms("rec_tx_ROLLBACK_MESSAGE_1"))
    await recording.end(0, FIRST, 8, recording.stored_ms("rec_tx_COMMIT_MESSAGE_2"))
    # Java wrote this op message 40 ms after the message itself.
    await recording.send_half("rec_tx_UNKNOW_1", 0, recording.stored_ms("rec_tx_UNKNOW_1"))
    await recording.end(1, 112_201, 12, recording.stored_ms("rec_op_2"))
    for name in ("rec_tx_ROLLBACK_MESSAGE_1", "rec_tx_COMMIT_MESSAGE_2", "rec_tx_UNKNOW_1", "rec_op_2"):
        recording.assert_stored(name)

    desk.clock.now_ms = recording.stored_ms("rec_tx_UNKNOW_2")
    await check._check_once()
    recording.assert_stored("rec_tx_UNKNOW_2")
    (asked,) = link.notified
    (expected,) = FrameDecoder().feed(
        bytes.fromhex(recording.exchanges["39_client_from_master__oneway_0"]["requestHex"])
    )
    assert (asked.code, asked.flag, asked.language_name) == (expected.code, expected.flag, expected.language_name)
    assert asked.fields == expected.fields
    assert asked.body == expected.body

    desk.clock.now_ms = recording.stored_ms("rec_tx_UNKNOW_3")
    await check._check_once()
    recording.assert_stored("rec_tx_UNKNOW_3")
    await recording.end(4, 113_640, 8, recording.stored_ms("rec_tx_UNKNOW_4"), check=True)
    recording.assert_stored("rec_tx_UNKNOW_4")


async def test_the_end_of_an_unknown_transaction_is_refused_as_recorded(desk: Any, vectors: Path) -> None:
    cases = json.loads((vectors / "exchanges.json").read_text())["cases"]
    exchanges = {case["name"]: case for case in cases}
    case = exchanges["raw_end_tx_bad"]
    assert await desk.frame(bytes.fromhex(case["requestHex"])) == bytes.fromhex(case["responseHex"])
    unknown = exchanges["37_client_to_master__oneway_1"]
    assert await desk.frame(bytes.fromhex(unknown["requestHex"])) is None
