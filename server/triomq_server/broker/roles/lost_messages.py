"""Corrects consumer offsets beyond the end of a queue whose last messages are lost.

Messages are lost by a power failure, or if a slave that became the master had not received them. New messages get the
numbers of the lost ones, and a group with such an offset would never see them. So before a broker accepts messages, it
sets these offsets to the ends of their queues, once after the machine went down, and once after it has been a slave. A
mark on the disk shows that this is still to be done. Otherwise an offset that a client has set beyond the end of a queue
stays, also after a kill, which loses no stored message. RocketMQ 4.9 corrects none of them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

import trio

from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.offsets.committed import queue_end
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.config import BrokerConfig
from triomq_server.disk import Disk
from triomq_server.store import MessageStore
from triomq_server.store.notes.last_run import last_run
from triomq_server.wire import in_turns

_log = logging.getLogger(__name__)


def end_in(store: MessageStore, topics: TopicTable, topic: str, queue_id: int) -> int | None:
    """The queue offset of the next message of a queue; None if this broker does not know the queue."""
    place, known = (topic, queue_id), topics.table.get(topic)
    queues = store.consume_queues
    if place in queues.table:
        end, is_there = queues.table[place].max_offset, True
    else:
        removed = queues.removed.get(topic, queue_id)
        end, is_there = (0, False) if removed is None else (removed.next_offset, True)
    is_in_topic = known is not None and 0 <= queue_id < max(known.read_queue_nums, known.write_queue_nums)
    return queue_end(end, is_there=is_there, is_in_topic=is_in_topic)


async def note_slave(broker: Broker) -> None:
    """Remember beyond a stop that offsets here may be beyond this log: it is, or is about to be, a slave's."""
    if broker.compat_49:
        return
    try:
        await broker.store.disk.run(partial(_write_mark, broker.store.disk, _mark_of(broker.config)))
    except OSError as error:
        _log.error("%s cannot be written: %s", _mark_of(broker.config), error)


def note_power_failure(disk: Disk, config: BrokerConfig) -> None:
    """Remember, before the store is opened, that the machine went down while the store was open: the start that opens it
    may be killed before offsets are put right, and the next one does not see it any more. OSError."""
    root = config.store.store_path_root_dir
    if config.store.compat_49 or not disk.exists(f"{root}/abort"):
        return
    if not last_run(disk, root).same_boot:
        _write_mark(disk, _mark_of(config))


async def lower_offsets(broker: Broker) -> None:
    """Set consumer offsets beyond the ends of their queues to these ends; on disk when this returns. Cannot be
    cancelled.

    Called before messages are taken: later ones would have the numbers of lost ones, so that a kill must not bring the
    old offsets back.
    """
    if broker.compat_49:
        return
    with trio.CancelScope(shield=True):
        end_of = partial(end_in, broker.store, broker.topics)
        lowered = await in_turns(broker.offsets.lower_to_ends(end_of))
        if lowered:
            _log.warning(
                "%d consumer offsets were beyond the ends of their queues, whose last messages are lost, and are set to "
                "these ends",
                lowered,
            )
        if await broker.offsets.persist_in_background(broker.store.flush):
            with suppress(OSError):  # then it is done once more
                await broker.store.disk.run(partial(broker.store.disk.remove, _mark_of(broker.config)))


def may_have_lost(broker: Broker) -> bool:
    """Whether the last messages counted by the offsets of a starting master may be lost.

    A log without any file has been removed: then the slaves have the messages, and must not lose the offsets.
    """
    store = broker.store
    return bool(store.commitlog.segments.items) and store.disk.exists(_mark_of(broker.config))


def _mark_of(config: BrokerConfig) -> str:
    return f"{config.store.store_path_root_dir}/triomq/offsetsUnchecked"


def _write_mark(disk: Disk, path: str) -> None:
    if not disk.exists(path):
        disk.make_directory(path.rpartition("/")[0])
        disk.write(path, b"")
