"""The checks that both crash tests make afterwards."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from triomq_protocol.record.view import RecordView
from triomq_server.store import MessageStore, ReadStatus


@pytest.fixture(scope="session")
def writer() -> ModuleType:
    """The writing script, as a module."""
    spec = importlib.util.spec_from_file_location("store_writer", Path(__file__).parent / "writer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def inspect(writer: ModuleType) -> Callable[..., dict[tuple[int, int], int]]:
    """Read everything in a store: returns (queue, offset) -> number, after checking that all of it is consistent."""

    def look(store: MessageStore, *, blanks_allowed: bool = False) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        in_log = 0
        offset = store.log_min_offset
        while offset < store.log_max_offset:
            data = store.record_at(offset)
            if data is None:  # the filler at a file's end
                offset = (offset // store.commitlog.segments.size + 1) * store.commitlog.segments.size
                continue
            in_log += RecordView(data).topic == "T"  # not the records in place of damaged ones
            offset += len(data)
        for queue_id in range(writer.QUEUES):
            low, high = store.queue_bounds("T", queue_id)
            assert low == 0 or blanks_allowed
            at = low
            while at < high:
                result = store.read("T", queue_id, at, 32, None)
                assert result is not None
                if blanks_allowed and result.status is ReadStatus.NO_MATCHED_MESSAGE:
                    at = result.next_offset
                    continue
                assert result.status is ReadStatus.FOUND, (queue_id, at, high, result.status)
                joined = b"".join(result.slices)
                position = 0
                while position < len(joined):
                    record = RecordView(joined, position)
                    at = record.queue_offset if blanks_allowed else at
                    assert (record.topic, record.queue_id, record.queue_offset) == ("T", queue_id, at)
                    number = int.from_bytes(record.body[:8], "big")
                    assert record.body == writer.body(number)
                    assert record.properties_bytes == writer.properties(number)
                    found[queue_id, at] = number
                    position += record.size_bytes
                    at += 1
        assert len(found) == in_log
        assert len(set(found.values())) == in_log
        return found

    return look
