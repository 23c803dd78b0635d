"""Bit masks of the protocol: frame flag, message sysFlag, pull sysFlag, topic permission, topic sysFlag."""

# Frame flag (remoting.md section 4).
RESPONSE = 1
ONEWAY = 2

# Message sysFlag (messages.md section 4; upstream `MessageSysFlag`).
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_NOT = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORNHOST_V6 = 0x10
STOREHOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

# Pull sysFlag (broker-api.md section 5.1; upstream `PullSysFlag`).
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_CLASS_FILTER = 8
PULL_LITE = 16

# Topic and queue permission (messages.md section 9; upstream `PermName`).
PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_PRIORITY = 8

# Topic sysFlag (namesrv.md section 2; upstream `TopicSysFlag`).
TOPIC_UNIT = 1
TOPIC_UNIT_SUB = 2


def perm_text(perm: int) -> str:
    """The text form of a permission, as remarks show it: `RWX`, `RW-`, `---`."""
    return (
        ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-") + ("X" if perm & PERM_INHERIT else "-")
    )
