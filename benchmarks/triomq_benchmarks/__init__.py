"""Named workloads, the load that drives them, and honest reports."""
