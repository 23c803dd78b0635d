"""The settings of consumer groups at brokers (docs/protocol/admin.md §4).

Upstream: ``SubscriptionGroupConfig``.
"""

from __future__ import annotations

from typing import Final

import attrs

from triomq._arguments.numbers import counts
from triomq_protocol.requests import SubscriptionGroupConfig

BROKER_ID_MAX: Final = (1 << 31) - 1
RETRY_QUEUES_MAX: Final = 65536
RETRIES_MAX: Final = (1 << 31) - 1


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The settings of a consumer group on one broker set.

    Args:
        consume: whether its members may pull (``consumeEnable``).
        consume_from_min: kept for readers of the setting; brokers ignore it (``consumeFromMinEnable``).
        broadcast: whether its members may pull in broadcasting mode (``consumeBroadcastEnable``).
        retry_queues: queues of its retry topic (``retryQueueNums``), at most 65536.
        max_retries: how often a message is delivered again before it is a dead letter (``retryMaxTimes``).
        broker_when_slow: the id of the broker that is suggested to members that lag (``whichBrokerWhenConsumeSlowly``).
        notify_members: whether members are notified when others join or leave (``notifyConsumerIdsChangedEnable``).

    Raises:
        InvalidCall: a number cannot be used.
    """

    consume: bool = True
    consume_from_min: bool = True
    broadcast: bool = True
    retry_queues: int = attrs.field(default=1, validator=counts(0, RETRY_QUEUES_MAX))
    max_retries: int = attrs.field(default=16, validator=counts(0, RETRIES_MAX))
    broker_when_slow: int = attrs.field(default=1, validator=counts(0, BROKER_ID_MAX))
    notify_members: bool = True


def settings_of(config: SubscriptionGroupConfig) -> GroupSettings:
    """The settings that a broker has sent."""
    return GroupSettings(
        consume=config.consume_enable,
        consume_from_min=config.consume_from_min_enable,
        broadcast=config.consume_broadcast_enable,
        retry_queues=min(max(config.retry_queue_nums, 0), RETRY_QUEUES_MAX),
        max_retries=min(max(config.retry_max_times, 0), RETRIES_MAX),
        broker_when_slow=min(max(config.which_broker_when_consume_slowly, 0), BROKER_ID_MAX),
        notify_members=config.notify_consumer_ids_changed_enable,
    )


def config_of(group: str, settings: GroupSettings) -> SubscriptionGroupConfig:
    """The body of a request that sets a group's settings.

    Args:
        group: the group as brokers know it.
        settings: the settings.
    """
    return SubscriptionGroupConfig(
        group_name=group,
        consume_enable=settings.consume,
        consume_from_min_enable=settings.consume_from_min,
        consume_broadcast_enable=settings.broadcast,
        retry_queue_nums=settings.retry_queues,
        retry_max_times=settings.max_retries,
        which_broker_when_consume_slowly=settings.broker_when_slow,
        notify_consumer_ids_changed_enable=settings.notify_members,
    )
