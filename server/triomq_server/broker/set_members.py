"""The other brokers of this broker's set, with the ids under which name servers last listed them.

Name servers forget a stopped broker, and know for each id only the broker that registered last. A broker that takes the
smallest id not registered may take the id of a stopped broker; when the latter returns, each hides the other. So all ids
seen so far are remembered, also in a file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec
import trio

from triomq_server.broker.addresses import ips_of, literal_ip
from triomq_server.disk.config_files import ConfigFile, ConfigFileDamaged

_log = logging.getLogger(__name__)

MOST_MEMBERS = 256
"""How many brokers of a set are remembered; the one listed first makes way for a new one."""


class SetMembers:
    """The brokers of one set but this one.

    Args:
        own_address: this broker's, as it registers.
        file: `triomq/setMembers.json`; None keeps the ids in memory only.

    Attributes:
        ids: address -> id when it was last listed; 0 for the master.
        contested_by: another live broker that has this broker's id; None as long as none is known.
    """

    def __init__(self, own_address: str, file: ConfigFile | None = None) -> None:
        self._own_address = own_address
        self._file = file
        self._saved: dict[str, int] = {}
        self._ips: dict[str, frozenset[str]] = {}  # of addresses whose host is a name
        self._hosts: frozenset[str] | None = None  # of all, until something changes
        self.ids: dict[str, int] = {}
        self.contested_by: str | None = None

    def load(self) -> None:
        """Read the file. One that is missing or damaged is not an error: the name servers list the live brokers again."""
        if self._file is None:
            return
        try:
            read = self._file.load()
            ids = msgspec.convert(read.get("ids", {}) if isinstance(read, dict) else {}, dict[str, int])
        except (ConfigFileDamaged, OSError, msgspec.ValidationError) as error:
            _log.warning("the ids of other brokers of this set are not known: %s", error)
            return
        self.ids, self._hosts = dict(list(ids.items())[-MOST_MEMBERS:]), None
        self._saved = dict(self.ids)

    async def save(self) -> None:
        """Write the file if anything has changed; a disk that fails is logged, and the next call tries again."""
        if self._file is None or self.ids == self._saved:
            return
        ids = dict(self.ids)
        try:
            await self._file.save_in_background(msgspec.json.encode({"ids": ids}))
        except OSError as error:
            _log.error("the ids of other brokers of this set cannot be saved: %s", error)
        else:
            self._saved = ids

    def note(self, listed: Mapping[int, str]) -> None:
        """Remember the brokers that name servers list now, by id."""
        for broker_id, address in listed.items():
            if address == self._own_address or self.ids.get(address) == broker_id:
                continue
            self._hosts = None
            self.ids.pop(address, None)
            self.ids[address] = broker_id
            if len(self.ids) > MOST_MEMBERS:
                del self.ids[next(iter(self.ids))]

    def holder(self, broker_id: int, listed: Mapping[int, str]) -> str | None:
        """The address of another broker that has an id, or had it when it was last listed; None if there is none."""
        address = listed.get(broker_id)
        if address is not None and address != self._own_address:
            return address
        return next((known for known, number in self._away(listed).items() if number == broker_id), None)

    def hosts(self) -> frozenset[str]:
        """The IP addresses of all remembered brokers; for host names, those that `look_up` has found."""
        if self._hosts is None:  # each connection to the HA port asks
            ips = {address: literal_ip(address) for address in self.ids}
            named = (self._ips.get(address, ()) for address, ip in ips.items() if ip is None)
            self._hosts = frozenset(ip for ip in ips.values() if ip is not None).union(*named)
        return self._hosts

    async def look_up(self, addresses: Iterable[str]) -> None:
        """Resolve the brokers that are registered by host name; if one cannot be resolved now, its last addresses stay."""

        async def find(address: str) -> None:
            self._ips[address] = await ips_of(address) or self._ips.get(address, frozenset())
            self._hosts = None

        self._ips = {address: ips for address, ips in self._ips.items() if address in self.ids}
        async with trio.open_nursery() as nursery:
            for address in addresses:
                if address in self.ids and literal_ip(address) is None:
                    nursery.start_soon(find, address)

    def free_id(self, listed: Mapping[int, str]) -> int:
        """The smallest slave's id that no other broker has, or had when it was last listed."""
        broker_id = 1
        while self.holder(broker_id, listed) is not None:
            broker_id += 1
        return broker_id

    def _away(self, listed: Mapping[int, str]) -> dict[str, int]:
        """The remembered brokers that are not listed now; listed ones may have other ids than before."""
        present = set(listed.values())
        return {address: broker_id for address, broker_id in self.ids.items() if address not in present}
