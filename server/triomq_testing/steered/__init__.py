"""The parts of a cluster that a test controls: the clock, disk and network of its nodes, and faults of these."""
