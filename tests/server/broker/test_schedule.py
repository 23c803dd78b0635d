"""Delayed messages: when and how they are delivered, also after restarts, kills and changes of the role
(docs/protocol/store.md §19)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from memory_network import LaggingNetwork, MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import decode_properties
from triomq_protocol.record.view import RecordView, iter_records
from triomq_protocol.replication import encode_report
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire import fastjson
from triomq_protocol.wire.command import Command
from triomq_server.broker import serve_broker
from triomq_server.broker.admin.ha import CHANGE_ROLE
from triomq_server.broker.schedule import Schedule
from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv
from triomq_server.replication.metadata import delay_offsets_request
from triomq_server.store.entry_layout import ENTRY

NAMESRV = "127.0.0.1:9876"
SLAVE_PORT = 10921
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "listenPort": SLAVE_PORT, "namesrvAddr": NAMESRV}
OFFSETS_FILE = "/store/config/delayOffset.json"


def delayed(level: int | str, body: bytes = b"later", **properties: str) -> dict[str, Any]:
    pairs = {"TAGS": "TagA", "KEYS": "k1", "WAIT": "true", "DELAY": str(level), **properties}
    return {"body": body, "properties": "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())}


async def records(peer: Any, topic: str = "T1", **fields: Any) -> list[RecordView]:
    answer = await peer.pull(topic, **fields)
    return list(iter_records(answer.body)) if answer.code == 0 else []


async def bodies(peer: Any, topic: str = "T1", **fields: Any) -> list[bytes]:
    return [record.body for record in await records(peer, topic, **fields)]


async def held(peer: Any, offset: int = 0) -> tuple[bytes, float]:
    """The body that a waiting pull gets, and how long it waited."""
    start = trio.current_time()
    answer = await peer.pull("T1", offset, sys_flag=6, suspend_timeout_millis=7_200_000)
    assert answer.code == 0
    return next(iter_records(answer.body)).body, trio.current_time() - start


async def progress(peer: Any) -> bytes:
    answer = await peer.ask(Command.request(RequestCode.GET_ALL_DELAY_OFFSET))
    return bytes(answer.body)


# -- when


@pytest.mark.parametrize(("level", "delay_s"), [(1, 1), (3, 10), (5, 60)])
async def test_a_message_is_delivered_at_its_time(open_broker: Any, level: int, delay_s: int) -> None:
    async with open_broker() as broker:
        await (await broker.peer()).put(**delayed(level))
        await trio.sleep(delay_s - 0.5)
        body, waited_s = await held(await broker.peer())
    assert body == b"later"
    assert 0.49 <= waited_s <= 0.51


async def test_levels_do_not_wait_for_each_other(open_broker: Any) -> None:
    async with open_broker(messageDelayLevel="1s 90s  3m 1h") as broker:
        peer = await broker.peer()
        start = trio.current_time()
        for level in (99, 3, 2, 1):
            await peer.put(**delayed(level, b"%d" % min(level, 4)))
        for number, (level, at_s) in enumerate([(1, 1), (2, 90), (3, 180), (4, 3600)]):
            await trio.sleep_until(start + at_s - 0.5)
            body, waited_s = await held(await broker.peer(), number)
            assert body == b"%d" % level
            assert 0.49 <= waited_s <= 0.51


@pytest.mark.parametrize("levels", [1, 10])
async def test_long_messages_are_delivered_few_in_a_turn(
    levels: int, open_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = 0
    begun = trio.Event()
    append = Schedule._append

    def counted(schedule: Schedule, record: Any) -> int | None:
        nonlocal delivered
        delivered += 1
        begun.set()
        return append(schedule, record)

    monkeypatch.setattr(Schedule, "_append", counted)
    delays = " ".join(["1s"] * levels)
    async with open_broker(mappedFileSizeCommitLog=64 << 20, messageDelayLevel=delays) as broker:
        peer = await broker.peer()
        for number in range(20):
            await peer.put(**delayed(1 + number % levels, bytes(3 << 20)))
        await begun.wait()
        assert delivered <= 2
        while delivered < 20:
            before = delivered
            await trio.lowlevel.checkpoint()
            assert delivered - before <= 2


async def test_an_idle_level_is_woken(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for number in range(3):
            await peer.put(**delayed(1, b"%d" % number))
            assert (await held(peer, number))[0] == b"%d" % number
            await trio.sleep(30)


async def test_messages_of_a_level_come_in_order_and_none_is_missed(open_broker: Any) -> None:
    sent = [b"%d" % number for number in range(500)]
    async with open_broker() as broker:
        peer = await broker.peer()
        for number, body in enumerate(sent):
            await peer.put(**delayed(1, body))
            if number % 100 == 0:
                await trio.sleep(0.4)
        await trio.sleep(2)
        found: list[bytes] = []
        while more := await bodies(peer, offset=len(found)):
            found += more
    assert found == sent


async def test_levels_made_shorter_count_for_what_waits(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk, messageDelayLevel="1h") as broker:
        await (await broker.peer()).put(**delayed(1))
    async with open_broker(disk=disk, messageDelayLevel="30s") as broker:
        peer = await broker.peer()
        await trio.sleep(0.1)
        assert await bodies(peer) == [b"later"]


@pytest.mark.parametrize("step_s", [3600, -3600])
async def test_a_clock_that_is_set(step_s: int, open_broker: Any) -> None:
    """Set forward, it makes messages due; set back, it would make them wait for too long, so they are due as well."""
    stepped = [0]
    network, disk = MemoryNetwork(), MemoryDisk()
    async with open_broker(network=network, disk=disk) as idle:
        config = idle.config
    async with trio.open_nursery() as nursery:
        serve = partial(
            serve_broker,
            config,
            disk=disk,
            dial=network.dial,
            listen=network.listen,
            clock=lambda: 1_795_000_000_000 + int(trio.current_time() * 1000) + stepped[0],
        )
        await nursery.start(serve)
        peer = await idle.peer()
        await peer.put(**delayed(4))
        await trio.sleep(2)
        assert await bodies(peer) == []
        stepped[0] = step_s * 1000
        await trio.sleep(1.1)
        assert await bodies(peer) == [b"later"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("step_ms", [-1, -900])
async def test_a_clock_that_is_set_back_a_little_makes_nothing_due(step_ms: int, open_broker: Any) -> None:
    """Messages that arrive then are stored with the time of the last one before, so that times in the log stay in
    order."""
    stepped = [0]
    network, disk = MemoryNetwork(), MemoryDisk()
    async with open_broker(network=network, disk=disk) as idle:
        config = idle.config
    async with trio.open_nursery() as nursery:
        serve = partial(
            serve_broker,
            config,
            disk=disk,
            dial=network.dial,
            listen=network.listen,
            clock=lambda: 1_795_000_000_000 + int(trio.current_time() * 1000) + stepped[0],
        )
        await nursery.start(serve)
        peer = await idle.peer()
        await peer.put(**delayed(4, b"before"))
        stepped[0] = step_ms
        await peer.put(**delayed(5, b"after"))
        await trio.sleep(29)
        assert await bodies(peer) == []
        await trio.sleep(2)
        assert await bodies(peer) == [b"before"]
        await trio.sleep(31)
        assert await bodies(peer) == [b"before", b"after"]
        nursery.cancel_scope.cancel()


# -- as what


async def test_a_delivered_message_keeps_everything(open_broker: Any) -> None:
    async with open_broker(messageDelayLevel="1s 10s 1m") as broker:
        peer = await broker.peer()
        await peer.put(queue_id=2, flag=5, sys_flag=1, reconsume_times=4, **delayed(99, colour="green"))
        await trio.sleep(61)
        (record,) = await records(peer, queue_id=2)
        (waiting,) = await records(peer, "SCHEDULE_TOPIC_XXXX", queue_id=2)
    assert decode_properties(record.properties_text) == {
        "TAGS": "TagA", "KEYS": "k1", "WAIT": "true", "DELAY": "3", "colour": "green",
        "CLUSTER": "C1", "REAL_TOPIC": "T1", "REAL_QID": "2",
    }  # fmt: skip
    assert record.properties_text == waiting.properties_text
    assert (record.topic, record.queue_id, record.queue_offset, record.body) == ("T1", 2, 0, b"later")
    assert (record.flag, record.sys_flag, record.reconsume_times) == (5, 1, 4)
    assert (record.born_timestamp, record.born_host) == (waiting.born_timestamp, waiting.born_host)
    assert record.store_host == waiting.store_host
    assert record.store_timestamp == waiting.store_timestamp + 60_000


async def test_a_delivered_message_is_found_by_tag_and_by_key(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(**delayed(1))
        await trio.sleep(2)
        assert await bodies(peer, subscription="TagA") == [b"later"]
        assert await bodies(peer, subscription="TagB") == []
        fields = {"topic": "T1", "key": "k1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        answer = await peer.ask(Command.request(RequestCode.QUERY_MESSAGE, fields=fields))
        assert [record.topic for record in iter_records(answer.body)] == ["T1"]


async def test_level_zero_and_less_is_no_delay(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(**delayed(0, b"0"))
        await peer.put(**delayed(-3, b"-3"))
        assert await bodies(peer) == [b"0", b"-3"]


async def test_a_delayed_half_message_is_dropped_at_its_time_as_4_9_does(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients of 4.9 send none: they take the delay from a transactional message. Others may send as many as they like."""
    async with open_broker(compat="4.9") as broker:
        peer = await broker.peer()
        for _ in range(3):
            await peer.put(**delayed(1, b"half", TRAN_MSG="true"))
        await peer.put(**delayed(1, b"whole"))
        await trio.sleep(3)
        assert await bodies(peer) == [b"whole"]
        assert await bodies(peer, "RMQ_SYS_TRANS_HALF_TOPIC") == []
    lines = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(
        "1 delayed messages are dropped, for RMQ_SYS_TRANS_HALF_TOPIC; the last one is at log offset"
    )


# -- restarts


async def test_overdue_messages_are_delivered_at_the_start_once(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        for level in (1, 1, 2, 3):
            await peer.put(**delayed(level, b"%d" % level))
        await trio.sleep(2)
        assert await bodies(peer) == [b"1", b"1"]
    assert disk.read(OFFSETS_FILE) == b'{\n\t"offsetTable":{1:2\n\t}\n}'
    await trio.sleep(4)
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await trio.sleep(0.1)
        assert await bodies(peer) == [b"1", b"1", b"2"]
        await trio.sleep(10)
        assert await bodies(peer) == [b"1", b"1", b"2", b"3"]


async def test_49_waits_a_second_after_its_start(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        await (await broker.peer()).put(**delayed(1))
    await trio.sleep(5)
    async with open_broker(disk=disk, compat="4.9") as broker:
        peer = await broker.peer()
        await trio.sleep(0.9)
        assert await bodies(peer) == []
        await trio.sleep(0.2)
        assert await bodies(peer) == [b"later"]


async def test_a_kill_repeats_at_most_what_was_delivered_since_the_table_was_written(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(**delayed(1, b"old"))
        await trio.sleep(11)
        assert broker.disk.read(OFFSETS_FILE) == b'{\n\t"offsetTable":{1:1\n\t}\n}'
        await peer.put(**delayed(1, b"new"))
        await trio.sleep(2)
        await peer.put(**delayed(1, b"waits"))
        left = broker.disk.after_kill()
    async with open_broker(disk=left) as broker:
        peer = await broker.peer()
        await trio.sleep(2)
        assert await bodies(peer) == [b"old", b"new", b"new", b"waits"]


class SlowDisk(MemoryDisk):
    """Chores take `chore_s`, as in a worker thread: a cancel counts before one begins, not later."""

    chore_s = 0.0

    async def run(self, chore: Any) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await trio.sleep(self.chore_s)
            return chore()


@pytest.mark.parametrize("stop_s", [9.95, 10.05, 10.15, 10.25])
async def test_a_stop_while_the_table_is_written_repeats_nothing(open_broker: Any, stop_s: float) -> None:
    """Ten seconds after the start the log is flushed, then the table is written: 0.1 s each."""
    disk = SlowDisk()
    async with open_broker(disk=disk) as broker:
        peer, start = await broker.peer(), trio.current_time()
        for number in range(3):
            await peer.put(**delayed(1, b"%d" % number))
        await trio.sleep_until(start + 9.9)
        disk.chore_s = 0.1
        await peer.put("Other", body=b"something to flush")
        await trio.sleep_until(start + stop_s)
    disk.chore_s = 0.0
    assert disk.read(OFFSETS_FILE) == b'{\n\t"offsetTable":{1:3\n\t}\n}'
    async with open_broker(disk=disk) as broker:
        await trio.sleep(3)
        assert await bodies(await broker.peer()) == [b"0", b"1", b"2"]


async def test_a_power_failure_at_a_stop_loses_no_delayed_message(open_broker: Any) -> None:
    lefts: list[MemoryDisk] = []

    class Disk(MemoryDisk):
        stopping = False

        def replace(self, source: str, target: str) -> None:
            super().replace(source, target)
            if self.stopping and target == OFFSETS_FILE:
                lefts.extend(self.after_power_loss(random.Random(seed)) for seed in range(8))

    disk = Disk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await trio.sleep(10.1)  # the log is flushed every ten seconds
        await peer.put(**delayed(2))
        for path, file in disk.files.items():
            if "/commitlog/" in path and not isinstance(file, bytes):
                file.sync(0, file.size)  # the delayed message is on the disk, its copy is not
        await trio.sleep(6)
        assert await bodies(peer) == [b"later"]
        disk.stopping = True
    assert lefts
    for left in lefts:
        async with open_broker(disk=left) as broker:
            await trio.sleep(12)
            assert set(await bodies(await broker.peer())) == {b"later"}


async def test_a_stop_with_a_failed_disk_counts_no_delivery(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await peer.put(**delayed(1))
        await trio.sleep(2)
        assert await bodies(peer) == [b"later"]
        disk.failing_syncs = True
    assert fastjson.loads(disk.read(OFFSETS_FILE)) == {"offsetTable": {}}


@pytest.mark.parametrize(("text", "found"), [(b"{1:9}", []), (b"{1:-4}", [b"later"])])
async def test_a_table_that_lies_outside_of_the_queue_is_put_right(
    open_broker: Any, text: bytes, found: list[bytes]
) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        await (await broker.peer()).put(**delayed(1))
    disk.write(OFFSETS_FILE, b'{"offsetTable":' + text + b"}")
    await trio.sleep(5)
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await trio.sleep(1)
        assert await bodies(peer) == found
        await peer.put(**delayed(1, b"next"))
        await trio.sleep(1.1)
        assert await bodies(peer) == [*found, b"next"]


async def test_a_store_that_refuses_is_asked_again(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        await peer.put(body=b"x" * 100_000, **{k: v for k, v in delayed(2).items() if k != "body"})
        await trio.sleep(0.1)
        full = Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000")
        assert (await peer.ask(full)).code == 0
        await trio.sleep(10)
        assert len(await bodies(peer)) == 1
        await peer.ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=4194304"))
        await trio.sleep(0.2)
        assert [len(body) for body in await bodies(peer)] == [5, 100_000]


# -- damage

ENTRIES_FILE = "/store/consumequeue/SCHEDULE_TOPIC_XXXX/0/" + "0" * 20


async def test_a_damaged_entry_is_built_again_and_its_message_delivered(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for body in (b"0", b"1", b"2"):
            await peer.put(**delayed(1, body))
            await trio.sleep(0.3)
        entries = broker.disk.files[ENTRIES_FILE].buffer
        entries[ENTRY.size + 3] ^= 1  # the log offset
        entries[2 * ENTRY.size + 11] ^= 1  # the size
        await trio.sleep(2)
        assert await bodies(peer) == [b"0", b"1", b"2"]
        assert (await runtime(peer))["triomqEntriesRebuilt"] == "2"
    assert "entry 1 was damaged: built again" in caplog.text


async def test_a_damaged_record_is_passed_over_and_delivered_after_its_repair(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    log = "/store/commitlog/" + "0" * 20
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        for body in (b"first", b"second", b"third"):
            await peer.put(**delayed(1, body))
        at = disk.files[log].buffer.find(b"second")
        disk.files[log].buffer[at] ^= 1
        await trio.sleep(2)
        assert await bodies(peer) == [b"first", b"third"]
        assert (await runtime(peer))["triomqDelayedUndelivered"] == "1"
    assert "level 1 is damaged and cannot be delivered: queue offset 1" in caplog.text
    disk.files[log].buffer[at] ^= 1
    for _ in range(2):
        async with open_broker(disk=disk) as broker:
            peer = await broker.peer()
            await trio.sleep(2)
            assert await bodies(peer) == [b"first", b"third", b"second"]
            assert (await runtime(peer))["triomqDelayedUndelivered"] == "0"


async def runtime(peer: Any) -> dict[str, str]:
    return KVTable.decode((await peer.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))).body).table


# -- roles


@asynccontextmanager
async def name_server(network: MemoryNetwork) -> AsyncIterator[None]:
    config, _ = NamesrvConfig.from_properties({"kvConfigPath": "/nowhere/kvConfig.json"})
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_namesrv, config, listen=network.listen))
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("with_slave", [True, False])
async def test_a_master_that_has_lost_its_progress_takes_that_of_its_slave(
    with_slave: bool, open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    names = {"namesrvAddr": NAMESRV}
    async with name_server(network), AsyncExitStack() as stack:
        if with_slave:
            await stack.enter_async_context(open_broker(network=network, storePathRootDir="/slave", **SLAVE))
        async with open_broker(network=network, disk=disk, **names) as master:
            peer = await master.peer()
            for body in (b"0", b"1"):
                await peer.put(**delayed(1, body))
            await trio.sleep(30)  # until the slave has copied the progress
            assert await bodies(peer) == [b"0", b"1"]
            await peer.put(**delayed(3, b"2"))
        disk.remove(OFFSETS_FILE)
        disk.remove(OFFSETS_FILE + ".bak")
        async with open_broker(network=network, disk=disk, **names) as master:
            await trio.sleep(30)
            found = await bodies(await master.peer())
    assert found == [b"0", b"1", *([] if with_slave else [b"0", b"1"]), b"2"]
    assert ("taken from 1 slaves" in caplog.text) == with_slave
    assert ("are delivered again" in caplog.text) != with_slave


async def test_a_kill_before_the_progress_is_first_written_is_no_loss(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        await (await broker.peer()).put(**delayed(3))
        killed = disk.after_kill()
    async with open_broker(disk=killed) as broker:
        await trio.sleep(11)
        assert await bodies(await broker.peer()) == [b"later"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_progress_of_another_log_is_not_taken(open_broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its messages are others: what it has delivered does not concern those here."""
    network, disk, strangers = MemoryNetwork(), MemoryDisk(), MemoryDisk()
    names = {"namesrvAddr": NAMESRV}
    for files in (strangers, disk):
        async with open_broker(network=MemoryNetwork(), disk=files) as broker:
            peer = await broker.peer()
            for level, body in ((1, b"0"), (3, b"1")):
                await peer.put(**delayed(level, body))
            await trio.sleep(30 if files is strangers else 5)
    disk.remove(OFFSETS_FILE)
    disk.remove(OFFSETS_FILE + ".bak")
    async with name_server(network), open_broker(network=network, disk=strangers, **SLAVE):
        await trio.sleep(1)
        async with open_broker(network=network, disk=disk, **names) as master:
            await trio.sleep(30)
            found = await bodies(await master.peer())
    assert found == [b"0", b"0", b"1"]
    assert f"{SLAVE_PORT} is registered as a slave, but is not known to have a copy of this log" in caplog.text
    assert "are delivered again" in caplog.text


async def test_progress_is_taken_from_slaves_that_may_have_the_log_only(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    names = {"namesrvAddr": NAMESRV}
    async with name_server(network), open_broker(network=network, storePathRootDir="/slave", **SLAVE):
        async with open_broker(network=network, disk=disk, **names) as master:
            await (await master.peer()).put(**delayed(1, b"0"))
            await trio.sleep(30)
        disk.remove(OFFSETS_FILE)
        disk.remove(OFFSETS_FILE + ".bak")
        async with open_broker(network=network, disk=disk, haSlaveAddresses="192.0.2.1", **names) as master:
            await trio.sleep(30)
            assert await bodies(await master.peer()) == [b"0", b"0"]
    assert "are delivered again" in caplog.text


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_a_slave_delivers_when_it_has_become_the_master(open_broker: Any, role: str) -> None:
    network = MemoryNetwork()
    change = Command.request(CHANGE_ROLE, fields={"role": "ASYNC_MASTER", "force": "true"})
    async with name_server(network), open_broker(network=network, storePathRootDir="/slave", **SLAVE) as slave:
        at_slave = await slave.peer(SLAVE_PORT)
        async with open_broker(network=network, namesrvAddr=NAMESRV, brokerRole=role) as master:
            peer = await master.peer()
            await peer.put(**delayed(1, b"1"))
            await peer.put(**delayed(5, b"5"))
            await trio.sleep(25)
            assert await progress(peer) == b'{"offsetTable":{1:1}}'
            assert slave.disk.read("/slave/config/delayOffset.json") == b'{"offsetTable":{1:1}}'
        await trio.sleep(60)
        assert await bodies(at_slave) == [b"1"]
        answer = await at_slave.ask(change)
        assert answer.code == 0, answer.remark
        await trio.sleep(1)
        assert await bodies(at_slave) == [b"1", b"5"]
        assert (await at_slave.put(**delayed(1, b"again"))).code == 0
        await trio.sleep(1.1)
        assert await bodies(at_slave) == [b"1", b"5", b"again"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_slave_without_the_copies_delivers_when_it_has_become_the_master(
    open_broker: Any, restarted: bool
) -> None:
    """Another slave has them; a master that was just started does not know who has what it delivered before."""
    network, disk = MemoryNetwork(), MemoryDisk()
    slow = LaggingNetwork(network, 10912)
    change = Command.request(CHANGE_ROLE, fields={"role": "ASYNC_MASTER", "force": "true"})
    other = {**SLAVE, "brokerId": 2, "listenPort": 10931}
    async with name_server(network), AsyncExitStack() as stack:
        if not restarted:
            await stack.enter_async_context(open_broker(network=network, **other))
        slave = await stack.enter_async_context(open_broker(network=slow, storePathRootDir="/slave", **SLAVE))
        at_slave = await slave.peer(SLAVE_PORT)
        async with open_broker(network=network, disk=disk, namesrvAddr=NAMESRV) as master:
            peer = await master.peer()
            await trio.sleep(12)
            await peer.put(body=b"plain")
            await peer.put(**delayed(1))
            await trio.sleep(0.5)
            slow.lags = True
            await trio.sleep(23)
            assert await bodies(peer) == [b"plain", b"later"]
        if restarted:
            async with open_broker(network=network, disk=disk, namesrvAddr=NAMESRV):
                await trio.sleep(23)
        assert await bodies(at_slave, "SCHEDULE_TOPIC_XXXX") == [b"later"]
        answer = await at_slave.ask(change)
        assert answer.code == 0, answer.remark
        await trio.sleep(1)
        assert await bodies(at_slave) == [b"plain", b"later"]


async def test_a_slave_that_catches_up_takes_the_progress(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, storePathRootDir="/slave", **SLAVE) as slave,
        open_broker(network=network, namesrvAddr=NAMESRV) as master,
    ):
        peer = await master.peer()
        for number in range(60):  # one becomes due each second, also while the slave asks
            await peer.put(**delayed(1, b"%d" % number))
            await trio.sleep(1)
        written = slave.disk.read("/slave/config/delayOffset.json")
        assert int(written.removeprefix(b'{"offsetTable":{1:').removesuffix(b"}}")) > 45


async def told(peer: Any) -> tuple[int, bytes]:
    """What a slave of RocketMQ's gets for its request."""
    answer = await peer.ask(Command.request(RequestCode.GET_ALL_DELAY_OFFSET))
    return answer.code, bytes(answer.body)


async def test_rocketmqs_slaves_get_what_all_of_them_have(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        one, two = [await broker.network.dial("127.0.0.1:10912") for _ in range(2)]
        await peer.put(**delayed(1))
        await trio.sleep(2)
        whole = await peer.ask(delay_offsets_request())
        end = int(whole.fields["triomqLogEnd"])
        assert whole.body == b'{"offsetTable":{1:1}}'
        for slave, reported, expected in (
            (one, end, b"{}"),
            (two, 0, b"{}"),
            (two, end - 1, b"{}"),
            (two, end, b"{1:1}"),
        ):
            await slave.send_all(encode_report(reported))
            await trio.sleep(1)
            assert await told(peer) == (0, b'{"offsetTable":' + expected + b"}"), reported
    async with open_broker(disk=broker.disk) as broker:
        peer = await broker.peer()
        slave = await broker.network.dial("127.0.0.1:10912")
        assert (await told(peer))[0] == 1, "it had better keep what it knows"
        await slave.send_all(encode_report(end - 1))
        await trio.sleep(1)
        assert (await told(peer))[0] == 1
        await slave.send_all(encode_report(end))
        await trio.sleep(1)
        assert await told(peer) == (0, b'{"offsetTable":{1:1}}')


@pytest.mark.parametrize("compat", ["safe", "4.9"])
async def test_a_master_of_rocketmq_is_followed_at_once(open_broker: Any, compat: str) -> None:
    """It does not report which copies its table counts."""
    network = MemoryNetwork()
    slow = LaggingNetwork(network, 10912)
    async with (
        name_server(network),
        open_broker(network=slow, storePathRootDir="/slave", compat=compat, **SLAVE) as slave,
        open_broker(network=network, namesrvAddr=NAMESRV, compat="4.9") as master,
    ):
        await trio.sleep(12)
        slow.lags = True
        await (await master.peer()).put(**delayed(1))
        await trio.sleep(13)
        assert slave.disk.read("/slave/config/delayOffset.json") == b'{"offsetTable":{1:1}}'


async def test_a_master_that_becomes_a_slave_delivers_no_more(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(**delayed(2))
        assert (await peer.ask(Command.request(CHANGE_ROLE, fields={"role": "SLAVE"}))).code == 0
        await trio.sleep(10)
        assert await bodies(peer) == []
        assert "delayed messages wait" not in caplog.text, "it does not even try"
        assert (await peer.ask(Command.request(CHANGE_ROLE, fields={"role": "ASYNC_MASTER"}))).code == 0
        await trio.sleep(0.1)
        assert await bodies(peer) == [b"later"]


@pytest.mark.parametrize(
    "settings", [{"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}, {"compat": "4.9"}]
)
async def test_every_kind_of_master_delivers(open_broker: Any, settings: dict[str, str]) -> None:
    async with open_broker(**settings) as broker:
        peer = await broker.peer()
        for number in range(3):
            await peer.put(**delayed(1, b"%d" % number))
        await trio.sleep(10)
        assert await bodies(peer) == [b"0", b"1", b"2"]
