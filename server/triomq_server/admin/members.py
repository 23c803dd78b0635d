"""The brokers that name servers list, and the one that an operator means."""

from __future__ import annotations

from ipaddress import ip_address

import attrs

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.route import ClusterInfo
from triomq_protocol.wire.command import Command
from triomq_server.admin.asking import FAILURES, TIMEOUT_S, AdminError, ask, failure_text
from triomq_server.wire import OpenLink, open_link

_PORT_MIN = 1024


@attrs.frozen
class Member:
    """A broker as known to the name servers."""

    name: str
    broker_id: int
    address: str


async def members(name_servers: str, open_link: OpenLink = open_link) -> list[Member]:
    """Every registered broker, sorted by name and id. Raises AdminError if no name server answers."""
    reasons = []
    for address in filter(None, (part.strip() for part in name_servers.split(";"))):
        try:
            answer = await ask(open_link, address, Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                reasons.append(f"{address} does not know a name server's requests: it looks like a broker")
                continue
            table = ClusterInfo.decode(answer.body).broker_addr_table or {}
        except FAILURES as error:
            reasons.append(f"{address}: {failure_text(error, 'name server', TIMEOUT_S)}")
            continue
        return sorted(
            (
                Member(name, number, broker)
                for name, data in table.items()
                for number, broker in (data.broker_addrs or {}).items()
            ),
            key=lambda member: (member.name, member.broker_id),
        )
    raise AdminError(
        f"no name server answers; {'; '.join(reasons)} (check the name servers' addresses; "
        "`triomq namesrv` or `triomq cluster` starts one)"
    )


async def address_of(name_servers: str, broker: str, open_link: OpenLink) -> str:
    """Resolve `name:id`, the name of a set with one member, or `host:port`, which needs no name server."""
    host, _, port = broker.rpartition(":")
    # A misspelt name with an id should get the list of brokers: ids are small, and the ports of brokers are not.
    is_address = bool(host) and port.isdecimal() and (int(port) >= _PORT_MIN or "." in host)
    if is_address and _is_ip_address(host):
        return broker
    try:
        found = await members(name_servers, open_link)
    except AdminError:
        if is_address:
            return broker
        raise
    if is_address and host not in {one.name for one in found}:
        return broker
    fitting = [one for one in found if broker in (one.address, f"{one.name}:{one.broker_id}")]
    fitting = fitting or [one for one in found if one.name == broker]
    if len(fitting) == 1:
        return fitting[0].address
    known = ", ".join(f"{one.name}:{one.broker_id} at {one.address}" for one in fitting or found)
    if fitting:
        raise AdminError(f"{broker} has more than one broker: {known}; give NAME:ID or HOST:PORT")
    raise AdminError(f"no broker {broker}; the brokers are: {known or 'none'} (give NAME:ID or HOST:PORT)")


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
