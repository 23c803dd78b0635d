"""RocketMQ's bytes and what they mean; nothing in here waits, listens, dials or looks at a clock."""
