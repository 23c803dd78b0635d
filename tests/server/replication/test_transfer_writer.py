"""Large catch-up over real sockets and files: the same frames, whichever way the bytes go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
import trio
import trio.lowlevel

from triomq_protocol.replication import encode_report
from triomq_server.config import StoreConfig
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.transfer_writer import SENDFILE_LEAST_BYTES
from triomq_server.store import NewRecord, open_store

FILE_BYTES = 1 << 20


@pytest.fixture
def sendfiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each sendfile call."""
    calls: list[int] = []
    real = os.sendfile

    def counted(*arguments: Any) -> int:
        calls.append(real(*arguments))
        return calls[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    before = len(os.listdir("/proc/self/fd"))
    yield calls
    assert len(os.listdir("/proc/self/fd")) <= before + 3, "files are closed with the link"


def frames_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        offset, size = unpack_from(">qi", data, at)
        yield offset, data[at + 12 : at + 12 + size]
        at += 12 + size


@pytest.mark.parametrize("batch_bytes", [32 * 1024, 256 * 1024])
async def test_the_same_frames_by_sendfile(tmp_path: Path, sendfiles: list[int], batch_bytes: int) -> None:
    config = StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=FILE_BYTES)
    async with open_store(config) as store, trio.open_nursery() as nursery:
        for n in range(3600):
            store.append(NewRecord("T", 0, b"%d" % n * 250, b""))
        end = store.log_max_offset
        assert end > 3 * FILE_BYTES
        master = HaMaster(store, HaSettings(file_bytes=FILE_BYTES, batch_bytes=batch_bytes))
        port = await nursery.start(master.serve, "127.0.0.1", 0)
        async with await trio.open_tcp_stream("127.0.0.1", port) as slave:
            await slave.send_all(encode_report(0))
            data = bytearray()
            log = bytearray()
            while len(log) < end:
                await trio.lowlevel.checkpoint()  # a slow reader: the socket fills, and sendfile has to be resumed
                data += await slave.receive_some(50_000)
                if len(data) - 12 * len(data) // batch_bytes < end:
                    continue
                log = bytearray(b"".join(body for _, body in frames_of(bytes(data))))
            wanted = 0
            for offset, body in frames_of(bytes(data)):
                assert offset == wanted
                assert 0 < len(body) <= batch_bytes
                assert offset // FILE_BYTES == (offset + len(body) - 1) // FILE_BYTES
                wanted += len(body)
            sent = b"".join(bytes(store.log_slice(at, FILE_BYTES)) for at in range(0, end, FILE_BYTES))
            assert log == sent
            assert sum(sendfiles) > 0.9 * end
            before = len(sendfiles)
            store.append(NewRecord("T", 0, b"small", b""))
            store.notify_arrivals()
            offset, size = unpack_from(">qi", await slave.receive_some(4096))
            assert (offset, size) == (end, store.log_max_offset - end)
            assert len(sendfiles) == before, "one call for head and body is better then"
        nursery.cancel_scope.cancel()


async def test_a_file_that_cannot_be_opened_is_sent_from_its_map(
    tmp_path: Path, sendfiles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=FILE_BYTES)
    async with open_store(config) as store, trio.open_nursery() as nursery:
        store.append(NewRecord("T", 0, bytes(2 * SENDFILE_LEAST_BYTES), b""))

        def refuse(offset: int) -> int:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(store, "open_log_file", refuse)
        port = await nursery.start(HaMaster(store, HaSettings(file_bytes=FILE_BYTES)).serve, "127.0.0.1", 0)
        async with await trio.open_tcp_stream("127.0.0.1", port) as slave:
            await slave.send_all(encode_report(0))
            data = b""
            while sum(len(body) for _, body in frames_of(data)) < store.log_max_offset:
                data += await slave.receive_some()
        assert sendfiles == []
        nursery.cancel_scope.cancel()
