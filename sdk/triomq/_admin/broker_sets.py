"""Queries all broker sets at once: each set's master, or one of its slaves while no master answers.

An outage is part of the answer: which sets have no master, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import attrs
import trio

from triomq._tasks.exception_groups import open_plain_nursery
from triomq._tasks.side_by_side import side_by_side
from triomq._transport.link import Link
from triomq._transport.links import NO_ANSWER, Links
from triomq.errors import (
    AccessRefused,
    BrokerNotFound,
    LinkLost,
    MQError,
    Overloaded,
    PermissionDenied,
    ProtocolViolation,
    RequestTimeout,
    error_for_code,
)
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import MASTER_ID
from triomq_protocol.requests import BrokerData
from triomq_protocol.wire.command import Command

PATIENCE_S: Final = 2.0
"""A broker that has not answered a long request for this time is sent a short one."""

PROBE_S: Final = 3.0
"""How long a broker may take for the short request."""

Addresses = Mapping[str, Mapping[int, str]]
"""Broker name -> broker id -> ``host:port``."""


Silent = dict[str, str]
"""The address of a broker -> why it does not answer."""


@attrs.frozen
class SetAnswer:
    """The answer of one set.

    Args:
        broker_name: the set.
        address: the broker that answered.
        answer: its answer, whatever its code.
    """

    broker_name: str
    address: str
    answer: Command


@attrs.define
class SetAnswers:
    """The answers of the sets, by broker name.

    Args:
        answers: the answers of masters, and of slaves in place of masters that did not answer.
        without_master: broker name -> why its master did not answer; a slave may have.
        refused: broker name -> which broker refuses the account, why, and what to do; see :meth:`set_refusals_aside`.
    """

    answers: list[SetAnswer] = attrs.field(factory=list)
    without_master: dict[str, str] = attrs.field(factory=dict)
    refused: dict[str, str] = attrs.field(factory=dict)

    @property
    def silent(self) -> list[str]:
        """The names of the sets of which no broker answered."""
        return sorted(self.without_master.keys() - {each.broker_name for each in self.answers} - self.refused.keys())

    def set_refusals_aside(self, what: str) -> None:
        """Move the answers that refuse the account from ``answers`` to ``refused``.

        Args:
            what: the name of what was asked for.

        Raises:
            AccessRefused: all answers refuse the account.
            PermissionDenied: the same, from RocketMQ 5.
        """
        kept: list[SetAnswer] = []
        refusals: dict[str, MQError] = {}
        for each in self.answers:
            code, remark = each.answer.code, each.answer.remark
            if code != ResponseCode.SUCCESS:
                error = error_for_code(code, remark, what=what, address=each.address)
                if isinstance(error, AccessRefused | PermissionDenied):
                    refusals[each.broker_name] = error
                    continue
            kept.append(each)
        if refusals and not kept:
            raise next(iter(refusals.values()))
        self.answers = kept
        self.refused = {
            name: f"{each.address} refuses: {_why(each)} ({each.advice})" for name, each in refusals.items()
        }


def addresses_of(brokers: Mapping[str, BrokerData]) -> Addresses:
    """The addresses in a name server's answer."""
    return {name: dict(sorted((broker.broker_addrs or {}).items())) for name, broker in brokers.items()}


def outage_text(without_master: Mapping[str, str]) -> str:
    """The sets without a master and why, in one line."""
    return "; ".join(f"broker {name}: {why}" for name, why in sorted(without_master.items()))


async def ask_sets(
    links: Links,
    sets: Addresses,
    make_request: Callable[[], Command],
    timeout_s: float,
    *,
    slaves: bool = True,
    silent: Silent | None = None,
) -> SetAnswers:
    """Ask all sets concurrently.

    Args:
        links: the links to brokers.
        sets: the sets to ask.
        make_request: creates the request for one broker.
        timeout_s: how long a broker may take.
        slaves: whether to ask slaves in place of a master that does not answer.
        silent: the brokers that are not asked; those that do not answer are added, except where only the connection was
            lost: it may have been for this request, or the broker may be back.

    Raises:
        BrokerNotFound: no set is registered at all.
        ClientClosed: the client closes.
        Overloaded: the link to a broker has no room for another request.
    """
    if not sets:
        raise BrokerNotFound("no broker is registered at the name server")
    found = SetAnswers()
    silent = {} if silent is None else silent

    async def ask(name: str, addresses: Mapping[int, str]) -> None:
        if MASTER_ID not in addresses:
            found.without_master[name] = "no master is registered"
        for broker_id, address in addresses.items():
            if broker_id != MASTER_ID and not slaves:
                continue
            answer = await _answer_or_why(links, address, make_request(), timeout_s, silent)
            if isinstance(answer, str):
                if broker_id == MASTER_ID:
                    found.without_master[name] = f"the master {address} does not answer: {answer}"
                continue
            if broker_id != MASTER_ID and answer.code != ResponseCode.SUCCESS:
                continue
            found.answers.append(SetAnswer(name, address, answer))
            return

    await side_by_side(*(partial(ask, name, addresses) for name, addresses in sets.items()))
    found.answers.sort(key=lambda each: each.broker_name)
    return found


async def _answer_or_why(
    links: Links, address: str, request: Command, timeout_s: float, silent: Silent
) -> Command | str:
    """The answer of one broker, or why there is none."""
    if address in silent:
        return silent[address]
    try:
        return await answer_of(links, address, request, timeout_s)
    except (LinkLost, ProtocolViolation) as error:
        return _why(error)
    except NO_ANSWER as error:
        silent[address] = _why(error)
        return silent[address]


async def answer_of(links: Links, address: str, request: Command, timeout_s: float) -> Command:
    """The answer of one broker, which is not waited for longer than needed if it hangs.

    Raises:
        MQError: as for :func:`answer_on`, or it cannot be reached.
    """
    return await answer_on(await links.get(address, patient=False), request, timeout_s)


async def answer_on(link: Link, request: Command, timeout_s: float) -> Command:
    """The answer to a request that may take long, from a broker that answers shorter ones meanwhile.

    Raises:
        MQError: the connection ended, or the bytes that came are not an answer.
        RequestTimeout: no answer in time, or none to a short request either: the broker hangs.
    """
    if timeout_s <= PATIENCE_S + PROBE_S:
        return await link.request(request, timeout_s)
    answer: Command | None = None
    failure: MQError | None = None

    async def probe() -> None:
        nonlocal failure
        await trio.sleep(PATIENCE_S)
        asked_s = trio.current_time()
        try:
            await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), PROBE_S)
        except Overloaded:
            pass  # it was not asked
        except MQError as error:
            if isinstance(error, RequestTimeout) and link.received_s > asked_s:
                nursery.start_soon(probe)  # the long answer arrives on a slow connection, and the short one behind it
                return
            failure = error
            nursery.cancel_scope.cancel()

    async with open_plain_nursery() as nursery:
        nursery.start_soon(probe)
        try:
            answer = await link.request(request, timeout_s)
        except MQError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if answer is not None:
        return answer
    assert failure is not None
    raise failure


def _why(error: MQError) -> str:
    return error.remark or error.what
