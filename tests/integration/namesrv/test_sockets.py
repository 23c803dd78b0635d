"""The name server on real sockets: many connections, peers that misbehave, stop and start."""

from __future__ import annotations

import json
import random
import resource
import socket

import pytest
import trio

from triomq_protocol.codes import RequestCode as Code
from triomq_protocol.codes import ResponseCode
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv
from triomq_server.wire import LinkClosedError, open_link


def registration(topics: int = 1) -> Command:
    table = {f"T{n}": {"topicName": f"T{n}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(topics)}
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    return Command.request(
        Code.REGISTER_BROKER,
        fields={"brokerName": "a", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "haServerAddr": "127.0.0.1:2",
                "brokerId": "0"},
        body=json.dumps({"topicConfigSerializeWrapper": wrapper}).encode(),
    )  # fmt: skip


def route(topic: str = "T0") -> Command:
    return Command.request(Code.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})


async def dial(address: str) -> trio.SocketStream:
    host, port = address.split(":")
    return await trio.open_tcp_stream(host, int(port))


async def test_register_and_look_up(start_namesrv) -> None:
    address = await start_namesrv()
    async with open_link(address) as link:
        assert link.peer == address
        assert (await link.request(registration(), 60)).code == 0
        answer = await link.request(route(), 60)
        assert b'"brokerAddrs":{"0":"127.0.0.1:1"}' in answer.body
        put = Command.request(Code.PUT_KV_CONFIG, fields={"namespace": "N", "key": "k", "value": "v"})
        assert (await link.request(put, 60)).code == 0


async def test_key_values_and_configuration_lie_in_files(start_namesrv, tmp_path) -> None:
    address = await start_namesrv()
    async with open_link(address) as link:
        fields = {"namespace": "N", "key": "k", "value": "v"}
        await link.request(Command.request(Code.PUT_KV_CONFIG, fields=fields), 60)
        await link.request(Command.request(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true"), 60)
    assert (tmp_path / "ns" / "kvConfig.json").read_bytes() == b'{"configTable":{"N":{"k":"v"}}}'
    assert "orderMessageEnable=true" in (tmp_path / "ns" / "namesrv.properties").read_text()


async def test_two_hundred_connections_at_once(start_namesrv) -> None:
    address = await start_namesrv()
    codes = []

    async def client() -> None:
        async with open_link(address) as link:
            codes.extend([(await link.request(route(), 60)).code for _ in range(5)])

    async with open_link(address) as link:
        await link.request(registration(), 60)
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(client)
    assert codes == [0] * 1000


async def test_peer_that_reads_nothing_is_not_read_from_and_affects_no_other(start_namesrv) -> None:
    address = await start_namesrv(link_output_limit_bytes=100_000)
    async with open_link(address) as good:
        await good.request(registration(topics=100), 60)
        slow = await dial(address)
        async with slow:
            request = Command.request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).encode()
            sent = 0
            with trio.move_on_after(1):
                # The answers are ten times as long as the requests; the server must stop reading before all are in.
                for _ in range(100):
                    await slow.send_all(request * 1000)
                    sent += 1000
            assert sent < 100_000
            for _ in range(20):
                assert (await good.request(route(), 60)).code == 0
            # Once read, all answers of what was sent arrive.
            decoder, answers = FrameDecoder(), 0
            with trio.fail_after(60):
                while answers < sent:
                    answers += len(decoder.feed(bytes(await slow.receive_some(1 << 20))))


@pytest.mark.parametrize("seed", range(5))
async def test_invalid_bytes_close_only_their_own_connection(start_namesrv, seed) -> None:
    chance = random.Random(seed)
    address = await start_namesrv()
    async with open_link(address) as good:
        await good.request(registration(), 60)
        for _ in range(40):
            data = bytearray(route().encode() * 2)
            for _ in range(4):
                data[chance.randrange(len(data))] = chance.randrange(256)
            bad = await dial(address)
            async with bad:
                await bad.send_all(bytes(data[: chance.randrange(len(data))]))
                if chance.random() < 0.3:
                    await bad.send_eof()
        assert (await good.request(route(), 60)).code == 0
        assert not good.closed


@pytest.mark.parametrize("head", [b"\x01\x00\x00\x00", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x16\x03\x01\x02"])
async def test_oversized_frame_is_refused_by_its_length_alone(start_namesrv, head) -> None:
    address = await start_namesrv()
    stream = await dial(address)
    async with stream:
        await stream.send_all(head)
        with trio.fail_after(60):
            assert await stream.receive_some() == b""


async def test_frame_of_nearly_16_mib_is_taken(start_namesrv) -> None:
    address = await start_namesrv()
    async with open_link(address) as link:
        big = Command.request(Code.UPDATE_NAMESRV_CONFIG, body=b"#" + b"x" * 16_000_000)
        answer = await link.request(big, 60)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "16000001 bytes of settings" in (answer.remark or "")


async def test_reset_connection(start_namesrv) -> None:
    address = await start_namesrv()
    host, port = address.split(":")
    async with open_link(address) as good:
        for _ in range(20):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(route().encode() * 10)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        assert (await good.request(route(), 60)).code == 17


async def test_server_continues_after_it_ran_out_of_descriptors(start_namesrv) -> None:
    address = await start_namesrv()
    host, port = address.split(":")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[socket.socket] = []
    async with open_link(address) as good:
        probe = socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno() + 10, before[1]))
        try:
            for _ in range(20):
                try:
                    held.append(socket.create_connection((host, int(port)), timeout=1))
                except OSError:
                    break
                await trio.sleep(0.01)
            assert (await good.request(route(), 60)).code == 17
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for one in [probe, *held]:
                one.close()
        with trio.fail_after(60):
            async with open_link(address) as late:
                assert (await late.request(route(), 60)).code == 17


async def ask_on(link) -> None:
    while True:
        await link.request(route(), 30)


async def test_stop_and_start_on_the_same_port(nursery, tmp_path) -> None:
    config = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    scope = trio.CancelScope()

    async def run(task_status):
        with scope:
            await serve_namesrv(config, task_status=task_status)

    address = await nursery.start(run)
    config.listen_port = int(address.split(":")[1])
    async with open_link(address) as link:
        await link.request(route(), 60)
        scope.cancel()
        # The server closes first, so its side of the connection lingers in TIME_WAIT.
        with pytest.raises(LinkClosedError):
            await ask_on(link)
    scope = trio.CancelScope()
    assert await nursery.start(run) == address
