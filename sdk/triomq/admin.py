"""Administration: the classes of ``client.admin``, ``.groups``, ``.messages`` and the like, and of what they return.

You need not import this module to use them: it names the classes for annotations and comparisons.
"""

# Sorted by purpose and by hand; this module only re-exports.
# ruff: noqa: I001, RUF022

# Topics, client.admin
from triomq._admin.topics import Admin, TopicSettings, TopicStats
from triomq_protocol.requests import ClusterInfo, TopicOffset, TopicRouteData

# Consumer groups, client.groups
from triomq._admin.groups import GroupAdmin
from triomq._admin.group_results import GroupNames, GroupProgress, ResetQueue, SettingsBySet, TopicTraffic
from triomq._admin.group_settings import GroupSettings
from triomq_protocol.requests import ConsumerConnection, OffsetWrapper
from triomq_protocol.requests.group_admin import ConsumeMessageDirectlyResult, ConsumerRunningInfo

# Stored messages, client.messages
from triomq._admin.messages import Found, MessageAdmin, MessageTrack, QueueEntry, TrackType
from triomq_protocol.trace import TraceKind, TraceRecord

# Dead letters, client.dead_letters
from triomq._admin.dead_letters import DeadLetter, DeadLetterAdmin, Redriven

# Brokers and name servers, client.servers
from triomq._admin.servers import ServerAdmin
from triomq_protocol.requests import ProducerTableInfo

# Accounts of brokers with access control, client.accounts
from triomq._admin.accounts import Account, AccountAdmin, AccountFile, AccountList

# A whole cluster, client.doctor
from triomq._examination.doctor import Doctor, LookedAt
from triomq._examination.findings import Finding, FindingLimits
from triomq._examination.snapshot import (
    BrokerView,
    ClusterSnapshot,
    GroupView,
    MemberView,
    NameServerView,
    StuckQueue,
    TopicView,
)

__all__ = [
    "Admin",
    "TopicSettings",
    "TopicStats",
    "ClusterInfo",
    "TopicOffset",
    "TopicRouteData",
    "GroupAdmin",
    "GroupNames",
    "GroupProgress",
    "ResetQueue",
    "SettingsBySet",
    "TopicTraffic",
    "GroupSettings",
    "ConsumerConnection",
    "OffsetWrapper",
    "ConsumeMessageDirectlyResult",
    "ConsumerRunningInfo",
    "MessageAdmin",
    "MessageTrack",
    "QueueEntry",
    "TrackType",
    "TraceKind",
    "TraceRecord",
    "DeadLetter",
    "DeadLetterAdmin",
    "Redriven",
    "ServerAdmin",
    "ProducerTableInfo",
    "Account",
    "AccountAdmin",
    "AccountFile",
    "AccountList",
    "Doctor",
    "LookedAt",
    "Finding",
    "Found",
    "FindingLimits",
    "BrokerView",
    "ClusterSnapshot",
    "GroupView",
    "MemberView",
    "NameServerView",
    "StuckQueue",
    "TopicView",
]
