"""The decisions of replication as pure functions: start of a slave's copy, reports that count, slaves that are close
enough.

Nothing here waits, sends or reads a clock. The rules are described in docs/protocol/ha.md §3, §4 and §6. If RocketMQ
4.9 is careless with acknowledged messages, `compat_49` chooses between its behaviour and the safe one.
"""

import enum
import ipaddress
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Self

import msgspec

from triomq_server.config import StoreConfig
from triomq_server.config.network import networks

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of both ends of a replication link: RocketMQ's HA keys, durations in seconds.

    Attributes:
        file_bytes: size of one log file; master and slave must agree (``mappedFileSizeCommitLog``).
        heartbeat_s: something is sent at least this often (``haSendHeartbeatInterval``).
        housekeeping_s: a link on which nothing came for this long is closed (``haHousekeepingInterval``).
        batch_bytes: largest body of one transfer frame (``haTransferBatchSize``).
        fall_behind_max_bytes: a slave further behind does not count as present (``haSlaveFallbehindMax``).
        connect_timeout_s: how long one attempt to connect may take.
        compare_timeout_s: how long the comparison of two logs may take.
        reconnect_s: pause between attempts; the first one after a loss comes within a tenth of a second.
        polls: how often a slave checks for the next frame before it falls asleep, while frames follow each other
            closely; each check is a turn of the event loop, so other tasks run in between.
        send_bytes: how much a master hands to the socket in one call; frames stay as they are.
        slave_networks: from where slaves may connect; empty: from anywhere.
        compat_49: RocketMQ 4.9's own behaviour instead of the safe one.
    """

    file_bytes: int
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    batch_bytes: int = 32768
    fall_behind_max_bytes: int = 256 * 1024 * 1024
    connect_timeout_s: float = 5.0
    compare_timeout_s: float = 20.0
    reconnect_s: float = 1.0
    polls: int = 100
    send_bytes: int = 1024 * 1024
    slave_networks: tuple[Network, ...] = ()
    compat_49: bool = False

    @classmethod
    def from_config(cls, config: StoreConfig, *, compat_49: bool) -> Self:
        """Read the HA keys of a broker's store configuration (milliseconds there, seconds here)."""
        return cls(
            file_bytes=config.mapped_file_size_commit_log,
            heartbeat_s=config.ha_send_heartbeat_interval / 1000,
            housekeeping_s=config.ha_housekeeping_interval / 1000,
            batch_bytes=config.ha_transfer_batch_size,
            fall_behind_max_bytes=config.ha_slave_fallbehind_max,
            slave_networks=networks(config.ha_slave_addresses),
            compat_49=compat_49,
        )


def is_known_slave(peer: str, known: tuple[Network, ...]) -> bool:
    """Whether a peer, ``ip:port``, may follow: it comes from one of these networks, or there are none."""
    if not known:
        return True
    host = peer.rpartition(":")[0].partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in known)


def slave_to_close(
    newcomer: str, hosts: Sequence[str], reported: Sequence[int | None], members: Container[str] = ()
) -> int | None:
    """The link to close when all are in use and another slave connects: the oldest without a report; otherwise, of the
    host with most links, the one with the least of the log. Hosts of the set's brokers keep their places while other
    hosts have any.

    Args:
        newcomer: the host of the new slave.
        hosts: hosts of the links, the oldest link first.
        reported: their last reports; None before the first.
        members: hosts of the brokers of the set.

    Returns:
        Its index; None if the newcomer is refused: all have reported, and no host that may lose a link has two more
        than the newcomer's. A broker of the set may take the place of any other host.
    """
    others = [index for index, host in enumerate(hosts) if host not in members]
    candidates = others or range(len(hosts)) if newcomer in members else others
    silent = next((index for index in candidates if reported[index] is None), None)
    if silent is not None:
        return silent
    counts = Counter(hosts[index] for index in candidates)
    crowd, most = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
    takes_any = newcomer in members and bool(others)
    if not takes_any and most <= counts[newcomer] + 1:
        return None
    return min((index for index in candidates if hosts[index] == crowd), key=lambda index: reported[index] or 0)


class Report(enum.Enum):
    """What to do with an offset that a slave reported."""

    ACCEPT = enum.auto()
    AHEAD = enum.auto()
    """The slave claims bytes that this log does not have: close the link; its history may differ from ours."""
    NEGATIVE = enum.auto()
    """No offset at all: close the link."""


def check_report(offset: int, *, log_max: int, first: bool, compat_49: bool) -> Report:
    """Decide whether a slave's report counts.

    RocketMQ 4.9 accepts a link's first report unchecked, and so may answer senders with success for messages that no
    slave has; the safe rule checks the first report like every other.
    """
    if offset < 0:
        return Report.NEGATIVE
    if offset > log_max and not (first and compat_49):
        return Report.AHEAD
    return Report.ACCEPT


def start_offset(reported: int, *, log_min: int, log_max: int, file_bytes: int, compat_49: bool) -> int:
    """The start of the stream for a slave, given its first report.

    A slave with a log continues at its report, unchecked. An empty slave (0) gets only the newest file from
    RocketMQ 4.9; the safe rule gives it the whole log. Both are frames that a 4.9 slave understands, since
    an empty log takes its first file from the first frame.
    """
    if reported > 0:
        return reported
    if compat_49:
        return max(log_max - log_max % file_bytes, 0)
    return log_min


def follows(own_max: int, frame_offset: int, file_bytes: int) -> bool:
    """Whether a frame continues the slave's log: it starts at the log's end, or at a file's start if the log is
    empty."""
    return frame_offset == own_max or (own_max == 0 and frame_offset > 0 and frame_offset % file_bytes == 0)


def stays_in_file(offset: int, size_bytes: int, file_bytes: int) -> bool:
    """Whether a frame ends inside the log file it starts in; if not, the two ends use different file sizes."""
    return 0 <= size_bytes <= file_bytes - offset % file_bytes


def acknowledged(live: Iterable[int | None], before: int, *, compat_49: bool) -> int:
    """The highest log offset that some slave holds.

    Args:
        live: last accepted report of every open link; None before the first.
        before: the last result of this function.
        compat_49: never fall, as in 4.9, even if the slave that held the bytes has disconnected.
    """
    now = max((offset for offset in live if offset is not None), default=0)
    return max(now, before) if compat_49 else now


def slave_is_near(end_offset: int, *, acknowledged_offset: int, links: int, fall_behind_max_bytes: int) -> bool:
    """Whether a send that ends at `end_offset` may wait for a slave (`HAService.isSlaveOK`).

    Args:
        end_offset: first byte after the message.
        acknowledged_offset: the log offset up to which slaves have the log.
        links: number of open links; the safe rule counts only those that have reported.
        fall_behind_max_bytes: the distance from which slaves count as absent.
    """
    return links > 0 and end_offset - acknowledged_offset < fall_behind_max_bytes
