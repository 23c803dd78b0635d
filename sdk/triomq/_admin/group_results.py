"""What calls about consumer groups return; what an outage hides is part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from triomq._admin.group_settings import GroupSettings
from triomq._message.message import MessageQueue
from triomq_protocol.requests import OffsetWrapper


@attrs.frozen
class ResetQueue:
    """The result of a reset for one queue.

    Args:
        queue: the queue.
        offset: the offset at which the group continues.
        online: whether members are online: the broker notified them, and they take about ten seconds; a broker of
            RocketMQ 5 notifies each by its next answer to a pull, within half a minute. False: the broker's offset was set.
    """

    queue: MessageQueue
    offset: int
    online: bool


class GroupProgress(dict[MessageQueue, OffsetWrapper]):
    """The progress of a group: queue -> end of the queue, committed offset, store time.

    Queues of a set whose master does not answer are missing, or have a slave's values. Those of a broker that answers with
    a fault, or refuses the account, are missing.

    Attributes:
        without_master: broker name -> why its master did not answer, or with which fault.
        refused: broker name -> which broker refuses the account, why, and what to do.
    """

    def __init__(
        self,
        offsets: Mapping[MessageQueue, OffsetWrapper],
        without_master: Mapping[str, str],
        refused: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(offsets)
        self.without_master: dict[str, str] = dict(without_master)
        self.refused: dict[str, str] = dict(refused or {})

    def lag_of(self, queue: MessageQueue) -> int | None:
        """The number of uncommitted messages of a queue; None (unknown) if its set has no master."""
        if queue.broker_name in self.without_master:
            return None
        offsets = self[queue]
        return max(0, offsets.broker_offset - offsets.consumer_offset)

    @property
    def lag(self) -> int | None:
        """The sum over all queues; None (unknown) if a set has no master or refuses the account."""
        if self.without_master or self.refused:
            return None
        return sum(max(0, each.broker_offset - each.consumer_offset) for each in self.values())


class GroupNames(list[str]):
    """Names of groups, sorted.

    Attributes:
        refused: broker name -> which broker refuses the account, why, and what to do; its groups may be missing.
        unknown: broker name -> why no broker of the set answered; its groups may be missing.
    """

    def __init__(
        self, names: Iterable[str], refused: Mapping[str, str], unknown: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(names)
        self.refused: dict[str, str] = dict(refused)
        self.unknown: dict[str, str] = dict(unknown or {})


class SettingsBySet(dict[str, GroupSettings]):
    """The settings of a group: broker name -> the settings on its set.

    Attributes:
        unknown: broker name -> why nothing is known about the set; it may have the group, with any settings.
        of_slaves: broker name -> why the master of the set does not answer; its settings are those that a slave has.
    """

    def __init__(
        self,
        settings: Mapping[str, GroupSettings],
        unknown: Mapping[str, str],
        of_slaves: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(settings)
        self.unknown: dict[str, str] = dict(unknown)
        self.of_slaves: dict[str, str] = dict(of_slaves or {})


@attrs.frozen(kw_only=True)
class TopicTraffic:
    """The rates at which a topic gets messages, and at which one group pulls them.

    Args:
        topic: the topic's name.
        group: the group; None if no group consumes the topic.
        lag: how far the group is behind; None if it is unknown.
        in_per_s: messages sent per second in the last minute.
        out_per_s: messages pulled per second in the last minute.
        in_day: messages sent in the last day.
        out_day: messages pulled in the last day.
        without_master: broker name -> why the set has no master that answers, so that its messages are not counted, or why
            its part of the lag is unknown, as in `GroupProgress`, and so the whole lag.
    """

    topic: str
    group: str | None = None
    lag: int | None = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    in_day: int = 0
    out_day: int = 0
    without_master: Mapping[str, str] = attrs.field(factory=dict)
