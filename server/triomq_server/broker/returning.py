"""A master that comes back asks its slaves how far consumers have got meanwhile, before it serves anybody, and later now and then.

RocketMQ 4.9 does not: its returning master hands out offsets as old as its last stop, and its slaves copy them. Here the
newer offset wins on both sides (`resets`), and the wait for slaves that cannot be reached is short. A master may also have
been away without knowing it: cut off from the name servers for a while, or back before its consumers look for it again;
what they commit to a slave meanwhile is found by asking again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.errors import ProtocolError
from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.requests.route import ClusterInfo
from triomq_server.config import BrokerConfig
from triomq_server.wire import Link, LinkError

from .offsets import OffsetTable
from .resets import FIELD

_log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""How often a master looks for offsets that only its slaves have."""
LIMIT_S = 3.0
"""A master starts no later than this for want of an answer; the name servers may take a third of it."""

OpenLink = Callable[[str], AbstractAsyncContextManager[Link]]
_FAILURES = (OSError, LinkError, ProtocolError)


async def members_of_set(config: BrokerConfig, open_link: OpenLink) -> dict[int, str]:
    """The broker set's live members at the name servers, by broker id; empty if no name server answers in time."""
    members: dict[int, str] = {}

    async def ask(name_server: str) -> None:
        try:
            async with open_link(name_server) as link:
                answer = await link.request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), LIMIT_S / 3)
            brokers = ClusterInfo.decode(answer.body).broker_addr_table or {}
        except _FAILURES as error:
            _log.info("name server %s: %s", name_server, error)
            return
        found = brokers.get(config.broker_name)
        if found is not None and found.broker_addrs:
            members.update(found.broker_addrs)

    with trio.move_on_after(LIMIT_S / 3):
        async with trio.open_nursery() as nursery:
            for name_server in config.name_servers:
                nursery.start_soon(ask, name_server)
    return members


async def other_master(members: Mapping[int, str], own_address: str, open_link: OpenLink) -> str | None:
    """The address of another live master among a set's members; None if there is none, or it does not answer.

    A registration may be up to two minutes older than its broker's end, and may be this broker's own under an address that
    it had before: only an answer counts.
    """
    known = members.get(0, own_address)
    if known == own_address:
        return None
    with trio.move_on_after(LIMIT_S):
        try:
            async with open_link(known) as link:
                await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), LIMIT_S)
        except _FAILURES as error:
            _log.info("%s is registered as the master of this set, but does not answer: %s", known, error)
        else:
            return known
    return None


async def _learn_from(slave: str, offsets: OffsetTable, open_link: OpenLink, *, again: bool) -> bool:
    """Ask one slave; whether it has answered."""
    log_failure = _log.debug if again else _log.warning
    try:
        async with open_link(slave) as link:
            answer = await link.request(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET), LIMIT_S)
        if answer.code != ResponseCode.SUCCESS:
            log_failure("slave %s keeps its offsets to itself: code %d, %s", slave, answer.code, answer.remark)
            return False
        times = (answer.fields or {}).get(FIELD)
        if times is None and again:
            return False
        offsets.merge(ConsumerOffsetTable.decode(answer.body).offset_table, times)
    except _FAILURES as error:
        log_failure("slave %s could not be asked for consumer offsets: %s", slave, error)
        return False
    return True


def tell_of_two_masters(members: Mapping[int, str], own_address: str, broker_name: str) -> None:
    """Log it if the name servers know another master of this broker's set; nothing can be done about it here."""
    if members.get(0, own_address) != own_address:
        _log.error(
            "%s is registered as the master of %s too: with two masters their histories part, and the messages of one "
            "are lost to the other; stop one of them, or make this one a slave with `triomq admin role`",
            members[0], broker_name,
        )  # fmt: skip


async def learn_offsets(
    config: BrokerConfig,
    offsets: OffsetTable,
    own_address: str,
    open_link: OpenLink,
    *,
    again: bool = False,
    members: Mapping[int, str] | None = None,
) -> int:
    """Ask the slaves of this broker's set for their offsets, and keep what is newer.

    Args:
        config, offsets, own_address: this broker's.
        open_link: the network.
        again: not for the first time. RocketMQ's slaves then have nothing new: they copy this master's offsets, and cannot
            tell an old one from one that was set back meanwhile.
        members: the set's, by broker id, if they have just been asked for.

    Returns:
        How many slaves have answered.
    """
    heard = 0

    async def ask(slave: str) -> None:
        nonlocal heard
        heard += await _learn_from(slave, offsets, open_link, again=again)

    with trio.move_on_after(LIMIT_S):
        if members is None:
            members = await members_of_set(config, open_link)
        if not again:
            tell_of_two_masters(members, own_address, config.broker_name)
        async with trio.open_nursery() as nursery:
            for broker_id, address in members.items():
                if broker_id != 0 and address != own_address:
                    nursery.start_soon(ask, address)
    if heard and not again:
        _log.info("consumer offsets compared with %d slaves", heard)
    return heard
