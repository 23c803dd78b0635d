"""The embedded cluster as users' tests have it: there at once, nodes stopped and started one by one, nothing left
behind."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import triomq
from triomq import errors
from triomq_server.cluster import Cluster, open_cluster
from triomq_server.disk.config_files import ConfigFileDamaged

SMALL = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}


async def send_some(cluster: Cluster, topic: str, bodies: list[bytes]) -> None:
    async with triomq.open_client(cluster.name_servers) as client, client.producer("writers") as producer:
        for body in bodies:
            await producer.send(triomq.Message(topic, body))


async def pull_all(client: triomq.Client, topic: str) -> list[bytes]:
    async with client.pull_consumer("readers") as consumer:
        return await pull_from(consumer, topic)


async def pull_from(consumer: triomq.PullConsumer, topic: str) -> list[bytes]:
    bodies = []
    for queue in await consumer.fetch_queues(topic):
        offset = 0
        while True:
            result = await consumer.pull(queue, offset=offset, block=False)
            if not result.messages:
                break
            bodies += [bytes(message.body) for message in result.messages]
            offset = result.next_offset
    return sorted(bodies)


def log_of(directory: Path, node: str) -> bytes:
    """A log's bytes without the zeros at its end: a broker prepares its next file when it thinks fit."""
    return b"".join(file.read_bytes() for file in written_files(directory, node)).rstrip(b"\0")


def written_files(directory: Path, node: str) -> list[Path]:
    """The files that something has been written to."""
    return [file for file in sorted((directory / node / "commitlog").iterdir()) if file.read_bytes().strip(b"\0")]


async def caught_up(directory: Path, *nodes: str) -> None:
    """Until the nodes' logs are the same bytes."""

    async def equal() -> bool:
        return len({log_of(directory, node) for node in nodes}) == 1

    await until(equal)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(120):
        while not await true():  # noqa: ASYNC110 -- files and answers have no events
            await trio.sleep(0.02)


async def test_a_cluster_starts_quickly_and_leaves_nothing_behind() -> None:
    begin = trio.current_time()
    async with open_cluster() as cluster:
        ready_s = trio.current_time() - begin
        directory = cluster.directory
        assert [node.running for node in cluster.nodes.values()] == [True] * 3
        assert list(cluster.nodes) == ["namesrv-0", "broker-a", "broker-a-s"]
        await send_some(cluster, "orders", [b"one", b"two"])
        async with triomq.open_client(cluster.name_servers) as client:
            assert await pull_all(client, "orders") == [b"one", b"two"]
    assert not directory.exists()
    assert ready_s < 60, "a fifth of a second on a quiet machine"


async def test_the_slave_has_the_masters_bytes_and_serves_them_when_the_master_is_gone(tmp_path: Path) -> None:
    bodies = [b"%05d" % number + b"x" * 700 for number in range(400)]
    async with open_cluster(directory=tmp_path, settings=SMALL) as cluster:
        await send_some(cluster, "orders", bodies)
        await caught_up(tmp_path, "broker-a", "broker-a-s")
        assert len(list((tmp_path / "broker-a-s" / "commitlog").iterdir())) > 4, "the log has rolled over several files"
        async with triomq.open_client(cluster.name_servers) as client:
            assert len(await pull_all(client, "orders")) == 400
            async with client.pull_consumer("readers", read_preference="slave") as reader:

                async def served() -> bool:
                    try:
                        return await pull_from(reader, "orders") == bodies
                    except errors.TopicNotFound:
                        return False  # it asks the master for its topics when the first message has come

                await until(served)
            await cluster["broker-a"].stop()
            assert not cluster["broker-a"].running
            assert await pull_all(client, "orders") == bodies


async def test_either_side_may_be_away_for_a_while(tmp_path: Path) -> None:
    async with open_cluster(directory=tmp_path, settings=SMALL) as cluster:
        await send_some(cluster, "orders", [b"a" * 900] * 100)
        await cluster["broker-a-s"].stop()
        await send_some(cluster, "orders", [b"b" * 900] * 100)
        await cluster["broker-a-s"].start()
        await send_some(cluster, "orders", [b"c" * 900] * 100)
        await cluster["broker-a"].restart()
        await send_some(cluster, "orders", [b"d" * 900] * 100)
        await caught_up(tmp_path, "broker-a", "broker-a-s")
        async with triomq.open_client(cluster.name_servers) as client:
            assert len(await pull_all(client, "orders")) == 400


async def test_a_slave_that_starts_late_gets_the_whole_log(tmp_path: Path) -> None:
    async with open_cluster(directory=tmp_path, settings=SMALL) as cluster:
        await cluster["broker-a-s"].stop()
        for file in (tmp_path / "broker-a-s").rglob("*"):
            if file.is_file():
                file.unlink()
        await send_some(cluster, "orders", [b"x" * 900] * 300)
        await cluster["broker-a-s"].start()
        await caught_up(tmp_path, "broker-a", "broker-a-s")
        assert (tmp_path / "broker-a-s" / "commitlog" / f"{0:020d}").exists()


async def test_with_compat_49_a_slave_that_starts_late_gets_the_newest_file(tmp_path: Path) -> None:
    async with open_cluster(directory=tmp_path, settings=SMALL | {"compat": "4.9"}) as cluster:
        await cluster["broker-a-s"].stop()
        for file in (tmp_path / "broker-a-s").rglob("*"):
            if file.is_file():
                file.unlink()
        await send_some(cluster, "orders", [b"x" * 900] * 300)
        newest = written_files(tmp_path, "broker-a")[-1].name
        await cluster["broker-a-s"].start()
        copy = tmp_path / "broker-a-s" / "commitlog"

        async def arrived() -> bool:
            return newest in {file.name for file in copy.iterdir()}

        await until(arrived)
        assert min(file.name for file in copy.iterdir()) > f"{0:020d}"


async def test_a_sync_master_answers_so_without_a_slave() -> None:
    message = triomq.Message("orders", b"one")
    async with (
        open_cluster(sync_replication=True) as cluster,
        triomq.open_client(cluster.name_servers) as client,
        client.producer("writers") as producer,
    ):

        async def replicated() -> bool:
            return (await producer.send(message)).status is triomq.SendStatus.SEND_OK

        await until(replicated)

        async def without_slave() -> bool:
            return (await producer.send(message)).status is triomq.SendStatus.SLAVE_NOT_AVAILABLE

        await cluster["broker-a-s"].stop()
        await until(without_slave)
        await cluster["broker-a-s"].start()
        await until(replicated)


async def test_the_bodys_error_is_raised_without_a_group() -> None:
    with pytest.raises(KeyError):
        async with open_cluster(slaves=0) as cluster:
            cluster["broker-z"]


async def test_the_bodys_error_arrives_though_it_is_cancelled_as_well() -> None:
    async def fail_while_cancelled() -> None:
        with trio.CancelScope() as scope:
            async with open_cluster(slaves=0):
                scope.cancel()
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_cancelled()


async def test_a_cancelled_cluster_stops_in_order(tmp_path: Path) -> None:
    with trio.move_on_after(0.5) as scope:
        async with open_cluster(directory=tmp_path):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not (tmp_path / "broker-a" / "abort").exists()


async def test_more_than_one_node_of_each_kind() -> None:
    async with open_cluster(masters=2, slaves=2, name_servers=2) as cluster:
        assert list(cluster.nodes) == [
            "namesrv-0", "namesrv-1", "broker-a", "broker-b", "broker-a-s", "broker-b-s", "broker-a-s2", "broker-b-s2",
        ]  # fmt: skip
        async with triomq.open_client(cluster.name_servers) as client:
            info = await client.admin.cluster_info()
            for name in ("broker-a", "broker-b"):
                assert sorted(map(int, info.broker_addr_table[name].broker_addrs)) == [0, 1, 2]


@pytest.mark.parametrize("counts", [{"masters": 0}, {"masters": 27}, {"slaves": -1}, {"name_servers": 0}])
async def test_counts_that_make_no_cluster(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a cluster has"):
        async with open_cluster(**counts):
            pass


async def test_a_node_that_is_started_twice_at_the_same_time_runs_once() -> None:
    async with open_cluster(slaves=0) as cluster:
        node = cluster["broker-a"]
        await node.stop()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.start)
            nursery.start_soon(node.start)
        assert node.running
        await node.restart()
        assert node.running


async def test_a_node_that_is_stopped_while_it_starts_names_the_cause() -> None:
    async with open_cluster(slaves=0) as cluster:
        node = cluster["broker-a"]
        await node.stop()

        async def start() -> None:
            with pytest.raises(RuntimeError, match="broker-a was stopped before it served"):
                await node.start()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            while not node.running:
                await trio.lowlevel.checkpoint()
            await node.stop()
        await node.start()
        assert node.running


async def test_a_node_whose_files_are_damaged_names_the_cause_without_a_group(tmp_path: Path) -> None:
    async with open_cluster(slaves=0, directory=tmp_path) as cluster:
        await cluster["broker-a"].stop()
        table = tmp_path / "broker-a" / "config" / "topics.json"
        for file in (table, Path(f"{table}.bak")):
            file.write_text("{")
        with pytest.raises(ConfigFileDamaged, match="repair the file or move it away"):
            await cluster["broker-a"].start()
        assert not cluster["broker-a"].running
