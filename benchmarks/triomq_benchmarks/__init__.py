"""Benchmarks: named workloads, load generators, and reports of their measurements."""
