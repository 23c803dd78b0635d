"""Common parts of a consumer group's members: rebalance, positions, the pull loop, process queues."""
