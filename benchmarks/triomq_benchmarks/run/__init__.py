"""Running a workload: targets, faults, monitoring, stored results."""
