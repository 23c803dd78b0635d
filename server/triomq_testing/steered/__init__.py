"""What a test steers in a cluster: the clock, disk and network of its nodes, and the faults that are made of them."""
