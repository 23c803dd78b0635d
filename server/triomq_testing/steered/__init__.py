"""What a test controls in a cluster: the clock, disk and network of its nodes, and the faults made of them."""
