"""A topic that is deleted and created again, with Java on either side: nothing new is hidden.

Our master continues its offsets; a Java master may begin at 0 again, and our slave follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import trio

from triomq_benchmarks.clusters.server_state import ask, log_end
from triomq_benchmarks.clusters.servers import Kind
from triomq_protocol.codes import RequestCode
from triomq_protocol.flags import PULL_SUBSCRIPTION
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.requests.send import SendMessageRequestV2
from triomq_protocol.wire.command import Command

TOPIC = "recreated"
LIMIT_S = 120.0
CREATE = {
    "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


def asked(address: str, command: Command) -> Command:
    return trio.run(ask, address, command)


def put(address: str, body: bytes) -> int:
    """Send a message; its queue offset."""
    header = SendMessageRequestV2(
        producer_group="PG", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
        born_timestamp=1_700_000_000_000, flag=0, properties="", reconsume_times=0,
    )  # fmt: skip
    answer = asked(address, Command.request(RequestCode.SEND_MESSAGE_V2, header, body=body))
    assert answer.code in (0, 11), answer.remark
    return int((answer.fields or {})["queueOffset"])


def pulled(address: str, offset: int) -> list[bytes]:
    header = PullMessageRequest(
        consumer_group="CG", topic=TOPIC, queue_id=0, queue_offset=offset, max_msg_nums=32, sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0, expression_type="TAG",
    )  # fmt: skip
    answer = asked(address, Command.request(RequestCode.PULL_MESSAGE, header))
    return [record.body for record in iter_records(answer.body)] if answer.code == 0 else []


def wait_until(good: Callable[[], bool], what: str) -> None:
    begin = time.monotonic()
    while not good():
        assert time.monotonic() - begin < LIMIT_S, what
        time.sleep(0.2)


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(
    ("leads", "follows"),
    [(Kind.OURS, Kind.JAVA), (Kind.JAVA, Kind.OURS)],
    ids=["java-slave-of-ours", "our-slave-of-java"],
)
def test_new_messages_are_served_everywhere(leads: Kind, follows: Kind, restarts: bool, servers: Any) -> None:
    base = f"recreated-{leads}-{follows}-{restarts}"
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(Kind.OURS, f"{base}-namesrv")).address
        master = stack.enter_context(servers.broker(leads, f"{base}-master", names, {}))
        host, _, port = master.address.rpartition(":")
        role = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"{host}:{int(port) + 1}"}
        slave = stack.enter_context(servers.broker(follows, f"{base}-slave", names, role))
        asked(master.address, Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=CREATE))
        assert [put(master.address, b"old %d" % n) for n in range(5)] == list(range(5))
        wait_until(lambda: pulled(slave.address, 0) != [], "the slave does not serve the topic")
        gone = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": TOPIC})
        assert asked(master.address, gone).code == 0
        if restarts:
            master.stop()
            master = stack.enter_context(servers.broker(leads, f"{base}-master", names, {}, int(port)))
        asked(master.address, Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=CREATE))
        new = [b"new %d" % n for n in range(8)]
        first, *_ = [put(master.address, body) for body in new]
        if leads is Kind.OURS:
            assert first == 5
        wait_until(lambda: log_end(slave.address) == log_end(master.address), "the slave does not catch up")
        wait_until(lambda: pulled(slave.address, first) == new, "the slave hides new messages")
        assert pulled(master.address, first) == new
