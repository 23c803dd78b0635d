"""Bits of the protocol: frame flag, pull sysFlag, topic permission, topic sysFlag. A message's sysFlag is in
`record.layout`."""

# Frame flag (docs/protocol/remoting.md §4).
RESPONSE = 1
ONEWAY = 2

# Pull sysFlag (docs/protocol/broker-api.md §5.1; upstream `PullSysFlag`).
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_CLASS_FILTER = 8
PULL_LITE = 16

# Topic and queue permission (docs/protocol/messages.md §9; upstream `PermName`).
PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
READ_WRITE_PERM = PERM_READ | PERM_WRITE
"""The permission of an ordinary topic."""

# Topic sysFlag (docs/protocol/namesrv.md §2; upstream `TopicSysFlag`).
TOPIC_UNIT = 1
TOPIC_UNIT_SUB = 2


def perm_text(perm: int) -> str:
    """The text form of a permission, as remarks show it: `RWX`, `RW-`, `---`."""
    return (
        ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-") + ("X" if perm & PERM_INHERIT else "-")
    )
