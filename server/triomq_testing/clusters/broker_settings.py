"""Settings of tests' brokers that differ from those of a cluster for experiments."""

SETTINGS = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    # The slots of a full-size index file, 20 MB, would be written at the first message.
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # Expired files are deleted at once, so that `Clock.advance` need not wait for it.
    "deleteCommitLogFilesInterval": "0",
    "deleteConsumeQueueFilesInterval": "0",
}
"""RocketMQ key -> value."""
