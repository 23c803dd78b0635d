"""Stores that a broker finds at its start: many topics, many groups, a long log whose files are almost empty on the disk.

They are written in the broker's form, since making them over the wire would take longer than the measurement.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec

from triomq_protocol.hosts import pack_host
from triomq_protocol.record.encode import encode_topic, head_for, write_record
from triomq_protocol.record.layout import BLANK_MAGIC, MARK, PROPERTIES_LENGTH

QUEUES = 4
LOG_FILE_BYTES = 1 << 30
STORED_MS = 1_700_000_000_000
_PROPERTIES = b"UNIQ_KEY\x01" + b"0" * 32 + b"\x02WAIT\x01true\x02"


@attrs.define
class _Fields:
    """A message of the long log."""

    queue_id: int = 0
    body: bytes | memoryview = b"x" * 1024
    properties: bytes = _PROPERTIES
    flag: int = 0
    born_timestamp: int = STORED_MS
    born_host: bytes = pack_host("127.0.0.1", 40_000)
    store_host: bytes = pack_host("127.0.0.1", 10_911)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def _write(home: Path, name: str, table: object) -> None:
    folder = home / "broker" / "store" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(msgspec.json.encode(table))


_VERSION = {"counter": 1, "timestamp": STORED_MS}


def write_topics(home: Path, count: int) -> None:
    """Write `count` topics of four queues, without messages."""
    table = {
        name: {
            "order": False,
            "perm": 6,
            "readQueueNums": QUEUES,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": QUEUES,
        }
        for name in map("idle-{:05}".format, range(count))
    }
    _write(home, "topics.json", {"dataVersion": _VERSION, "topicConfigTable": table})


def write_groups(home: Path, topic: str, count: int) -> None:
    """Write `count` groups, each with an offset in every queue of a topic."""
    names = [f"idle-{number:05}" for number in range(count)]
    groups = {
        name: {
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "groupName": name,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": 16,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        for name in names
    }
    _write(home, "subscriptionGroup.json", {"dataVersion": _VERSION, "subscriptionGroupTable": groups})
    offsets = {f"{topic}@{name}": dict.fromkeys(map(str, range(QUEUES)), 0) for name in names}
    _write(home, "consumerOffset.json", {"offsetTable": offsets})


def write_log(home: Path, topic: str, files: int, *, file_bytes: int = LOG_FILE_BYTES) -> None:
    """Write `files` log files, each with one message at its start and then a blank, which takes no space."""
    folder = home / "broker" / "store" / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    fields = _Fields()
    head, sys_flag = head_for(fields.born_host, fields.store_host, 0)
    name = encode_topic(topic)
    size = head.size + len(fields.body) + len(name) + PROPERTIES_LENGTH.size + len(fields.properties)
    for number in range(files):
        start = bytearray(size + MARK.size)
        write_record(start, 0, size, head, sys_flag, name, number, number * file_bytes, STORED_MS + number, fields)
        MARK.pack_into(start, size, file_bytes - size, BLANK_MAGIC)
        with (folder / f"{number * file_bytes:020}").open("wb") as file:
            file.write(start)
            file.truncate(file_bytes)
