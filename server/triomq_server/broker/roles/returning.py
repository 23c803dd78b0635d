"""Merges the consumer offsets of its slaves into a returning master, before it serves clients and periodically afterwards.

If the master has lost its progress with delayed messages, it takes the progress of its slaves, too. RocketMQ 4.9 does
not: its returning master answers with offsets as old as its last stop, and its slaves copy them. Here the newer offset
wins on both sides (`tables.offsets.resets`), and the wait for unreachable slaves is short. A master may also have been
offline without noticing: cut off from the name servers for a while, or back before its consumers reconnect. Asking again
finds the offsets that they commit to a slave in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial

import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.wire.command import Command
from triomq_server.broker.addresses import ips_of
from triomq_server.broker.registration import members_of_set
from triomq_server.broker.tables.offsets.committed import OffsetTable, QueueEnd, decode_received
from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets
from triomq_server.broker.tables.offsets.resets import FIELD, MERGED_PER_SLICE
from triomq_server.config import BrokerConfig
from triomq_server.replication.divergence import (
    Comparison,
    LogRelation,
    NotComparableError,
    RemoteLog,
    compare,
    offset_after,
)
from triomq_server.replication.metadata import delay_offsets_request
from triomq_server.store import MessageStore
from triomq_server.wire import Asking, LinkError, OpenLink, failure_reason, in_turns

_log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""How often a master looks for offsets that only its slaves have."""
SLAVES_AT_ONCE = 64
"""A RocketMQ name server lists as many brokers of a set as anyone registers, and each costs a descriptor here."""
LIMIT_S = 3.0
"""A starting master waits no longer than this for the answers of its slaves."""

_FAILURES = (OSError, LinkError, ProtocolError)


async def _has_copy(link: Asking, store: MessageStore) -> bool:
    """Whether the broker at the other end has a copy of this log, judging by the last record that both have.

    Raises:
        NotComparableError: its answers do not suffice for a comparison.
        LinkError: the link has ended.
    """
    compared = await compare(store, RemoteLog(link))
    return compared.common_end is not None and compared.relation is not LogRelation.DIVERGED


async def _trusted_to(link: Asking, store: MessageStore, end_of: QueueEnd, *, again: bool) -> QueueEnd | None:
    """The limit, by queue, up to which consumer offsets of the broker at the other end are accepted; None: reject all.
    Errors as with `_has_copy`.

    A slave whose log has another end since a power failure, or since it was the master, still belongs to the set: some
    records are the same. Messages consumed there after these records are not the ones stored here. From a slave that has
    no records of its own, every offset is accepted before this broker takes messages. Later it may be one of a message
    that this log has lost, and whose number another message has by now, so only the records that both have count.
    """
    compared = await compare(store, RemoteLog(link))
    first = max(compared.master_begin, store.log_min_offset)
    if compared.common_end is None or compared.common_end <= first:
        return None
    if compared.relation is LogRelation.BEHIND:
        return end_of
    if compared.relation is LogRelation.DIVERGED or again:
        return partial(_common_end_in, store, end_of, compared)
    return _no_end


def _common_end_in(
    store: MessageStore, end_of: QueueEnd, compared: Comparison, topic: str, queue_id: int
) -> int | None:
    """The queue offset from which a queue has messages that the compared log lacks; None for an unknown queue."""
    assert compared.common_end is not None
    return None if end_of(topic, queue_id) is None else offset_after(store, compared.common_end, topic, queue_id)


async def _merge_offsets_of(
    slave: str, offsets: OffsetTable, store: MessageStore, open_link: OpenLink, end_of: QueueEnd, *, again: bool
) -> bool:
    """Ask one slave for its offsets; return whether it answered."""
    log_failure = _log.debug if again else _log.warning
    try:
        async with open_link(slave) as link:
            is_lost = store.log_max_offset == store.log_min_offset  # nothing to compare: the progress is all there is
            trusted = _no_end if is_lost else await _trusted_to(link, store, end_of, again=again)
            if trusted is None:
                log_failure(
                    "%s is registered as a slave, but is not known to have a copy of this log: its consumer offsets are "
                    "not taken", slave,
                )  # fmt: skip
                return False
            answer = await link.request(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET), LIMIT_S)
        if answer.code != ResponseCode.SUCCESS:
            log_failure(
                "slave %s did not answer with its consumer offsets: code %d, %s", slave, answer.code, answer.remark
            )
            return False
        times = (answer.fields or {}).get(FIELD)
        if times is None and again:
            return False
        received, resets = await decode_received(answer.body, times)
        await in_turns(offsets.merge(await in_turns(_bounded(received, offsets.table, trusted)), resets))
    except (*_FAILURES, NotComparableError) as error:
        log_failure("cannot ask slave %s for consumer offsets: %s", slave, failure_reason(error))
        return False
    return True


async def _ask_slaves(
    ask: Callable[[str], Awaitable[None]], members: Mapping[int, str], own_address: str, is_known: Callable[[str], bool]
) -> None:
    """Call `ask` at the same time for each slave that may have the log, as far as SLAVES_AT_ONCE allows.

    haSlaveAddresses has IP addresses, and a slave may be registered by name.
    """
    asking = trio.CapacityLimiter(SLAVES_AT_ONCE)

    async def ask_if_known(slave: str) -> None:
        async with asking:
            if is_known(slave) or any(is_known(f"{ip}:0") for ip in await ips_of(slave)):
                await ask(slave)

    async with trio.open_nursery() as nursery:
        for broker_id, address in members.items():
            if broker_id != 0 and address != own_address:
                nursery.start_soon(ask_if_known, address)


def _no_end(_topic: str, _queue_id: int) -> None:
    """Every offset is taken."""


def _bounded(
    received: Mapping[str, Mapping[int, int]], own: Mapping[str, Mapping[int, int]], end_of: QueueEnd
) -> Generator[None, None, dict[str, dict[int, int]]]:
    """Another broker's offsets; those larger than ours are limited to the messages that both have. In slices."""
    found: dict[str, dict[int, int]] = {}
    count = 0
    for key, queues in received.items():
        topic, known = key.partition("@")[0], own.get(key, {})
        bounded = found[key] = dict(queues)
        for queue_id, offset in queues.items():
            if offset > known.get(queue_id, 0) and (end := end_of(topic, queue_id)) is not None:
                bounded[queue_id] = min(offset, end)
            count += 1
            if count >= MERGED_PER_SLICE:
                count = 0
                yield
        count += 1
    return found


def log_two_masters(members: Mapping[int, str], own_address: str, broker_name: str) -> None:
    """Log it if the name servers know another master of this broker's set; nothing can be done about it here."""
    if members.get(0, own_address) != own_address:
        _log.error(
            "%s is registered as the master of %s too: the logs of two masters diverge, and consumers miss the "
            "messages of "
            "one of them; stop one, or make this broker a slave with `triomq admin role`",
            members[0], broker_name, extra={"broker": broker_name, "address": members[0]},
        )  # fmt: skip


async def merge_offsets_of_slaves(
    config: BrokerConfig,
    offsets: OffsetTable,
    store: MessageStore,
    is_known: Callable[[str], bool],
    own_address: str,
    open_link: OpenLink,
    *,
    end_of: QueueEnd = _no_end,
    again: bool = False,
    members: Mapping[int, str] | None = None,
) -> int:
    """Ask the slaves of this broker's set for their offsets, and keep the newer ones.

    Anyone can register at a name server as a slave of this set: only those that have a copy of the log count.

    Args:
        config, offsets, store, own_address: this broker's.
        is_known: whether a slave at this address may have the log (haSlaveAddresses).
        open_link: the network.
        end_of: the ends of the queues of a master's log: a slave that was the master may have offsets of messages that
            this log does not have.
        again: whether this has been done before. RocketMQ's slaves then have nothing new: they copy this master's
            offsets, and do not know which offset was set back in the meantime.
        members: the set's members by broker id, if they have just been queried.

    Returns:
        The number of slaves that have answered.
    """
    answered = 0

    async def ask(slave: str) -> None:
        nonlocal answered
        answered += await _merge_offsets_of(slave, offsets, store, open_link, end_of, again=again)

    with trio.move_on_after(LIMIT_S):
        if members is None:
            members = await members_of_set(config, open_link)
        if not again:
            log_two_masters(members, own_address, config.broker_name)
        await _ask_slaves(ask, members, own_address, is_known)
    if answered and not again:
        _log.info("merged the consumer offsets of %d slaves", answered)
    return answered


async def fetch_lost_delay_offsets(
    delay_offsets: DelayOffsets,
    store: MessageStore,
    is_known: Callable[[str], bool],
    own_address: str,
    open_link: OpenLink,
    members: Mapping[int, str],
) -> int:
    """Take the progress with delayed messages from the slaves of this broker's set, after its own file has been lost.

    Slaves count a delivery only if they have the copy, so no message is skipped; later deliveries are repeated. Anyone
    can register at a name server as a slave of this set, and progress of another log would skip messages: a slave counts
    only if the last record that both logs have is the same, and its progress is limited to the messages of a level.

    Args:
        delay_offsets, store, own_address: this broker's.
        is_known: whether a slave at this address may have the log (haSlaveAddresses).
        open_link: the network.
        members: the set's members by broker id, as name servers list them.

    Returns:
        The number of slaves that have answered.
    """
    answered = 0

    async def ask(slave: str) -> None:
        nonlocal answered
        try:
            async with open_link(slave) as link:
                if not await _has_copy(link, store):
                    _log.error(
                        "%s is registered as a slave, but is not known to have a copy of this log: its progress with "
                        "delayed messages is not taken", slave, extra={"address": slave},
                    )  # fmt: skip
                    return
                answer = await link.request(delay_offsets_request(), LIMIT_S)
            if answer.code == ResponseCode.SUCCESS:
                delay_offsets.take_later(
                    bytes(answer.body),
                    lambda level: store.queue_bounds(SCHEDULE_TOPIC, level - 1)[1],
                    store.log_max_offset,
                )
                answered += 1
        except (*_FAILURES, NotComparableError) as error:
            reason = failure_reason(error)
            _log.warning(
                "cannot ask slave %s for its progress with delayed messages: %s",
                slave,
                reason,
                extra={"address": slave},
            )

    with trio.move_on_after(LIMIT_S):
        await _ask_slaves(ask, members, own_address, is_known)
    _log.error(
        "delayOffset.json is missing, and so is its backup: %s",
        f"taken from {answered} slaves" if answered else "delayed messages that the log still has are delivered again",
    )
    return answered
