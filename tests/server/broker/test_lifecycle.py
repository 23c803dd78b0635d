"""A broker's start, its roles, a full disk, and its stop."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.view import iter_records
from triomq_protocol.replication import encode_report
from triomq_protocol.wire.command import Command
from triomq_server.broker.addresses import bind_host
from triomq_server.disk import StoreLocked
from triomq_server.disk.config_files import ConfigFileDamaged

UNAVAILABLE = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
    "[CL: {0:5.2f} CQ: {0:5.2f} INDEX: {0:5.2f}], messages are put to the slave, "
    "message store has been shut down, etc."
)


# -- start and stop


async def test_tables_survive_a_restart(open_broker: Any) -> None:
    disk = MemoryDisk()
    update = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "7"}
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await peer.put()
        await peer.pull(consumer_group="Made")
        await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))
    async with open_broker(disk=disk, autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false") as broker:
        peer = await broker.peer()
        assert (await peer.pull(consumer_group="Made")).code == 0
        assert (await peer.put()).fields["queueOffset"] == "1"
        answer = await peer.ask(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        assert answer.body == b'{"offsetTable":{"T1@CG":{0:7}}}'


async def test_offsets_are_written_every_five_seconds(open_broker: Any) -> None:
    update = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "7"}
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))
        assert not broker.disk.exists("/store/config/consumerOffset.json")
        await trio.sleep(6)
        assert b"{0:7\n" in broker.disk.read("/store/config/consumerOffset.json")


async def test_a_killed_brokers_messages_and_topics_are_there(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for n in range(20):
            await peer.put(body=b"%d" % n)
        left = broker.disk.after_kill()
    async with open_broker(disk=left, autoCreateTopicEnable="false") as broker:
        peer = await broker.peer()
        answer = await peer.pull()
        assert [record.body for record in iter_records(answer.body)] == [b"%d" % n for n in range(20)]
        assert (await peer.put()).fields["queueOffset"] == "20"


@pytest.mark.parametrize("after_s", [0, 0.001, 3])
async def test_a_start_that_is_cancelled_leaves_the_directory_free(open_broker: Any, after_s: float) -> None:
    """A silent name server delays the start; the cancel is before or during the wait."""
    network, disk = MemoryNetwork(), MemoryDisk()
    await network.listen("127.0.0.1", 9876)
    start = trio.current_time()
    with trio.move_on_after(after_s) as scope:
        async with open_broker(network=network, disk=disk, namesrvAddr="127.0.0.1:9876"):
            raise AssertionError("not before six seconds")
    assert scope.cancelled_caught
    assert trio.current_time() - start < after_s + 2
    async with open_broker(network=network, disk=disk) as broker:
        assert (await (await broker.peer()).put()).code == 0


async def test_what_a_stop_could_not_write_is_logged(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        await (await broker.peer()).put()
        disk.failing_syncs = True
    why = "[Errno 5] the memory disk was set to fail"
    assert broker.not_written == [f"/store/config/consumerOffset.json: {why}", f"the store in /store: {why}"]
    disk.failing_syncs = False
    async with open_broker(disk=disk) as broker:
        await (await broker.peer()).put()
    assert broker.not_written == []


async def test_the_stop_is_bounded(open_broker: Any) -> None:
    """A name server that has fallen silent, a held pull and an idle link: two seconds are enough."""
    network = MemoryNetwork()
    async with open_broker(network=network) as broker:
        peer = await broker.peer()
        await peer.put()
        await peer.send(peer.pull_request(offset=1, sys_flag=6))
        await trio.sleep(1)
        start = trio.current_time()
    assert trio.current_time() - start < 2
    assert not broker.disk.exists("/store/abort")


async def test_a_second_broker_on_the_same_directory_is_refused(open_broker: Any) -> None:
    async with open_broker() as broker:
        with pytest.RaisesGroup(StoreLocked, flatten_subgroups=True):
            async with open_broker(disk=broker.disk, listenPort=12000):
                pass
        assert (await (await broker.peer()).put()).code == 0


@pytest.mark.parametrize("compat", ["safe", "4.9"])
async def test_a_topic_that_its_table_has_lost_is_found_by_its_messages(
    open_broker: Any, compat: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_broker(compat=compat) as broker:
        peer = await broker.peer()
        await peer.put("Old")
        before = broker.disk.read("/store/config/topics.json")
        await peer.put("New", queue_id=3)
        await peer.put("Deleted")
        await peer.ask(Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "Deleted"}))
    broker.disk.write("/store/config/topics.json", before)
    async with open_broker(disk=broker.disk, compat=compat) as broker:
        peer = await broker.peer()
        assert (await peer.pull("New", queue_id=3)).code == (0 if compat == "safe" else 17)
        assert (await peer.pull("Deleted")).code == 17
    assert ("recovered from their queues: New" in caplog.text) == (compat == "safe")
    assert (b"New" in broker.disk.read("/store/config/topics.json")) == (compat == "safe")


async def test_a_damaged_table_without_backup_is_refused(open_broker: Any) -> None:
    disk = MemoryDisk()
    disk.make_directory("/store/config")
    disk.write("/store/config/topics.json", b"{broken")
    disk.write("/store/config/topics.json.bak", b"{broken too")
    with pytest.RaisesGroup(ConfigFileDamaged, flatten_subgroups=True):
        async with open_broker(disk=disk):
            pass


async def test_a_taken_port_is_an_error(open_broker: Any) -> None:
    network = MemoryNetwork()
    await network.listen("127.0.0.1", 10909)
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with open_broker(network=network):
            pass


async def test_ports(open_broker: Any) -> None:
    """The main and the fast listener, and the HA listener which reads an 8-byte report and begins to send."""
    async with open_broker() as broker:
        fast = await broker.peer(10909)
        assert (await fast.put()).code == 0
        refused = await fast.pull()
        assert (refused.code, refused.remark) == (3, " request type 11 not supported")
        slave = await broker.network.dial("127.0.0.1:10912")
        await slave.send_all(encode_report(0))
        assert len(await slave.receive_some(100)) >= 12


async def test_a_closed_links_held_pull_is_dropped(open_broker: Any) -> None:
    async with open_broker(pullThreadPoolQueueCapacity=1) as broker:
        gone, there = await broker.peer(), await broker.peer()
        await gone.put()
        await gone.send(gone.pull_request(offset=1, sys_flag=6))
        await trio.sleep(1)
        await gone.stream.aclose()
        await trio.sleep(1)
        start = trio.current_time()
        await there.pull(offset=1, sys_flag=6, suspend_timeout_millis=5000)
        assert trio.current_time() - start == pytest.approx(5), "there was capacity to hold it"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1", "127.0.0.1"), ("192.0.2.1", "0.0.0.0"), ("::1", "::1"), ("fd00::2", "::"), ("a.example", "0.0.0.0"),
        ("localhost", "127.0.0.1"),
    ],
)  # fmt: skip
def test_what_is_listened_on(address: str, host: str) -> None:
    assert bind_host(address) == host


# -- roles


async def test_a_slave_refuses_messages_and_serves_the_rest(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        for _ in range(3):
            await peer.put()
    async with open_broker(disk=disk, brokerRole="SLAVE", brokerId=1) as broker:
        peer = await broker.peer()
        for request in (peer.put_request(), peer.put_request("New"), peer.put_request(body=b"", code=320, batch=False)):
            answer = await peer.ask(request)
            assert answer.code == 14
            assert answer.remark == UNAVAILABLE.format(_ratio(answer.remark))
        assert (await peer.pull("New")).code == 17, "a slave makes no topics of its own"
        assert (await peer.pull()).code == 0
        update = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "2"}
        assert (await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))).code == 0
        await peer.pull(sys_flag=5, commit_offset=3)
        query = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
        answer = await peer.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=query))
        assert answer.fields == {"offset": "2"}, "a slave does not commit with a pull"


def _ratio(remark: str | None) -> float:
    assert remark is not None
    return float(remark.split("[CL: ")[1].split()[0])


@pytest.mark.parametrize(("offset", "next_offset"), [(9, 9), (-3, -3)])
async def test_a_slave_sends_readers_with_impossible_offsets_to_the_master(
    open_broker: Any, offset: int, next_offset: int
) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        await (await broker.peer()).put()
    async with open_broker(disk=disk, brokerRole="SLAVE", brokerId=1) as broker:
        answer = await (await broker.peer()).pull(offset=offset)
        assert answer.code == 20
        assert answer.fields == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "1"
        }  # fmt: skip
    async with open_broker(disk=disk, brokerRole="SLAVE", brokerId=1, offsetCheckInSlave="true") as broker:
        assert (await (await broker.peer()).pull(offset=offset)).code == 21


async def test_sync_master_without_slave_stores_and_answers_so(open_broker: Any) -> None:
    async with open_broker(brokerRole="SYNC_MASTER") as broker:
        peer = await broker.peer()
        answer = await peer.put()
        assert (answer.code, answer.remark) == (11, None)
        assert answer.fields["queueOffset"] == "0"
        assert (await peer.put(properties="WAIT\x01false")).code == 0
        assert (await peer.put(properties="WAIT\x01nonsense")).code == 0
        await peer.send(peer.put_request(oneway=True))
        assert (await peer.pull(offset=3)).code == 0


async def test_sync_master_waits_for_a_slave_and_no_longer_than_its_timeout(open_broker: Any) -> None:
    async with open_broker(brokerRole="SYNC_MASTER", slaveTimeout=2000) as broker:
        slave = await broker.network.dial("127.0.0.1:10912")
        await slave.send_all(encode_report(0))
        await trio.sleep(1)
        peer = await broker.peer()
        first = await peer.send(peer.put_request())
        await trio.sleep(1)
        await slave.send_all(encode_report(10_000))  # more than there is: this report is not accepted
        start = trio.current_time()
        answer = await peer.receive()
        assert (answer.opaque, answer.code) == (first, 12)
        assert trio.current_time() - start == pytest.approx(1, abs=0.1)


async def test_sync_master_is_released_by_a_report(open_broker: Any) -> None:
    async with open_broker(brokerRole="SYNC_MASTER") as broker:
        slave = await broker.network.dial("127.0.0.1:10912")
        await slave.send_all(encode_report(0))
        await trio.sleep(1)
        peer = await broker.peer()
        await peer.send(peer.put_request())
        await peer.send(peer.put_request(oneway=True))
        await trio.sleep(0.5)
        received = 0
        while received < 100:
            received += len(await slave.receive_some(4096))
        view = await (await broker.peer()).pull(offset=1)
        (record,) = iter_records(view.body)
        end = record.physical_offset + record.size_bytes
        await slave.send_all(encode_report(end))
        start = trio.current_time()
        answer = await peer.receive()
        assert answer.code == 0
        assert trio.current_time() - start < 0.1
        opaque = await peer.send(peer.pull_request())
        assert (await peer.receive()).opaque == opaque, "the one-way send is not answered"


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 10)])
async def test_sync_flush(open_broker: Any, fails: bool, code: int) -> None:
    async with open_broker(flushDiskType="SYNC_FLUSH", syncFlushTimeout=1500) as broker:
        peer = await broker.peer()
        broker.disk.failing_syncs = fails
        start = trio.current_time()
        answer = await peer.put()
        waited = trio.current_time() - start
        broker.disk.failing_syncs = False
        assert answer.code == code
        assert answer.fields["queueOffset"] == "0"
        assert waited <= 1.6


# -- a disk that fails, and a full one


@pytest.mark.parametrize(
    ("compat", "ends"), [("safe", "Here: the disk refuses the log: the memory disk was set to fail"), ("4.9", ", etc.")]
)
async def test_a_sender_learns_that_the_disk_fails(open_broker: Any, compat: str, ends: str) -> None:
    """The used fractions in the remark say nothing of it."""
    async with open_broker(flushDiskType="SYNC_FLUSH", compat=compat) as broker:
        peer = await broker.peer()
        broker.disk.failing_syncs = True
        await peer.put()
        answer = await peer.put()
        assert answer.code == 14
        assert answer.remark.endswith(ends)
        broker.disk.failing_syncs = False
        await trio.sleep(6)
        assert (await peer.put()).code == 0


async def test_a_broker_on_a_full_disk_refuses_messages_and_serves_reads(open_broker: Any) -> None:
    disk = MemoryDisk(capacity_bytes=6 << 20)
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        stored = 0
        while (answer := await peer.put(body=bytes(100_000))).code == 0:
            stored += 1
            assert stored < 100
        assert answer.code == 14
        assert answer.remark.startswith("service not available now. ")
        assert answer.remark.endswith(", etc. Here: no space left for the store")
        assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert stored > 5
        offset = 0
        while offset < stored:
            pulled = await peer.pull(offset=offset)
            assert pulled.code == 0
            offset = int(pulled.fields["nextBeginOffset"])
        assert not disk.unreserved_writes()
