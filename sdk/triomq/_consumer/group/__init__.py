"""What members of a consumer group share: rebalance, positions, the pull loop, process queues."""
