"""A trio client for Apache RocketMQ."""
