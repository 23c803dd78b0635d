"""Named workloads, load generators, and reports of what they measured."""
